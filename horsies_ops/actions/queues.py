"""Pausing and resuming queues. A paused queue gets no new claims; tasks in flight continue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings import CustomQueueConfig
from horsies.store.operators import OPERATORS, AuditProgress, record_audit
from horsies.store.tasks import TASKS
from horsies_ops.actions.report import PAUSE_QUEUE, RESUME_QUEUE, ActionReport

if TYPE_CHECKING:
    from horsies.store.database import Transaction
    from horsies_ops.actions.session import OperatorSession
    from horsies_ops.ops import Ops


async def pause_queue(ops: Ops, queue: str, *, reason: str | None = None) -> ActionReport:
    """Stop claims from the queue until it is resumed; a queue that is already paused keeps its first pause."""
    return await _change_queue(ops.session, PAUSE_QUEUE, queue, reason)


async def resume_queue(ops: Ops, queue: str, *, reason: str | None = None) -> ActionReport:
    """Allow claims from the queue again and notify the workers that serve it."""
    return await _change_queue(ops.session, RESUME_QUEUE, queue, reason)


async def _change_queue(session: OperatorSession, action: str, queue: str, reason: str | None) -> ActionReport:
    """Change the queue and write the audit entry in one transaction."""
    validate_queue_name(queue)
    # A warning, not an error: the queue may get its first worker or task later.
    unknown = f"no live worker serves {queue} and no task is waiting in it"
    if action == PAUSE_QUEUE:
        unknown += f"; if the name is wrong, undo this with: horsies queue resume {queue}"

    async def work(transaction: Transaction) -> ActionReport:
        if action == PAUSE_QUEUE:
            affected = len(await transaction.fetch(TASKS.pause_queue, queue, session.operator.name, reason))
        else:
            affected = len(await transaction.fetch(TASKS.resume_queue, queue))
        workers_to_wake = [queue] if affected and action == RESUME_QUEUE else []
        messages = [_message(action, queue)] if affected else []
        await transaction.execute(OPERATORS.send_notifications, [], workers_to_wake, messages, [])
        is_known = await transaction.fetch_single(TASKS.is_queue_known, queue)
        entry = session.audit_entry(action, reason, {"queue": queue})
        return ActionReport(
            action=action,
            matched=1,
            affected=affected,
            skipped_count=1 - affected,
            audit_id=await record_audit(transaction, entry, AuditProgress(affected=affected, skipped=1 - affected)),
            warnings=() if is_known else (unknown,),
        )

    return await session.run(work)


def validate_queue_name(queue: str) -> None:
    """Raise ConfigurationError if `queue` cannot be the name of a queue."""
    if faults := CustomQueueConfig.try_validate({"name": queue}).err():
        raise ConfigurationError(f"invalid queue name {queue!r}: {faults[0].text}", code=ErrorCode.CLI_INVALID_ARGS)


def _message(action: str, queue: str) -> str:
    return json.dumps({"kind": action, "queue": queue, "from": None, "to": None, "count": 1, "ids": []})
