"""Tasks moved by an operator's hand, each only if it still stands as it was shown."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.model.events import ChangeSummary, TaskChange
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.store.claims import NO_RESTART_RESULTS
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction


REQUEUED_BY_OPERATOR: Final = "requeued by an operator"
"""What an owner knows of a task that it was asked to stop; the audit knows the rest."""

_MAX_IDS_PER_KILL_MESSAGE: Final = 150
"""As many ids as an order to kill has room for in one notification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """A task that an operator means, as it stands."""

    id: UUID
    status: str
    claim_token: int
    error_code: str | None
    task_name: str
    queue_name: str
    is_workflow_task: bool
    no_restart: str | None
    is_delayed: bool
    is_overdue: bool
    has_run: bool
    has_live_owner: bool
    """CLAIMED or RUNNING, and the worker that has it was not seen to stop or to be lost."""
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A task as it was shown to the operator; one that stands otherwise is not touched."""

    id: UUID
    status: str
    claim_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRow:
    """A task that was moved, from where and to where; `new_id` is the task that was sent in its place."""

    id: UUID
    claim_token: int
    queue_name: str
    from_status: str
    status: str
    worker_id: UUID | None
    new_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequestedRow:
    """A running task whose owner has been asked to stop it."""

    id: UUID
    worker_id: UUID | None
    has_live_owner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOutcomeRow:
    """What became of it so far."""

    id: UUID
    queue_name: str
    status: str
    is_still_running: bool
    is_requeued: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimeRow:
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationCountRow:
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionQueries:
    targets: Query[TargetRow]
    server_time: Query[ServerTimeRow]
    end_tasks: Query[TransitionRow]
    requeue: Query[TransitionRow]
    request_kill: Query[KillRequestedRow]
    kill_outcomes: Query[KillOutcomeRow]
    resend: Query[TransitionRow]
    send_notifications: Query[NotificationCountRow]


ACTIONS = load_queries(ActionQueries, "horsies.store", "actions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """How tasks are brought to an end, and what is stored as their result."""

    kind: str
    """The name of the move."""
    status: TaskStatus
    error: TaskError
    kill: bool = False


async def end_tasks(transaction: Transaction, targets: Sequence[Target], end: Termination) -> list[TransitionRow]:
    """End tasks; with `kill`, the owners of running ones are told to end their processes."""
    moved = await transaction.fetch(
        ACTIONS.end_tasks,
        *_target_arrays(targets),
        end.status,
        canonical_json({"err": encode_task_error(end.error)}),
        end.error.error_code,
        end.error.message,
        end.kill,
    )
    orders = [(row.worker_id, row.id) for row in moved if row.from_status == TaskStatus.RUNNING] if end.kill else []
    await _notify(transaction, end.kind, moved, orders=orders)
    return moved


async def requeue(
    transaction: Transaction,
    targets: Sequence[Target],
    *,
    reason: str = REQUEUED_BY_OPERATOR,
    may_overlap: bool = False,
) -> list[TransitionRow]:
    """Make tasks claimable at once. `may_overlap`: processes of the running ones are not known to be gone."""
    moved = await transaction.fetch(
        ACTIONS.requeue, *_target_arrays(targets), reason, may_overlap, _too_late(reason), NO_RESTART_RESULTS
    )
    await _notify(transaction, "requeue", moved, may_overlap=may_overlap)
    return moved


async def request_kill(transaction: Transaction, targets: Sequence[Target]) -> list[KillRequestedRow]:
    """Ask the owners of running tasks to stop them and to put them back."""
    marked = await transaction.fetch(
        ACTIONS.request_kill, [each.id for each in targets], [each.claim_token for each in targets]
    )
    await _notify(transaction, "requeue", (), orders=[(row.worker_id, row.id) for row in marked])
    return marked


async def kill_outcomes(transaction: Transaction, targets: Sequence[Target]) -> list[KillOutcomeRow]:
    return await transaction.fetch(
        ACTIONS.kill_outcomes, [each.id for each in targets], [each.claim_token for each in targets]
    )


async def resend(transaction: Transaction, targets: Sequence[Target], new_ids: Sequence[UUID]) -> list[TransitionRow]:
    """A new task for each that has ended; the old ones stay as they are."""
    sent = await transaction.fetch(ACTIONS.resend, *_target_arrays(targets), new_ids)
    summary = ChangeSummary()
    for row in sent:
        summary.add(
            TaskChange(kind="enqueue", queue=row.queue_name, source=None, target=TaskStatus.PENDING), [str(row.new_id)]
        )
    await transaction.fetch(
        ACTIONS.send_notifications, [], [], summary.drain(0.0), []
    )  # workers hear of it by the trigger
    return sent


async def _notify(
    transaction: Transaction,
    kind: str,
    moved: Sequence[TransitionRow],
    *,
    orders: Iterable[tuple[UUID | None, UUID]] = (),
    may_overlap: bool = False,
) -> None:
    summary = ChangeSummary()
    for row in moved:
        move = TaskChange(
            kind=kind, queue=row.queue_name, source=TaskStatus(row.from_status), target=TaskStatus(row.status)
        )
        summary.add(move, [str(row.id)])
        if may_overlap and row.from_status == TaskStatus.RUNNING and row.status == TaskStatus.PENDING:
            summary.add(replace(move, kind="overlap_possible"), [str(row.id)])
    await transaction.fetch(
        ACTIONS.send_notifications,
        [row.id for row in moved if TaskStatus(row.status).is_terminal],
        sorted({row.queue_name for row in moved if row.status == TaskStatus.PENDING}),
        summary.drain(0.0),
        _kill_messages(orders),
    )


def _kill_messages(wanted: Iterable[tuple[UUID | None, UUID]]) -> list[str]:
    """Orders to kill, for each worker the tasks that it has."""
    by_worker: defaultdict[UUID | None, list[str]] = defaultdict(list)
    for worker_id, task_id in wanted:
        by_worker[worker_id].append(str(task_id))
    return [
        json.dumps(
            {
                "kind": "kill",
                "correlation_id": None,
                "reply_channel": None,
                "target_worker_id": None if worker_id is None else str(worker_id),
                "task_ids": ids[start : start + _MAX_IDS_PER_KILL_MESSAGE],
            }
        )
        for worker_id, ids in by_worker.items()
        for start in range(0, len(ids), _MAX_IDS_PER_KILL_MESSAGE)
    ]


def _too_late(why: str) -> str:
    """Results of tasks that could not start again in time, by the state that they end in."""
    expired = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message=f"{why}, past its good_until")
    failed = TaskError(error_code=OutcomeCode.OPERATOR_FAILED, message=f"{why}, past its good_until")
    ends = {TaskStatus.EXPIRED: expired, TaskStatus.FAILED: failed}
    return canonical_json({str(status): {"err": encode_task_error(error)} for status, error in ends.items()})


def _target_arrays(targets: Sequence[Target]) -> tuple[object, ...]:
    return (
        [each.id for each in targets],
        [each.status for each in targets],
        [each.claim_token for each in targets],
    )


# What operators did, or looked at doing: one row an action.


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditId:
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQueries:
    insert_audit_entry: Query[AuditId]
    add_audit_progress: Query[AuditId]


AUDIT = load_queries(AuditQueries, "horsies.store", "audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who acts: a name, the host it acts from, and the way it came (`cli`, `tui`, `library`)."""

    name: str
    host: str
    via: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An action as it is asked for: by whom, on what, and why."""

    operator: Operator
    action: str
    reason: str | None
    filter: Mapping[str, object]
    matched: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProgress:
    """A part of an action that has been carried out. Of the ids, the first 1,000 of the whole action are kept."""

    matched: int = 0
    """What was found on the way, for an action that does not know beforehand what it will meet."""
    affected: int = 0
    skipped: int = 0
    task_ids: Sequence[UUID] = ()


async def record_audit(
    transaction: Transaction, entry: AuditEntry, progress: AuditProgress, audit_id: int | None = None
) -> int:
    """Begin the row of an action, or add to the one that `audit_id` names; commits with what was done."""
    if audit_id is not None:
        added = (progress.matched, progress.affected, progress.skipped, progress.task_ids)
        (row,) = await transaction.fetch(AUDIT.add_audit_progress, audit_id, *added)
        return row.id
    operator = entry.operator
    (row,) = await transaction.fetch(
        AUDIT.insert_audit_entry,
        operator.name,
        operator.host,
        operator.via,
        entry.action,
        entry.reason,
        json.dumps(entry.filter),
        entry.is_dry_run,
        entry.matched + progress.matched,
        progress.affected,
        progress.skipped,
        progress.task_ids,
    )
    return row.id


# What happened: written down for operators, told to those who watch.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """Something that an operator should be able to read later, with its evidence in JSON values."""

    kind: str
    task_id: UUID | None = None
    workflow_id: UUID | None = None
    worker_id: UUID | None = None
    claim_token: int | None = None
    queue_name: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventId:
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsNotifiedRow:
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQueries:
    record_event: Query[EventId]
    notify_viewers: Query[EventsNotifiedRow]


EVENTS = load_queries(EventQueries, "horsies.store", "events")


@dataclass(frozen=True, slots=True)
class EventStore:
    """Events of one database."""

    database: Database

    async def record(self, event: StoredEvent) -> None:
        """Write an event down, and tell those who watch."""
        await self.database.fetch(EVENTS.record_event, *_event_columns(event))

    async def notify_viewers(self, messages: Sequence[str]) -> None:
        """Tell those who watch, and nobody else; for messages that no other statement takes along."""
        await self.database.fetch(EVENTS.notify_viewers, messages)


async def record_event(transaction: Transaction, event: StoredEvent) -> None:
    """The same as part of what the event tells of."""
    await transaction.fetch(EVENTS.record_event, *_event_columns(event))


def _event_columns(event: StoredEvent) -> tuple[object, ...]:
    return (
        event.kind,
        event.task_id,
        event.workflow_id,
        event.worker_id,
        event.claim_token,
        event.queue_name,
        json.dumps(event.evidence),
    )
