"""Everything that the engine reports: to its log, to metrics, to tests, and where it matters to `horsies_events`.

a task:        TaskClaimed, TaskStarted, TaskFinished, TaskReleased, TaskPoisoned,
               TasksRan, TasksFailed,
               TaskUnknown, ClaimLost, LateResultRefused, LateBeatRefused
a child:       ChildReady, ChildDied, ChildSilent, ChunkRecalled
a worker:      WorkerStarted, WorkerFenced, WorkerUnfenced, WorkerReturned, WorkerDraining, WorkerStopped, ServiceDied
recovery:      HookFailed, RecoveryRefused, OperationDisabled, OperationEnabled, PassFinished
the database:  DatabaseLost, DatabaseRestored, ListenerDegraded, ListenerRestored, OutageGraceStarted, OutageGraceEnded

An event with a `kind` is written down as a row of that kind, which `record_of` makes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from horsies.model.task import TaskStatus


class EventKind(StrEnum):
    """The kinds of rows in `horsies_events`, whoever writes them."""

    LATE_RESULT_REFUSED = "late_result_refused"
    LATE_BEAT_REFUSED = "late_beat_refused"
    TASK_RECOVERED = "task_recovered"
    TASK_POISONED = "task_poisoned"
    CHILD_DIED = "child_died"
    OVERLAP_POSSIBLE = "overlap_possible"
    WORKER_LOST = "worker_lost"
    WORKER_RETURNED = "worker_returned"
    SWEEP_FINISHED = "sweep_finished"
    OUTAGE_GRACE_STARTED = "outage_grace_started"
    OUTAGE_GRACE_ENDED = "outage_grace_ended"
    LISTENER_DEGRADED = "listener_degraded"
    LISTENER_RESTORED = "listener_restored"
    OPERATION_DISABLED = "operation_disabled"
    OPERATION_ENABLED = "operation_enabled"
    HOOK_FAILED = "hook_failed"
    RECOVERY_REFUSED = "recovery_refused"
    FLEET_MISMATCH = "fleet_mismatch"
    WORKFLOW_HEALED = "workflow_healed"
    OUTBOX_QUARANTINED = "outbox_quarantined"
    WORKFLOW_RETRIED = "workflow_retried"
    RETENTION_FINISHED = "retention_finished"
    SCHEDULE_SKIPPED = "schedule_skipped"


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
class TaskClaimed(TaskEvent):
    """It is ours, and waits for a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted(TaskEvent):
    """It is RUNNING in the table; its child may still be busy with others of its chunk."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinished(TaskEvent):
    """Its outcome is stored. `status` is PENDING where it is to run again."""

    task_name: str
    status: TaskStatus
    error_code: str | None
    run_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksRan(Event):
    """So many attempts have ended within this time; told once a minute, unless there were none."""

    count: int
    failed: int
    retried: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksFailed(Event):
    """Tasks of this name failed for good; told at once, and of each name no more than once a minute."""

    task_name: str
    count: int
    error_code: str | None
    """Of the last of them, as the id and the message."""
    task_id: str
    message: str | None
    """Its first line, safe to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReleased(TaskEvent):
    """It was given back without having begun; nothing is counted."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUnknown(Event):
    """A task of a name that this worker's app does not have was failed for that; told once for each name."""

    task_name: str
    app: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLost(TaskEvent):
    """Another hand moved it before it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateResultRefused(TaskEvent):
    """An outcome came for a row that had moved on; the row stays as it is."""

    kind: ClassVar[EventKind | None] = EventKind.LATE_RESULT_REFUSED

    status: str | None
    """What the row says now; None where it is gone. The same for token and owner."""
    token_now: int | None
    owner_now: str | None
    outcome: str
    error_code: str | None
    started_at: datetime | None
    moved_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBeatRefused(TaskEvent):
    """A beat came for a row that is no longer ours; told once for each task."""

    kind: ClassVar[EventKind | None] = EventKind.LATE_BEAT_REFUSED

    status: str | None
    token_now: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPoisoned(TaskEvent):
    """It crashed as often as a task may, and is not tried again."""

    kind: ClassVar[EventKind | None] = EventKind.TASK_POISONED

    crash_count: int
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReady(Event):
    """A child has imported the app and takes work."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDied(TaskEvent):
    """A child ended by itself with this task in hand."""

    kind: ClassVar[EventKind | None] = EventKind.CHILD_DIED

    pid: int
    cause: str
    signal: int | None
    exit_status: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSilent(Event):
    """A child does not beat, but works: its parent vouches for it."""

    pid: int
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecalled(Event):
    """A chunk took too long; what it had not begun goes elsewhere."""

    pid: int
    unbegun: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """It listens and claims."""

    host: str
    queues: tuple[str, ...]
    processes: int
    database: str
    """Its address, without a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFenced(Event):
    """It was cut off for so long that it takes no work until a beat has succeeded."""

    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUnfenced(Event):
    """A beat has succeeded; it takes work again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReturned(Event):
    """It had been declared lost, and goes on under a new id."""

    kind: ClassVar[EventKind | None] = EventKind.WORKER_RETURNED

    former_worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining(Event):
    """It was told to stop: no more claims, and so much time for what runs; None waits for ever."""

    running: int
    grace_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    """It has left, having run so many tasks; outcomes that could not be stored are left to recovery."""

    ran: int
    failed: int
    unstored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDied(Event):
    """A loop ended that nobody had told to; the worker stops."""

    service: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLost(Event):
    """A statement found no server; it is tried again."""

    service: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRestored(Event):
    duty: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerDegraded(Event):
    """Notifications do not arrive; due work is found by the poll."""

    kind: ClassVar[EventKind | None] = EventKind.LISTENER_DEGRADED

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRestored(Event):
    kind: ClassVar[EventKind | None] = EventKind.LISTENER_RESTORED


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageGraceStarted(Event):
    """This worker had not listened for a while; until then silence is no proof."""

    kind: ClassVar[EventKind | None] = EventKind.OUTAGE_GRACE_STARTED

    until: datetime
    outage_s: float
    """Between two beats by the database's clock; negative where that clock was set back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageGraceEnded(Event):
    kind: ClassVar[EventKind | None] = EventKind.OUTAGE_GRACE_ENDED

    outage_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailed(Event):
    """A recovery hook raised, ran out of time or gave no answer; told once for each failure and batch."""

    kind: ClassVar[EventKind | None] = EventKind.HOOK_FAILED

    hook: str
    error: str
    task_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRefused(Event):
    """The database would not have a verdict written; told once for each task and error, and tried at each pass."""

    kind: ClassVar[EventKind | None] = EventKind.RECOVERY_REFUSED

    task_id: str
    decision: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDisabled(Event):
    """A duty of the reaper failed again and again with an error that will not pass; it is tried rarely now."""

    kind: ClassVar[EventKind | None] = EventKind.OPERATION_DISABLED

    operation: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEnabled(Event):
    """It has succeeded, and is tried at each tick again."""

    kind: ClassVar[EventKind | None] = EventKind.OPERATION_ENABLED

    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFinished(Event):
    """The reaper has been through its duties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A row of `horsies_events`; what has no column of its own is evidence, in values that JSON knows."""

    kind: EventKind
    worker_id: str
    task_id: str | None
    queue_name: str | None
    claim_token: int | None
    evidence: Mapping[str, object]


_COLUMNS = frozenset(each.name for each in fields(TaskEvent))


def to_record(event: Event) -> EventRecord | None:
    """The row that an event leaves; None for one that is only reported."""
    if event.kind is None:
        return None
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    return EventRecord(
        kind=event.kind,
        worker_id=event.worker_id,
        task_id=values.get("task_id"),
        queue_name=values.get("queue_name"),
        claim_token=values.get("claim_token"),
        evidence={name: _json_value(value) for name, value in values.items() if name not in _COLUMNS},
    )


def _json_value(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


# What moved, added up for those who watch: few small messages, however many tasks.

MAX_PAYLOAD_BYTES: Final = 7_900
MAX_IDS: Final = 16
PUBLISH_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """A move that some tasks of one queue made; `kind` is its name in `model.task.MOVES`. New tasks have no source."""

    kind: str
    queue: str
    source: TaskStatus | None
    target: TaskStatus


@dataclass(slots=True)
class _ChangeCount:
    count: int
    ids: list[str]


class ChangeSummary:
    """Adds up moves until they are told, four times a second at most. Instants are seconds of any steady clock."""

    def __init__(self) -> None:
        self._counts: dict[TaskChange, _ChangeCount] = {}
        self._published_at: float | None = None

    def add(self, moved: TaskChange, task_ids: Collection[str]) -> None:
        """Count tasks that moved, and remember the first of their ids."""
        total = self._counts.setdefault(moved, _ChangeCount(0, []))
        total.count += len(task_ids)
        room = MAX_IDS - len(total.ids)
        if room > 0:
            total.ids += list(task_ids)[:room]

    def due_at(self) -> float | None:
        """From when `take` has something to say; None while nothing moved, minus infinity for at once."""
        if not self._counts:
            return None
        return float("-inf") if self._published_at is None else self._published_at + PUBLISH_INTERVAL_S

    def drain(self, now: float) -> list[str]:
        """The payloads to send now, one for each kind of move; none before the time has come."""
        due_at = self.due_at()
        if due_at is None or now < due_at:
            return []
        sums, self._counts, self._published_at = self._counts, {}, now
        return [_payload(moved, total) for moved, total in sums.items()]


def _payload(moved: TaskChange, total: _ChangeCount) -> str:
    payload = _message(moved, total.count, total.ids)
    # Names come from rows that anyone may have written; a true count is worth more than a few ids.
    return payload if len(payload) <= MAX_PAYLOAD_BYTES else _message(moved, total.count, [])


def _message(moved: TaskChange, count: int, ids: list[str]) -> str:
    """ASCII, so that characters are bytes."""
    message = {"kind": moved.kind, "queue": moved.queue, "from": moved.source, "to": moved.target}
    return json.dumps(message | {"count": count, "ids": ids}, separators=(",", ":"))


# What a worker has run, added up for its log: a line a minute, however much it does.

REPORT_INTERVAL_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """Attempts whose end is stored; those to be tried again have not failed yet."""

    count: int = 0
    failed: int = 0
    retried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Tasks of one name that failed since that was last told, and the last of them."""

    task_name: str
    count: int
    error_code: str | None
    task_id: str
    message: str | None


class AttemptTotals:
    """Adds up what was run: in all, since it was last told, and what failed by its name.

    Instants are seconds of any steady clock.
    """

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._reported = AttemptCounts()
        self._failing: dict[str, FailureGroup] = {}
        self._reported_at: dict[str, float] = {}

    def add_finished(self, status: TaskStatus, count: int) -> None:
        self._ended[status] += count

    def add_failed(self, task_name: str, *, error_code: str | None, task_id: str, message: str | None) -> None:
        before = self._failing.get(task_name)
        count = 1 if before is None else before.count + 1
        self._failing[task_name] = FailureGroup(
            task_name=task_name, count=count, error_code=error_code, task_id=task_id, message=message
        )

    @property
    def total(self) -> AttemptCounts:
        ended = self._ended
        return AttemptCounts(count=ended.total(), failed=ended[TaskStatus.FAILED], retried=ended[TaskStatus.PENDING])

    def drain(self) -> AttemptCounts | None:
        """What was run since this was last asked; None for nothing."""
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
        """Each name that failed and was not told within the last minute; the others wait."""
        # A name that has been quiet for a minute need not be remembered.
        self._reported_at = {name: at for name, at in self._reported_at.items() if now - at < REPORT_INTERVAL_S}
        for name in [name for name in self._failing if name not in self._reported_at]:
            self._reported_at[name] = now
            yield self._failing.pop(name)
