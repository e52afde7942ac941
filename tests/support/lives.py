"""How a task must stand after what was asked of the queue; shares no rule with the code that is tested by it.

Times are ticks of a clock that stands still between two steps. Every span has a fraction, so that nothing is ever due
at the very moment at which it is looked at, however slow the machine is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from horsies.model.task import TaskStatus
from tests.support.wishes import CRASHED, OK, delay_after

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.store.claims import Hold
    from tests.support.wishes import Wish

THRESHOLD: Final = 2.5
LEASE: Final = 1.5
MAX_CRASHES: Final = 2

PENDING, CLAIMED, RUNNING = TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING


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
