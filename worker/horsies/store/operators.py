"""Tasks moved by an operator's hand, each only if it still stands as it was shown."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from horsies.codec.canonical_json import canonical
from horsies.codec.results import stored_error
from horsies.model.events import Moved, Summary
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.store.claims import CANCELLED_DOCUMENTS
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.store.database import Database, Transaction


BY_AN_OPERATOR: Final = "requeued by an operator"
"""What an owner knows of a task that it was asked to stop; the audit knows the rest."""

_IDS_IN_AN_ORDER: Final = 150
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
class ActedRow:
    """A task that was moved, from where and to where; `new_id` is the task that was sent in its place."""

    id: UUID
    claim_token: int
    queue_name: str
    from_status: str
    status: str
    worker_id: UUID | None
    new_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedRow:
    """A running task whose owner has been asked to stop it."""

    id: UUID
    worker_id: UUID | None
    has_live_owner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterKillRow:
    """What became of it so far."""

    id: UUID
    queue_name: str
    status: str
    is_still_running: bool
    is_put_back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionQueries:
    targets: Query[TargetRow]
    now: Query[Instant]
    finish: Query[ActedRow]
    put_back: Query[ActedRow]
    request_kill: Query[MarkedRow]
    after_kill: Query[AfterKillRow]
    send_again: Query[ActedRow]
    tell: Query[Messages]


ACTIONS = load(ActionQueries, "horsies.store", "actions")


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How tasks are brought to an end, and what is stored as their result."""

    kind: str
    """The name of the move."""
    status: TaskStatus
    error: TaskError
    kill: bool = False


async def finish(transaction: Transaction, targets: Sequence[Target], end: End) -> list[ActedRow]:
    """End tasks; with `kill`, the owners of running ones are told to end their processes."""
    moved = await transaction.fetch(
        ACTIONS.finish,
        *_columns(targets),
        end.status,
        canonical({"err": stored_error(end.error)}),
        end.error.error_code,
        end.error.message,
        end.kill,
    )
    orders = [(row.worker_id, row.id) for row in moved if row.from_status == TaskStatus.RUNNING] if end.kill else []
    await _tell(transaction, end.kind, moved, orders=orders)
    return moved


async def put_back(
    transaction: Transaction, targets: Sequence[Target], *, why: str = BY_AN_OPERATOR, may_overlap: bool = False
) -> list[ActedRow]:
    """Make tasks claimable at once. `may_overlap`: processes of the running ones are not known to be gone."""
    moved = await transaction.fetch(
        ACTIONS.put_back, *_columns(targets), why, may_overlap, _too_late(why), CANCELLED_DOCUMENTS
    )
    await _tell(transaction, "requeue", moved, may_overlap=may_overlap)
    return moved


async def request_kill(transaction: Transaction, targets: Sequence[Target]) -> list[MarkedRow]:
    """Ask the owners of running tasks to stop them and to put them back."""
    marked = await transaction.fetch(
        ACTIONS.request_kill, [each.id for each in targets], [each.claim_token for each in targets]
    )
    await _tell(transaction, "requeue", (), orders=[(row.worker_id, row.id) for row in marked])
    return marked


async def after_kill(transaction: Transaction, targets: Sequence[Target]) -> list[AfterKillRow]:
    return await transaction.fetch(
        ACTIONS.after_kill, [each.id for each in targets], [each.claim_token for each in targets]
    )


async def send_again(transaction: Transaction, targets: Sequence[Target], new_ids: Sequence[UUID]) -> list[ActedRow]:
    """A new task for each that has ended; the old ones stay as they are."""
    sent = await transaction.fetch(ACTIONS.send_again, *_columns(targets), new_ids)
    summary = Summary()
    for row in sent:
        summary.add(
            Moved(kind="enqueue", queue=row.queue_name, source=None, target=TaskStatus.PENDING), [str(row.new_id)]
        )
    await transaction.fetch(ACTIONS.tell, [], [], summary.take(0.0), [])  # workers hear of it by the trigger
    return sent


async def _tell(
    transaction: Transaction,
    kind: str,
    moved: Sequence[ActedRow],
    *,
    orders: Iterable[tuple[UUID | None, UUID]] = (),
    may_overlap: bool = False,
) -> None:
    summary = Summary()
    for row in moved:
        move = Moved(kind=kind, queue=row.queue_name, source=TaskStatus(row.from_status), target=TaskStatus(row.status))
        summary.add(move, [str(row.id)])
        if may_overlap and row.from_status == TaskStatus.RUNNING and row.status == TaskStatus.PENDING:
            summary.add(replace(move, kind="overlap_possible"), [str(row.id)])
    await transaction.fetch(
        ACTIONS.tell,
        [row.id for row in moved if TaskStatus(row.status).is_terminal],
        sorted({row.queue_name for row in moved if row.status == TaskStatus.PENDING}),
        summary.take(0.0),
        _orders(orders),
    )


def _orders(wanted: Iterable[tuple[UUID | None, UUID]]) -> list[str]:
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
                "task_ids": ids[start : start + _IDS_IN_AN_ORDER],
            }
        )
        for worker_id, ids in by_worker.items()
        for start in range(0, len(ids), _IDS_IN_AN_ORDER)
    ]


def _too_late(why: str) -> str:
    """Results of tasks that could not start again in time, by the state that they end in."""
    expired = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message=f"{why}, past its good_until")
    failed = TaskError(error_code=OutcomeCode.OPERATOR_FAILED, message=f"{why}, past its good_until")
    ends = {TaskStatus.EXPIRED: expired, TaskStatus.FAILED: failed}
    return canonical({str(status): {"err": stored_error(error)} for status, error in ends.items()})


def _columns(targets: Sequence[Target]) -> tuple[object, ...]:
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
    begin: Query[AuditId]
    add: Query[AuditId]


AUDIT = load(AuditQueries, "horsies.store", "audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who acts: a name, the host it acts from, and the way it came (`cli`, `tui`, `library`)."""

    name: str
    host: str
    via: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """An action as it is asked for: by whom, on what, and why."""

    operator: Operator
    action: str
    reason: str | None
    filter: Mapping[str, object]
    matched: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A part of an action that has been carried out. Of the ids, the first 1,000 of the whole action are kept."""

    matched: int = 0
    """What was found on the way, for an action that does not know beforehand what it will meet."""
    affected: int = 0
    skipped: int = 0
    task_ids: Sequence[UUID] = ()


async def write_down(transaction: Transaction, deed: Deed, done: Done, audit_id: int | None = None) -> int:
    """Begin the row of an action, or add to the one that `audit_id` names; commits with what was done."""
    if audit_id is not None:
        added = (done.matched, done.affected, done.skipped, done.task_ids)
        (row,) = await transaction.fetch(AUDIT.add, audit_id, *added)
        return row.id
    operator = deed.operator
    (row,) = await transaction.fetch(
        AUDIT.begin,
        operator.name,
        operator.host,
        operator.via,
        deed.action,
        deed.reason,
        json.dumps(deed.filter),
        deed.is_dry_run,
        deed.matched + done.matched,
        done.affected,
        done.skipped,
        done.task_ids,
    )
    return row.id


# What happened: written down for operators, told to those who watch.


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
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
class Announced:
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQueries:
    record: Query[EventId]
    announce: Query[Announced]


EVENTS = load(EventQueries, "horsies.store", "events")


@dataclass(frozen=True, slots=True)
class EventStore:
    """Events of one database."""

    database: Database

    async def record(self, event: Event) -> None:
        """Write an event down, and tell those who watch."""
        await self.database.fetch(EVENTS.record, *_event_columns(event))

    async def announce(self, messages: Sequence[str]) -> None:
        """Tell those who watch, and nobody else; for messages that no other statement takes along."""
        await self.database.fetch(EVENTS.announce, messages)


async def record_within(transaction: Transaction, event: Event) -> None:
    """The same as part of what the event tells of."""
    await transaction.fetch(EVENTS.record, *_event_columns(event))


def _event_columns(event: Event) -> tuple[object, ...]:
    return (
        event.kind,
        event.task_id,
        event.workflow_id,
        event.worker_id,
        event.claim_token,
        event.queue_name,
        json.dumps(event.evidence),
    )
