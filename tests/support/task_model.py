"""Model of tasks for the state machine tests: what was sent, how each task must be now, and which rules are broken.

It shares no logic with the library. Times are in ticks of a simulated clock, which advances only in whole ticks. All
thresholds and delays have a fractional part, so that nothing becomes due at the exact moment of a check.
"""

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
    """A task to send; times in ticks, `codes` are the error codes after which it is retried."""

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
    """Retry delay in ticks; a task interrupted by a shutdown is due at once."""
    return 0 if code == SHUTDOWN else RETRY_DELAY


def retry_policy(spec: TaskSpec, *, tick_s: float) -> RetryPolicy | None:
    if not (spec.retries and spec.codes):
        return None
    delays = [int(RETRY_DELAY * tick_s)] * spec.retries
    return RetryPolicy.fixed(delays, auto_retry_for=spec.codes, jitter=False)


def send_payload(task_id: str, spec: TaskSpec, *, tick_s: float) -> TaskSendPayload:
    """The payload of a send."""
    now = datetime.now(UTC)
    policy = retry_policy(spec, tick_s=tick_s)
    options = {} if policy is None else {"retry_policy": policy.model_dump(mode="json")}
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


# Expected state of one task

THRESHOLD: Final = 2.5
LEASE: Final = 1.5
MAX_CRASHES: Final = 2

PENDING, CLAIMED, RUNNING = TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING


class ExpectedAttempt(NamedTuple):
    """A finished attempt."""

    outcome: str
    will_retry: bool


class ShownState(NamedTuple):
    """A state in which a task was shown to an operator."""

    status: TaskStatus
    claim_token: int


@dataclass(slots=True, kw_only=True, eq=False)
class ExpectedTask:
    """An accepted task and the state it must have now."""

    number: int
    id: UUID
    spec: TaskSpec
    due_at: float
    good_until: float
    status: TaskStatus = PENDING
    claim_ref: ClaimRef | None = None
    """The latest claim; valid only while the status is CLAIMED or RUNNING."""
    lease_until: float = inf
    last_heartbeat_at: float = -inf
    retries_used: int = 0
    crashes: int = 0
    may_overlap: bool = False
    ended_at: float = inf
    result: int | None = None
    """Claim token of the attempt that completed it."""
    attempts: dict[int, ExpectedAttempt] = field(default_factory=dict[int, ExpectedAttempt])
    past_states: list[ShownState] = field(default_factory=lambda: [ShownState(PENDING, 0)])
    """All its states, the current one last."""

    def __repr__(self) -> str:
        return f"task {self.number}"

    @property
    def token(self) -> int:
        return 0 if self.claim_ref is None else self.claim_ref.claim_token

    @property
    def owner_id(self) -> UUID | None:
        return None if self.claim_ref is None else self.claim_ref.worker_id

    def has_claim(self, claim_ref: ClaimRef, status: TaskStatus) -> bool:
        return self.claim_ref == claim_ref and self.status is status

    def may_start(self, now: float) -> bool:
        return now < self.lease_until and now < self.good_until

    def is_claimable(self, now: float) -> bool:
        is_free = self.due_at <= now if self.status is PENDING else self.status is CLAIMED and self.lease_until <= now
        return is_free and now < self.good_until

    def claim(self, claim_ref: ClaimRef, status: TaskStatus, now: float, *, has_lease: bool) -> None:
        self.claim_ref = claim_ref
        self.lease_until = now + LEASE if has_lease and status is CLAIMED else inf
        self._set_status(status, now)

    def heartbeat(self, now: float) -> None:
        """An expired lease is not renewed."""
        self.last_heartbeat_at = now
        if now < self.lease_until < inf:
            self.lease_until = now + LEASE

    def start(self, now: float) -> None:
        self.lease_until = inf
        self._set_status(RUNNING, now)

    def release(self, now: float) -> None:
        """No retry is spent and its due time is kept."""
        self._set_status(PENDING, now)

    def finish(self, code: str, now: float) -> None:
        """An outcome from the worker that owns it."""
        if code == OK:
            self.attempts[self.token] = ExpectedAttempt("COMPLETED", will_retry=False)
            self.result = self.token
            self._end(TaskStatus.COMPLETED, now)
        else:
            self._fail_with(code, now)

    def _fail_with(self, code: str, now: float) -> None:
        """Retry if the policy allows it, a retry and time are left, and it is not poison; otherwise fail."""
        self.crashes += code == CRASHED
        is_poison = code == CRASHED and self.crashes >= MAX_CRASHES
        due_at = now + delay_after(code)
        is_overdue = due_at >= self.good_until
        is_listed = code in self.spec.codes or (code == SHUTDOWN and CRASHED in self.spec.codes)
        self._fail(
            now,
            will_retry=is_listed and self.retries_used < self.spec.retries and not (is_poison or is_overdue),
        )
        if self.status is PENDING:
            self.retries_used += 1
            self.due_at = due_at

    def mark_stale(self, now: float, *, has_stopped: bool) -> None:
        """Recover it from an owner that is considered dead."""
        if self.status is RUNNING:
            self.may_overlap |= not has_stopped
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
        """Requeue by an operator; spends no retry."""
        is_overdue = now >= self.good_until
        if self.status is RUNNING:
            self.may_overlap = True
            self._fail(now, will_retry=not is_overdue)
        elif is_overdue:
            self._end(TaskStatus.EXPIRED, now)
        else:
            self._set_status(PENDING, now)
        self.due_at = now if self.status is PENDING else self.due_at

    def _fail(self, now: float, *, will_retry: bool) -> None:
        self.attempts[self.token] = ExpectedAttempt("FAILED", will_retry=will_retry)
        if will_retry:
            self._set_status(PENDING, now)
        else:
            self._end(TaskStatus.FAILED, now)

    def _end(self, status: TaskStatus, now: float) -> None:
        self.ended_at = now
        self._set_status(status, now)

    def _set_status(self, status: TaskStatus, now: float) -> None:
        self.status = status
        self.last_heartbeat_at = now
        self.past_states.append(ShownState(status, self.token))


# Expected state of all tasks, compared with the tables

RETENTION: Final = 4.5
"""How long finished tasks are kept."""


class StoredTask(NamedTuple):
    """A row of horsies_tasks; `result` holds the claim token of the attempt that completed it."""

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
    """Rows that are compared after each step."""

    tasks: Sequence[StoredTask]
    attempts: Sequence[StoredAttempt]
    worker_ids: Collection[UUID]


class TaskModel:
    """All tasks and the executions in progress."""

    def __init__(self) -> None:
        self.now = 0
        self.tasks: dict[UUID, ExpectedTask] = {}
        self.paused: set[str] = set()
        self.stopped: set[UUID] = set()
        """Ids of workers that stopped in an orderly way."""
        self._accepted = 0
        self._begun: set[ClaimRef] = set()
        self._executing: set[ClaimRef] = set()
        self._swept_at = -inf
        """Time of the last sweep by an observer that had listened for long enough."""

    @property
    def unfinished(self) -> list[ExpectedTask]:
        return [task for task in self.tasks.values() if not task.status.is_terminal]

    def accept(self, task_id: UUID, spec: TaskSpec) -> None:
        self._accepted += 1
        due_at, good_until = self.now + spec.delay, self.now + spec.good_for
        self.tasks[task_id] = ExpectedTask(
            number=self._accepted, id=task_id, spec=spec, due_at=due_at, good_until=good_until
        )

    def claimable(self) -> list[ExpectedTask]:
        return [task for task in self.unfinished if task.spec.queue not in self.paused and task.is_claimable(self.now)]

    def owned_by(self, worker_ids: Collection[UUID]) -> list[ExpectedTask]:
        """Tasks whose row names one of these workers."""
        return [task for task in self.unfinished if task.status is not PENDING and task.owner_id in worker_ids]

    def start_execution(self, claim_ref: ClaimRef) -> Iterator[str]:
        """A process starts to execute a task; yields violations."""
        others = [other for other in self._executing if other.task_id == claim_ref.task_id]
        task = self.tasks.get(claim_ref.task_id)
        if others and task is not None and not task.may_overlap:
            tokens = claim_ref.claim_token, others[0].claim_token
            yield f"C3 {task} began under claim {tokens[0]} while claim {tokens[1]} was executing"
        if claim_ref in self._begun:
            yield f"C5 {task} began twice under claim {claim_ref.claim_token}"
        self._begun.add(claim_ref)
        self._executing.add(claim_ref)

    def end_execution(self, claim_ref: ClaimRef) -> None:
        """The process has finished it, or is dead."""
        self._executing.discard(claim_ref)

    def sweep(self, listening_since: float) -> set[UUID]:
        """Recover tasks that are stale for an observer listening since then; returns their ids."""
        if self.now - listening_since >= THRESHOLD:
            self._swept_at = self.now
        stale = [
            task for task in self.unfinished if task.status is not PENDING and self._is_stale(task, listening_since)
        ]
        for task in stale:
            task.mark_stale(self.now, has_stopped=task.owner_id in self.stopped)
        overdue = [task for task in self.unfinished if task.status is PENDING and task.good_until <= self.now]
        for task in overdue:
            task.expire(self.now)
        return {task.id for task in (*stale, *overdue)}

    def delete_old(self) -> None:
        """Forget finished tasks older than RETENTION."""
        self.tasks = {key: task for key, task in self.tasks.items() if self.now - task.ended_at < RETENTION}

    def violations(self, tables: StoredTables) -> list[str]:
        """All violations of C1 to C6 (see `tests.support.ledger`) in the tables."""
        known = [(self.tasks[row.id], row) for row in tables.tasks if row.id in self.tasks]
        return [
            *self._lost_or_unexpected(tables.tasks),
            *(fault for task, row in known for fault in _wrong_state(task, row)),
            *self._duplicate_outcomes(tables.attempts),
            *(fault for task, row in known for fault in _limits_exceeded(task, row)),
            *self._attempt_mismatches(tables.attempts),
            *(fault for task, row in known for fault in self._orphaned(task, row, tables.worker_ids)),
        ]

    def _is_stale(self, task: ExpectedTask, listening_since: float) -> bool:
        return task.owner_id in self.stopped or self.now - max(task.last_heartbeat_at, listening_since) >= THRESHOLD

    def _lost_or_unexpected(self, tasks: Sequence[StoredTask]) -> Iterator[str]:
        stored = {row.id for row in tasks}
        yield from (f"C1 {task} is gone" for task in self.tasks.values() if task.id not in stored)
        yield from (f"C1 {task_id} exists unexpectedly" for task_id in stored - self.tasks.keys())

    def _duplicate_outcomes(self, attempts: Sequence[StoredAttempt]) -> Iterator[str]:
        last = Counter(attempt.task_id for attempt in attempts if not attempt.will_retry)
        yield from (f"C2 {self._name(key)} has {count} outcomes" for key, count in last.items() if count > 1)
        ends = Counter((attempt.task_id, attempt.claim_token) for attempt in attempts)
        duplicates = [(self._name(key), token, count) for (key, token), count in ends.items() if count > 1]
        yield from (f"C2 {name} ended {count} times under claim {token}" for name, token, count in duplicates)

    def _attempt_mismatches(self, attempts: Sequence[StoredAttempt]) -> Iterator[str]:
        stored = set(attempts)
        expected = {
            StoredAttempt(task.id, token, *end) for task in self.tasks.values() for token, end in task.attempts.items()
        }
        yield from (f"C5 {self._name(row.task_id)} lacks attempt {row[1:]}" for row in expected - stored)
        yield from (f"C5 {self._name(row.task_id)} has unexpected attempt {row[1:]}" for row in stored - expected)

    def _orphaned(self, task: ExpectedTask, row: StoredTask, worker_ids: Collection[UUID]) -> Iterator[str]:
        if row.status not in {CLAIMED, RUNNING}:
            return
        if self._swept_at - task.last_heartbeat_at >= THRESHOLD:
            yield f"C6 {task} has a dead owner after a sweep"
        if row.owner_id not in worker_ids:
            yield f"C6 the owner of {task} has no row"

    def _name(self, task_id: UUID) -> str:
        return str(self.tasks.get(task_id, task_id))


def _wrong_state(task: ExpectedTask, row: StoredTask) -> Iterator[str]:
    actual, expected = (row.status, row.claim_token), (task.status.value, task.token)
    if actual != expected:
        yield f"C1 {task} is {actual}, expected {expected}"
    if row.result != task.result:
        yield f"C2 {task} has the result of claim {row.result}, expected {task.result}"
    if row.overlap_possible != task.may_overlap:
        yield f"C3 {task} has overlap_possible {row.overlap_possible}, expected {task.may_overlap}"


def _limits_exceeded(task: ExpectedTask, row: StoredTask) -> Iterator[str]:
    if row.retry_count > task.spec.retries:
        yield f"C4 {task} was retried {row.retry_count} times, allowed {task.spec.retries}"
    if row.crash_count > MAX_CRASHES:
        yield f"C4 {task} crashed {row.crash_count} times, allowed {MAX_CRASHES}"
    actual, expected = (row.retry_count, row.crash_count), (task.retries_used, task.crashes)
    if actual != expected:
        yield f"C4 {task} has {actual} retries and crashes, expected {expected}"
