"""Tasks as they are asked for, in ticks, and as they are sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final, NamedTuple
from uuid import UUID

from hypothesis import strategies as st

from horsies.model.retry import RetryPolicy
from horsies.model.send import TaskSendPayload
from horsies.model.task import TaskStatus
from horsies.store.claims import ClaimRef

QUEUES: Final = ("default", "other")
RETRY_DELAY: Final = 0.5

OK: Final = "OK"
FAILED: Final = "SMTP_DOWN"
CRASHED: Final = "WORKER_CRASHED"
SHUTDOWN: Final = "SHUTDOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task as it is asked for: when it is due, how long it is good for, and which codes it is retried after."""

    queue: str = "default"
    retries: int = 0
    codes: tuple[str, ...] = ()
    delay: float = 0
    good_for: float = inf


TASK_SPECS = st.builds(
    TaskSpec,
    queue=st.sampled_from(QUEUES),
    retries=st.sampled_from([2, 2, 1, 0]),
    codes=st.sampled_from([(CRASHED, FAILED, SHUTDOWN), (CRASHED,), (CRASHED, FAILED), (FAILED,)]),
    delay=st.sampled_from([0, 0, 0, 0, 1.5]),
    good_for=st.sampled_from([inf, inf, inf, inf, 3.25, 1.25]),
)


def delay_after(code: str) -> float:
    """A task that was cut by a stopping worker is due at once."""
    return 0 if code == SHUTDOWN else RETRY_DELAY


def send_payload(task_id: str, spec: TaskSpec, *, tick_s: float) -> TaskSendPayload:
    """The task as a client sends it."""
    now = datetime.now(UTC)
    options: dict[str, object] = {}
    if spec.retries and spec.codes:
        delays = [int(RETRY_DELAY * tick_s)] * spec.retries
        policy = RetryPolicy.fixed(delays, auto_retry_for=spec.codes, jitter=False)
        options = {"retry_policy": policy.model_dump(mode="json")}
    return TaskSendPayload(
        task_id=task_id,
        task_name="mail.send",
        queue_name=spec.queue,
        priority=100,
        args="[]",
        kwargs="{}",
        sent_at=now,
        good_until=None if spec.good_for == inf else now + timedelta(seconds=spec.good_for * tick_s),
        enqueue_delay_seconds=spec.delay * tick_s,
        task_options=json.dumps(options),
        flags="{}",
        max_retries=spec.retries,
        idempotency_key=None,
        command_sha=None,
        enqueue_sha="0" * 64,
    )


# How a task must stand after what was asked of the queue; shares no rule with the code that is tested by it.
#
# Times are ticks of a clock that stands still between two steps. Every span has a fraction, so that nothing is ever due
# at the very moment at which it is looked at, however slow the machine is.

THRESHOLD: Final = 2.5
LEASE: Final = 1.5
MAX_CRASHES: Final = 2

PENDING, CLAIMED, RUNNING = TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING


class ExpectedAttempt(NamedTuple):
    """The end of an execution that had begun in the table."""

    outcome: str
    will_retry: bool


class ShownState(NamedTuple):
    """A task as it was shown to somebody."""

    status: TaskStatus
    claim_token: int


@dataclass(slots=True, kw_only=True, eq=False)
class ExpectedTask:
    """A task that was accepted, and how it must stand by now."""

    number: int
    id: UUID
    spec: TaskSpec
    due_at: float
    good_until: float
    status: TaskStatus = PENDING
    claim_ref: ClaimRef | None = None
    """The newest claim; it counts only as long as the status says so."""
    lease_until: float = inf
    last_heartbeat_at: float = -inf
    retries_used: int = 0
    crashes: int = 0
    may_overlap: bool = False
    ended_at: float = inf
    result: int | None = None
    """The token of the execution that completed it."""
    attempts: dict[int, ExpectedAttempt] = field(default_factory=dict[int, ExpectedAttempt])
    past_states: list[ShownState] = field(default_factory=lambda: [ShownState(PENDING, 0)])
    """Every way in which it has stood, the present one last."""

    def __repr__(self) -> str:
        return f"task {self.number}"

    @property
    def token(self) -> int:
        return 0 if self.claim_ref is None else self.claim_ref.claim_token

    @property
    def owner_id(self) -> UUID | None:
        return None if self.claim_ref is None else self.claim_ref.worker_id

    def is_held(self, hold: ClaimRef, status: TaskStatus) -> bool:
        return self.claim_ref == hold and self.status is status

    def may_start(self, now: float) -> bool:
        return now < self.lease_until and now < self.good_until

    def is_claimable(self, now: float) -> bool:
        is_free = self.due_at <= now if self.status is PENDING else self.status is CLAIMED and self.lease_until <= now
        return is_free and now < self.good_until

    def claim(self, hold: ClaimRef, status: TaskStatus, now: float, *, has_lease: bool) -> None:
        self.claim_ref = hold
        self.lease_until = now + LEASE if has_lease and status is CLAIMED else inf
        self._stand(status, now)

    def beat(self, now: float) -> None:
        """A lease that has lapsed stays so."""
        self.last_heartbeat_at = now
        if now < self.lease_until < inf:
            self.lease_until = now + LEASE

    def start(self, now: float) -> None:
        self.lease_until = inf
        self._stand(RUNNING, now)

    def release(self, now: float) -> None:
        """It costs nothing, and it keeps its place."""
        self._stand(PENDING, now)

    def finish(self, code: str, now: float) -> None:
        """By the worker that holds it."""
        if code == OK:
            self.attempts[self.token] = ExpectedAttempt("COMPLETED", will_retry=False)
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
        self._fail(
            now, again=code in self.spec.codes and self.retries_used < self.spec.retries and not (is_poison or is_late)
        )
        if self.status is PENDING:
            self.retries_used += 1
            self.due_at = due_at

    def mark_stale(self, now: float, *, is_surely_gone: bool) -> None:
        """Its owner counts as dead."""
        if self.status is RUNNING:
            self.may_overlap |= not is_surely_gone
            self._fail_with(CRASHED, now)
        elif now >= self.good_until:
            self._end(TaskStatus.EXPIRED, now)
        else:
            self.release(now)

    def expire(self, now: float) -> None:
        self._end(TaskStatus.EXPIRED, now)

    def cancel(self, now: float) -> None:
        if self.status is RUNNING:
            self.attempts[self.token] = ExpectedAttempt("FAILED", will_retry=False)
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
        self.attempts[self.token] = ExpectedAttempt("FAILED", will_retry=again)
        if again:
            self._stand(PENDING, now)
        else:
            self._end(TaskStatus.FAILED, now)

    def _end(self, status: TaskStatus, now: float) -> None:
        self.ended_at = now
        self._stand(status, now)

    def _stand(self, status: TaskStatus, now: float) -> None:
        self.status = status
        self.last_heartbeat_at = now
        self.past_states.append(ShownState(status, self.token))


# What was accepted, who holds what, and which executions began and ended; the queue's tables are judged by it.

RETENTION: Final = 4.5
"""How long what has ended is kept."""


class StoredTask(NamedTuple):
    """A task as the table has it; `result` is the claim token that its result tells of."""

    id: UUID
    status: str
    claim_token: int
    owner_id: UUID | None
    overlap_possible: bool
    retry_count: int
    crash_count: int
    result: int | None


class StoredAttempt(NamedTuple):
    task_id: UUID
    claim_token: int
    outcome: str
    will_retry: bool


class StoredTables(NamedTuple):
    """Everything that is judged after a step."""

    tasks: Sequence[StoredTask]
    attempts: Sequence[StoredAttempt]
    worker_ids: Collection[UUID]


class TaskModel:
    """The lives of all tasks, and the processes that work on them."""

    def __init__(self) -> None:
        self.now = 0
        self.tasks: dict[UUID, ExpectedTask] = {}
        self.paused: set[str] = set()
        self.stopped: set[UUID] = set()
        """Workers that said so."""
        self._accepted = 0
        self._begun: set[ClaimRef] = set()
        self._at_work: set[ClaimRef] = set()
        self._swept_at = -inf
        """When somebody last judged who had listened for long enough."""

    @property
    def unfinished(self) -> list[ExpectedTask]:
        return [life for life in self.tasks.values() if not life.status.is_terminal]

    def accept(self, task_id: UUID, spec: TaskSpec) -> None:
        self._accepted += 1
        due_at, good_until = self.now + spec.delay, self.now + spec.good_for
        self.tasks[task_id] = ExpectedTask(
            number=self._accepted, id=task_id, spec=spec, due_at=due_at, good_until=good_until
        )

    def claimable(self) -> list[ExpectedTask]:
        return [life for life in self.unfinished if life.spec.queue not in self.paused and life.is_claimable(self.now)]

    def held_by(self, worker_ids: Collection[UUID]) -> list[ExpectedTask]:
        """What names one of these in the table."""
        return [life for life in self.unfinished if life.status is not PENDING and life.owner_id in worker_ids]

    def start_execution(self, hold: ClaimRef) -> Iterator[str]:
        """A process starts on a task; yields what must not be so."""
        others = [each for each in self._at_work if each.task_id == hold.task_id]
        life = self.tasks.get(hold.task_id)
        if others and life is not None and not life.may_overlap:
            yield f"C3 {life} began under claim {hold.claim_token} and was at work under {others[0].claim_token}"
        if hold in self._begun:
            yield f"C5 {life} began twice under claim {hold.claim_token}"
        self._begun.add(hold)
        self._at_work.add(hold)

    def end_execution(self, hold: ClaimRef) -> None:
        """The process is done with it, or dead."""
        self._at_work.discard(hold)

    def sweep(self, listening_since: float) -> set[UUID]:
        """Settle what is stale for a judge who has listened since then; returns what is settled."""
        if self.now - listening_since >= THRESHOLD:
            self._swept_at = self.now
        stale = [
            life for life in self.unfinished if life.status is not PENDING and self._is_stale(life, listening_since)
        ]
        for life in stale:
            life.mark_stale(self.now, is_surely_gone=life.owner_id in self.stopped)
        late = [life for life in self.unfinished if life.status is PENDING and life.good_until <= self.now]
        for life in late:
            life.expire(self.now)
        return {life.id for life in (*stale, *late)}

    def delete_old(self) -> None:
        """What ended long ago is no longer kept."""
        self.tasks = {key: life for key, life in self.tasks.items() if self.now - life.ended_at < RETENTION}

    def violations(self, tables: StoredTables) -> list[str]:
        """Everything in the tables that breaks C1 to C6."""
        known = [(self.tasks[row.id], row) for row in tables.tasks if row.id in self.tasks]
        return [
            *self._lost_or_made_up(tables.tasks),
            *(fault for life, row in known for fault in _misplaced(life, row)),
            *self._outcomes_twice(tables.attempts),
            *(fault for life, row in known for fault in _beyond_policy(life, row)),
            *self._miscounted(tables.attempts),
            *(fault for life, row in known for fault in self._orphaned(life, row, tables.worker_ids)),
        ]

    def _is_stale(self, life: ExpectedTask, listening_since: float) -> bool:
        return life.owner_id in self.stopped or self.now - max(life.last_heartbeat_at, listening_since) >= THRESHOLD

    def _lost_or_made_up(self, tasks: Sequence[StoredTask]) -> Iterator[str]:
        stored = {row.id for row in tasks}
        yield from (f"C1 {life} is gone" for life in self.tasks.values() if life.id not in stored)
        yield from (f"C1 {each} is there and should not be" for each in stored - self.tasks.keys())

    def _outcomes_twice(self, attempts: Sequence[StoredAttempt]) -> Iterator[str]:
        last = Counter(each.task_id for each in attempts if not each.will_retry)
        yield from (f"C2 {self._name(key)} has {count} outcomes" for key, count in last.items() if count > 1)
        runs = Counter((each.task_id, each.claim_token) for each in attempts)
        twice = [(self._name(key), token, count) for (key, token), count in runs.items() if count > 1]
        yield from (f"C2 {name} ended {count} times under claim {token}" for name, token, count in twice)

    def _miscounted(self, attempts: Sequence[StoredAttempt]) -> Iterator[str]:
        stored = set(attempts)
        ended = {
            StoredAttempt(life.id, token, *end) for life in self.tasks.values() for token, end in life.attempts.items()
        }
        yield from (f"C5 {self._name(each.task_id)} has no attempt {each[1:]}" for each in ended - stored)
        yield from (f"C5 {self._name(each.task_id)} has an attempt {each[1:]}" for each in stored - ended)

    def _orphaned(self, life: ExpectedTask, row: StoredTask, worker_ids: Collection[UUID]) -> Iterator[str]:
        if row.status not in {CLAIMED, RUNNING}:
            return
        if self._swept_at - life.last_heartbeat_at >= THRESHOLD:
            yield f"C6 {life} has a dead owner, and somebody has looked"
        if row.owner_id not in worker_ids:
            yield f"C6 nothing is known of the owner of {life}"

    def _name(self, task_id: UUID) -> str:
        return str(self.tasks.get(task_id, task_id))


def _misplaced(life: ExpectedTask, row: StoredTask) -> Iterator[str]:
    stands, should = (row.status, row.claim_token), (life.status.value, life.token)
    if stands != should:
        yield f"C1 {life} stands as {stands}, not as {should}"
    if row.result != life.result:
        yield f"C2 {life} has the result of claim {row.result}, not of {life.result}"
    if row.overlap_possible != life.may_overlap:
        yield f"C3 {life} says {row.overlap_possible} of an overlap, not {life.may_overlap}"


def _beyond_policy(life: ExpectedTask, row: StoredTask) -> Iterator[str]:
    if row.retry_count > life.spec.retries:
        yield f"C4 {life} was retried {row.retry_count} times of {life.spec.retries}"
    if row.crash_count > MAX_CRASHES:
        yield f"C4 {life} crashed {row.crash_count} times of {MAX_CRASHES}"
    spent, should = (row.retry_count, row.crash_count), (life.retries_used, life.crashes)
    if spent != should:
        yield f"C4 {life} has {spent} retries and crashes, not {should}"
