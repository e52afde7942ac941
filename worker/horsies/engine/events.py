"""Events of a worker: logged, passed to listeners, and, if they have a `kind`, recorded in `horsies_events`.

Tasks:     TaskFinished, TaskPoisoned, TasksRan, TasksFailed, TaskUnknown, ClaimLost, LateResultRefused,
           LateHeartbeatRefused
Children:  ChildDied, ChildSilent, ChunkRecalled, ForkServerLost, ForkServerRestored
Worker:    WorkerStarted, WorkerFenced, WorkerUnfenced, WorkerReturned, WorkerDraining, WorkerStopped
Recovery:  HookFailed, RecoveryRefused, OperationDisabled, OperationEnabled, PassFinished
Database:  DatabaseLost, DatabaseRestored, ClaimsBlocked, ListenerDegraded, ListenerRestored, OutageGraceStarted,
           OutageGraceEnded

`AttemptTotals` at the end aggregates finished attempts for the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import ClassVar, Final

from horsies.model.events import EventKind, EventRecord
from horsies.model.task import TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in one worker."""

    kind: ClassVar[EventKind | None] = None

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent(Event):
    """Something that happened to one attempt of a task."""

    task_id: str
    claim_token: int
    queue_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinished(TaskEvent):
    """The outcome of an attempt is stored; `status` is PENDING if the task will be retried."""

    task_name: str
    status: TaskStatus
    error_code: str | None
    error_message: str | None = None
    run_ms: float | None = None
    """None unless single tasks are shown, and for an attempt whose child died."""
    retry_number: int | None = None
    max_retries: int | None = None
    retry_delay_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksRan(Event):
    """Attempts finished in the last `within_s` seconds; emitted once a minute unless there were none."""

    count: int
    failed: int
    retried: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksFailed(Event):
    """Tasks of this name failed without further retries; emitted at most once a minute per name.

    `error_code`, `task_id` and `message` are those of the last one.
    """

    task_name: str
    count: int
    error_code: str | None
    task_id: str
    message: str | None
    """First line, sanitized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUnknown(Event):
    """This worker does not know a task and leaves it to others; emitted at most once a minute per name."""

    kind: ClassVar[EventKind | None] = EventKind.TASK_UNKNOWN

    task_name: str
    app: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLost(TaskEvent):
    """Its row was changed elsewhere before it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateResultRefused(TaskEvent):
    """An outcome was discarded because this worker no longer owns the row."""

    kind: ClassVar[EventKind | None] = EventKind.LATE_RESULT_REFUSED

    status: str | None
    """The row's current status, like token and owner; None if the row is gone."""
    token_now: int | None
    owner_now: str | None
    outcome: str
    error_code: str | None
    started_at: datetime | None
    moved_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateHeartbeatRefused(TaskEvent):
    """A heartbeat was refused because this worker no longer owns the row; emitted once per task."""

    kind: ClassVar[EventKind | None] = EventKind.LATE_BEAT_REFUSED

    status: str | None
    token_now: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPoisoned(TaskEvent):
    """Crashed `max_crashes` times; not retried again."""

    kind: ClassVar[EventKind | None] = EventKind.TASK_POISONED

    crash_count: int
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDied(TaskEvent):
    """A child crashed while it ran this task."""

    kind: ClassVar[EventKind | None] = EventKind.CHILD_DIED

    pid: int
    cause: str
    signal: int | None
    exit_status: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSilent(Event):
    """A child sends no heartbeats but uses CPU; its parent keeps its tasks alive."""

    pid: int
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecalled(Event):
    """A chunk took too long; its tasks that had not begun were recalled."""

    pid: int
    unbegun: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServerLost(Event):
    """The fork server died or did not answer; this worker claims nothing until another one is ready."""

    pid: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServerRestored(Event):
    """Children can be started again, usually because another fork server is ready; follows ForkServerLost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """Started: listening for notifications and claiming."""

    host: str
    queues: tuple[str, ...]
    processes: int
    database: str
    """Its URL with the password masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFenced(Event):
    """Disconnected for so long that it claims and starts nothing until a heartbeat succeeds."""

    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUnfenced(Event):
    """A heartbeat succeeded; claiming again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReturned(Event):
    """Had been declared lost; continues under a new id."""

    kind: ClassVar[EventKind | None] = EventKind.WORKER_RETURNED

    former_worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining(Event):
    """Shutting down: no more claims; running tasks have `grace_s` seconds to finish, None means no limit."""

    running: int
    grace_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    """Stopped; tasks whose outcomes could not be stored (`unstored`) are left to recovery."""

    ran: int
    failed: int
    unstored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLost(Event):
    """A statement failed because the database is unavailable; it is retried."""

    service: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRestored(Event):
    service: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsBlocked(Event):
    """Another session holds the lock of a concurrency cap, so nothing can be claimed under it."""

    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerDegraded(Event):
    """Notifications do not arrive; due tasks are found by polling."""

    kind: ClassVar[EventKind | None] = EventKind.LISTENER_DEGRADED

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRestored(Event):
    kind: ClassVar[EventKind | None] = EventKind.LISTENER_RESTORED


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageGraceStarted(Event):
    """This worker was disconnected; it makes no recovery decisions based on silence before `until`."""

    kind: ClassVar[EventKind | None] = EventKind.OUTAGE_GRACE_STARTED

    until: datetime
    outage_s: float
    """Time between two heartbeats by the database clock; negative if that clock was set back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageGraceEnded(Event):
    kind: ClassVar[EventKind | None] = EventKind.OUTAGE_GRACE_ENDED

    outage_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailed(Event):
    """A recovery hook raised, timed out or returned an invalid answer; emitted once per error and batch."""

    kind: ClassVar[EventKind | None] = EventKind.HOOK_FAILED

    hook: str
    error: str
    task_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRefused(Event):
    """The database rejected a recovery decision; emitted once per task and error, retried in every pass."""

    kind: ClassVar[EventKind | None] = EventKind.RECOVERY_REFUSED

    task_id: str
    decision: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDisabled(Event):
    """A reaper operation failed repeatedly with a permanent error and is now tried rarely."""

    kind: ClassVar[EventKind | None] = EventKind.OPERATION_DISABLED

    operation: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEnabled(Event):
    """A disabled reaper operation succeeded and runs in every pass again."""

    kind: ClassVar[EventKind | None] = EventKind.OPERATION_ENABLED

    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFinished(Event):
    """The reaper finished a pass."""


# Event records


_COLUMNS = frozenset(field.name for field in fields(TaskEvent))


def to_record(event: Event) -> EventRecord | None:
    """Build the row of an event; None for events that are not recorded."""
    if event.kind is None:
        return None
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return EventRecord(
        kind=event.kind,
        worker_id=event.worker_id,
        task_id=values.get("task_id"),
        queue_name=values.get("queue_name"),
        claim_token=values.get("claim_token"),
        evidence={
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
            if name not in _COLUMNS
        },
    )


# Finished attempts, aggregated for the log

REPORT_INTERVAL_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """Finished attempts; `failed` leaves out those that will be retried."""

    count: int = 0
    failed: int = 0
    retried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Tasks of one name that failed since the last report, with the details of the last one."""

    task_name: str
    count: int
    error_code: str | None
    task_id: str
    message: str | None


class AttemptTotals:
    """Counts finished attempts, in total and since the last report, and failures by task name."""

    def __init__(self) -> None:
        self._finished: Counter[str] = Counter()
        self._reported = AttemptCounts()
        self._failures: dict[str, FailureGroup] = {}
        self._reported_at: dict[str, float] = {}
        """When failures of a task name were last reported, in monotonic seconds."""

    def add_finished(self, status: TaskStatus, count: int) -> None:
        self._finished[status] += count

    def add_failed(self, task_name: str, *, error_code: str | None, task_id: str, message: str | None) -> None:
        before = self._failures.get(task_name)
        # Only the newest failure is kept, so that a burst of failures does not fill the log or the memory.
        count = 1 if before is None else before.count + 1
        self._failures[task_name] = FailureGroup(
            task_name=task_name, count=count, error_code=error_code, task_id=task_id, message=message
        )

    @property
    def total(self) -> AttemptCounts:
        finished = self._finished
        return AttemptCounts(
            count=finished.total(), failed=finished[TaskStatus.FAILED], retried=finished[TaskStatus.PENDING]
        )

    def drain(self) -> AttemptCounts | None:
        """Return the counts since the last call; None if nothing finished."""
        now, before = self.total, self._reported
        self._reported = now
        if now.count == before.count:
            return None
        return AttemptCounts(
            count=now.count - before.count,
            failed=now.failed - before.failed,
            retried=now.retried - before.retried,
        )

    def drain_failures(self, now: float) -> Iterator[FailureGroup]:
        """Yield the failures of task names not reported within the last minute; the others wait."""
        self._reported_at = {name: at for name, at in self._reported_at.items() if now - at < REPORT_INTERVAL_S}
        for name in [name for name in self._failures if name not in self._reported_at]:
            self._reported_at[name] = now
            yield self._failures.pop(name)
