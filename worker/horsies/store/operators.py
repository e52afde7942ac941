"""Operator actions on tasks, their audit entries, and recorded events."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error, error_document
from horsies.model.events import ChangeSummary, EventRecord, TaskChange
from horsies.model.operator_actions import MAX_NAMED_TASKS, ActionTarget
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.store.claims import NO_RESTART_RESULTS
from horsies.store.queries import Query, column_values, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Executor, Transaction


REQUEUED_BY_OPERATOR: Final = "requeued by an operator"
"""Failure reason shown on the attempt; the audit entry has the details."""

_MAX_IDS_PER_KILL_MESSAGE: Final = 150
"""Task ids that fit into one kill notification: 150 quoted ids take 6,000 of its 8,000 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow(ActionTarget):
    """Current state of a task that an operator selected."""

    id: UUID
    claim_token: int
    error_code: str | None
    task_name: str
    queue_name: str
    has_run: bool
    has_live_owner: bool
    """CLAIMED or RUNNING, and its worker is neither stopped nor lost."""
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A task as shown to the operator; if its status or claim has changed since, an action skips it."""

    id: UUID
    status: str
    claim_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRow:
    """A task whose status an action changed; `new_id` is the new task of a resend."""

    id: UUID
    claim_token: int
    queue_name: str
    from_status: str
    status: str
    worker_id: UUID | None
    new_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequestedRow:
    """A running task that its owner was asked to kill."""

    id: UUID
    worker_id: UUID | None
    has_live_owner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOutcomeRow:
    """State of a task after a kill request."""

    id: UUID
    queue_name: str
    status: str
    is_still_running: bool
    is_requeued: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorQueries:
    targets: Query[TargetRow]
    server_time: Query[datetime]
    end_tasks: Query[TransitionRow]
    requeue: Query[TransitionRow]
    request_kill: Query[KillRequestedRow]
    kill_outcomes: Query[KillOutcomeRow]
    resend: Query[TransitionRow]
    send_notifications: Query[int]
    insert_audit_entry: Query[int]
    add_audit_progress: Query[int]
    record_event: Query[int]
    notify_viewers: Query[int]


OPERATORS = load_queries(OperatorQueries, "horsies.store", "operators")


# Actions on tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """How an action ends tasks: the new status and the error stored as their result."""

    kind: str
    """Kind of the change that viewers are notified of."""
    status: TaskStatus
    error: TaskError
    kill: bool = False


async def end_tasks(transaction: Transaction, targets: Sequence[Target], end: Termination) -> list[TransitionRow]:
    """End tasks; with `kill`, ask the owners of running ones to kill their processes."""
    ended = await transaction.fetch(
        OPERATORS.end_tasks,
        *_target_arrays(targets),
        end.status,
        error_document(end.error),
        end.error.error_code,
        end.error.message,
        end.kill,
    )
    # Only a hint that saves time: the owner also learns of kill_requested from its next heartbeat.
    kills = [(row.worker_id, row.id) for row in ended if row.from_status == TaskStatus.RUNNING] if end.kill else []
    await _notify(transaction, end.kind, ended, kills=kills)
    return ended


async def requeue(
    transaction: Transaction,
    targets: Sequence[Target],
    *,
    reason: str = REQUEUED_BY_OPERATOR,
    may_overlap: bool = False,
) -> list[TransitionRow]:
    """Make tasks claimable now. `may_overlap`: the processes of running ones may still be alive."""
    requeued = await transaction.fetch(
        OPERATORS.requeue, *_target_arrays(targets), reason, may_overlap, _overdue_results(reason), NO_RESTART_RESULTS
    )
    await _notify(transaction, "requeue", requeued, may_overlap=may_overlap)
    return requeued


async def request_kill(transaction: Transaction, targets: Sequence[Target]) -> list[KillRequestedRow]:
    """Ask the owners of running tasks to kill and requeue them."""
    marked = await transaction.fetch(
        OPERATORS.request_kill, [target.id for target in targets], [target.claim_token for target in targets]
    )
    # No task has changed its status yet, so only the owners are notified.
    await _notify(transaction, "requeue", (), kills=[(row.worker_id, row.id) for row in marked])
    return marked


async def kill_outcomes(transaction: Transaction, targets: Sequence[Target]) -> list[KillOutcomeRow]:
    return await transaction.fetch(
        OPERATORS.kill_outcomes, [target.id for target in targets], [target.claim_token for target in targets]
    )


async def resend(transaction: Transaction, targets: Sequence[Target], new_ids: Sequence[UUID]) -> list[TransitionRow]:
    """Insert a new task for each finished one; the old tasks stay unchanged."""
    sent = await transaction.fetch(OPERATORS.resend, *_target_arrays(targets), new_ids)
    summary = ChangeSummary()
    for row in sent:
        summary.add(
            TaskChange(kind="enqueue", queue=row.queue_name, source=None, target=TaskStatus.PENDING), [str(row.new_id)]
        )
    # Only viewers: the insert trigger notifies workers.
    await transaction.execute(OPERATORS.send_notifications, [], [], summary.drain(0.0), [])
    return sent


async def _notify(
    transaction: Transaction,
    kind: str,
    changed: Sequence[TransitionRow],
    *,
    kills: Iterable[tuple[UUID | None, UUID]] = (),
    may_overlap: bool = False,
) -> None:
    summary = ChangeSummary()
    for row in changed:
        change = TaskChange(
            kind=kind, queue=row.queue_name, source=TaskStatus(row.from_status), target=TaskStatus(row.status)
        )
        summary.add(change, [str(row.id)])
        if may_overlap and row.from_status == TaskStatus.RUNNING and row.status == TaskStatus.PENDING:
            summary.add(replace(change, kind="overlap_possible"), [str(row.id)])
    await transaction.execute(
        OPERATORS.send_notifications,
        [row.id for row in changed if TaskStatus(row.status).is_terminal],
        sorted({row.queue_name for row in changed if row.status == TaskStatus.PENDING}),
        summary.drain(0.0),
        _kill_messages(kills),
    )


def _kill_messages(kills: Iterable[tuple[UUID | None, UUID]]) -> list[str]:
    """Kill requests for (worker, task) pairs, grouped by worker."""
    by_worker: defaultdict[UUID | None, list[str]] = defaultdict(list)
    for worker_id, task_id in kills:
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


def _overdue_results(reason: str) -> str:
    """JSON results of tasks that end because their good_until has passed, by final status."""
    expired = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message=f"{reason}, past its good_until")
    failed = TaskError(error_code=OutcomeCode.OPERATOR_FAILED, message=f"{reason}, past its good_until")
    errors = {TaskStatus.EXPIRED: expired, TaskStatus.FAILED: failed}
    return canonical_json({str(status): {"err": encode_task_error(error)} for status, error in errors.items()})


def _target_arrays(targets: Sequence[Target]) -> tuple[object, ...]:
    return (
        [target.id for target in targets],
        [target.status for target in targets],
        [target.claim_token for target in targets],
    )


# Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who performs an action: name, host and interface (`cli`, `tui`, `library`)."""

    name: str
    host: str
    via: str

    @classmethod
    def current(cls, *, via: str, actor: str | None = None) -> Operator:
        """Act as `actor`, else as HORSIES_ACTOR, else as user@host."""
        host = socket.gethostname()
        return cls(name=actor or os.environ.get("HORSIES_ACTOR") or f"{_user()}@{host}", host=host, via=via)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, the user may have no name
        return str(os.getuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An action as requested: by whom, on what and why."""

    operator: Operator
    action: str
    reason: str | None
    filter: Mapping[str, object]
    matched: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProgress:
    """Result of one batch of an action. Of all batches together, MAX_NAMED_TASKS ids are stored."""

    matched: int = 0
    """Tasks found by this batch, for an action that cannot count them in advance."""
    affected: int = 0
    skipped: int = 0
    task_ids: Sequence[UUID] = ()


async def record_audit(
    transaction: Transaction, entry: AuditEntry, progress: AuditProgress, audit_id: int | None = None
) -> int:
    """Insert the audit entry of an action, or add progress to entry `audit_id`; commits with the action itself."""
    task_ids = progress.task_ids[:MAX_NAMED_TASKS]
    if audit_id is not None:
        counts = (progress.matched, progress.affected, progress.skipped)
        return await transaction.fetch_single(
            OPERATORS.add_audit_progress, audit_id, *counts, task_ids, MAX_NAMED_TASKS
        )
    operator = entry.operator
    return await transaction.fetch_single(
        OPERATORS.insert_audit_entry,
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
        task_ids,
    )


# Events


@dataclass(frozen=True, slots=True)
class EventStore:
    """Records events and notifies viewers; with a transaction, when it commits."""

    executor: Executor

    async def record(self, event: EventRecord) -> None:
        """Store an event and notify viewers."""
        await self.executor.execute(OPERATORS.record_event, *column_values(event))

    async def notify_viewers(self, messages: Sequence[str]) -> None:
        """Notify viewers of changes that no other statement sends along."""
        await self.executor.execute(OPERATORS.notify_viewers, messages)
