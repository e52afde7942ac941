"""How a task must stand after what was asked of the queue; shares no rule with the code that is tested by it.

Times are ticks of a clock that stands still between two steps. Every span has a fraction, so that nothing is ever due
at the very moment at which it is looked at, however slow the machine is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from horsies.model.retry import RetryPolicy
from horsies.model.sending import TaskSendPayload
from horsies.model.task import TaskStatus

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.store.work import Hold

THRESHOLD: Final = 2.5
LEASE: Final = 1.5
RETRY_DELAY: Final = 0.5
MAX_CRASHES: Final = 2

OK: Final = "OK"
FAILED: Final = "SMTP_DOWN"
CRASHED: Final = "WORKER_CRASHED"
SHUTDOWN: Final = "SHUTDOWN"

PENDING, CLAIMED, RUNNING = TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A task as it is asked for: when it is due, how long it is good for, and which codes it is retried after."""

    queue: str = "default"
    retries: int = 0
    codes: tuple[str, ...] = ()
    delay: float = 0
    good_for: float = inf


class Attempt(NamedTuple):
    """The end of an execution that had begun in the table."""

    outcome: str
    will_retry: bool


class Standing(NamedTuple):
    """A task as it was shown to somebody."""

    status: TaskStatus
    claim_token: int


@dataclass(slots=True, kw_only=True, eq=False)
class Life:
    """A task that was accepted, and how it must stand by now."""

    number: int
    id: UUID
    wish: Wish
    due_at: float
    good_until: float
    status: TaskStatus = PENDING
    hold: Hold | None = None
    """The newest claim; it counts only as long as the status says so."""
    lease_until: float = inf
    heard_at: float = -inf
    spent: int = 0
    crashes: int = 0
    may_overlap: bool = False
    ended_at: float = inf
    result: int | None = None
    """The token of the execution that completed it."""
    attempts: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    shown: list[Standing] = field(default_factory=lambda: [Standing(PENDING, 0)])
    """Every way in which it has stood, the present one last."""

    def __repr__(self) -> str:
        return f"task {self.number}"

    @property
    def token(self) -> int:
        return 0 if self.hold is None else self.hold.claim_token

    @property
    def owner_id(self) -> UUID | None:
        return None if self.hold is None else self.hold.worker_id

    def is_held(self, hold: Hold, status: TaskStatus) -> bool:
        return self.hold == hold and self.status is status

    def may_start(self, now: float) -> bool:
        return now < self.lease_until and now < self.good_until

    def is_claimable(self, now: float) -> bool:
        is_free = self.due_at <= now if self.status is PENDING else self.status is CLAIMED and self.lease_until <= now
        return is_free and now < self.good_until

    def claim(self, hold: Hold, status: TaskStatus, now: float, *, has_lease: bool) -> None:
        self.hold = hold
        self.lease_until = now + LEASE if has_lease and status is CLAIMED else inf
        self._stand(status, now)

    def beat(self, now: float) -> None:
        """A lease that has lapsed stays so."""
        self.heard_at = now
        if now < self.lease_until < inf:
            self.lease_until = now + LEASE

    def start(self, now: float) -> None:
        self.lease_until = inf
        self._stand(RUNNING, now)

    def put_back(self, now: float) -> None:
        """It costs nothing, and it keeps its place."""
        self._stand(PENDING, now)

    def finish(self, code: str, now: float) -> None:
        """By the worker that holds it."""
        if code == OK:
            self.attempts[self.token] = Attempt("COMPLETED", will_retry=False)
            self.result = self.token
            self._end(TaskStatus.COMPLETED, now)
        else:
            self._fail_with(code, now)

    def _fail_with(self, code: str, now: float) -> None:
        """Again, where its policy says so and there is a retry left and time, and it has not crashed too often."""
        self.crashes += code == CRASHED
        is_poison = code == CRASHED and self.crashes >= MAX_CRASHES
        due_at = now + delay_after(code)
        is_late = due_at >= self.good_until
        self._fail(now, again=code in self.wish.codes and self.spent < self.wish.retries and not (is_poison or is_late))
        if self.status is PENDING:
            self.spent += 1
            self.due_at = due_at

    def condemn(self, now: float, *, is_surely_gone: bool) -> None:
        """Its owner counts as dead."""
        if self.status is RUNNING:
            self.may_overlap |= not is_surely_gone
            self._fail_with(CRASHED, now)
        elif now >= self.good_until:
            self._end(TaskStatus.EXPIRED, now)
        else:
            self.put_back(now)

    def expire(self, now: float) -> None:
        self._end(TaskStatus.EXPIRED, now)

    def cancel(self, now: float) -> None:
        if self.status is RUNNING:
            self.attempts[self.token] = Attempt("FAILED", will_retry=False)
        self._end(TaskStatus.CANCELLED, now)

    def requeue(self, now: float) -> None:
        """By an operator, who spends no retry."""
        is_late = now >= self.good_until
        if self.status is RUNNING:
            self.may_overlap = True
            self._fail(now, again=not is_late)
        elif is_late:
            self._end(TaskStatus.EXPIRED, now)
        else:
            self._stand(PENDING, now)
        self.due_at = now if self.status is PENDING else self.due_at

    def _fail(self, now: float, *, again: bool) -> None:
        self.attempts[self.token] = Attempt("FAILED", will_retry=again)
        if again:
            self._stand(PENDING, now)
        else:
            self._end(TaskStatus.FAILED, now)

    def _end(self, status: TaskStatus, now: float) -> None:
        self.ended_at = now
        self._stand(status, now)

    def _stand(self, status: TaskStatus, now: float) -> None:
        self.status = status
        self.heard_at = now
        self.shown.append(Standing(status, self.token))


def delay_after(code: str) -> float:
    """A task that was cut by a stopping worker is due at once."""
    return 0 if code == SHUTDOWN else RETRY_DELAY


def payload_of(task_id: str, wish: Wish, *, tick_s: float) -> TaskSendPayload:
    """The task as a client sends it."""
    now = datetime.now(UTC)
    options: dict[str, object] = {}
    if wish.retries and wish.codes:
        delays = [int(RETRY_DELAY * tick_s)] * wish.retries
        policy = RetryPolicy.fixed(delays, auto_retry_for=wish.codes, jitter=False)
        options = {"retry_policy": policy.model_dump(mode="json")}
    return TaskSendPayload(
        task_id=task_id,
        task_name="mail.send",
        queue_name=wish.queue,
        priority=100,
        args="[]",
        kwargs="{}",
        sent_at=now,
        good_until=None if wish.good_for == inf else now + timedelta(seconds=wish.good_for * tick_s),
        enqueue_delay_seconds=wish.delay * tick_s,
        task_options=json.dumps(options),
        flags="{}",
        max_retries=wish.retries,
        idempotency_key=None,
        command_sha=None,
        enqueue_sha="0" * 64,
    )
