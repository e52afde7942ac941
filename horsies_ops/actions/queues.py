"""Pausing and resuming queues. A paused queue gets no new claims; tasks in flight continue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings import CustomQueueConfig
from horsies.store.operators import OPERATORS, AuditEntry, AuditProgress, record_audit
from horsies.store.tasks import TASKS
from horsies_ops.actions.report import ActionReport

if TYPE_CHECKING:
    from horsies.store.database import Transaction
    from horsies_ops.actions.apply import OperatorSession

PAUSE_QUEUE, RESUME_QUEUE = "pause_queue", "resume_queue"


async def pause_queue(session: OperatorSession, queue: str, *, reason: str | None = None) -> ActionReport:
    """Stop claims from the queue until it is resumed; a queue that is already paused keeps its first pause."""

    validate_queue_name(queue)

    async def pause(transaction: Transaction) -> ActionReport:
        paused = await transaction.fetch(TASKS.pause_queue, queue, session.operator.name, reason)
        messages = [_message(PAUSE_QUEUE, queue)] if paused else []
        await transaction.execute(OPERATORS.send_notifications, [], [], messages, [])
        return await _record_and_report(transaction, session, PAUSE_QUEUE, queue, reason, affected=len(paused))

    return await session.run(pause)


async def resume_queue(session: OperatorSession, queue: str, *, reason: str | None = None) -> ActionReport:
    """Allow claims from the queue again and notify the workers that serve it."""

    validate_queue_name(queue)

    async def resume(transaction: Transaction) -> ActionReport:
        resumed = await transaction.fetch(TASKS.resume_queue, queue)
        messages = [_message(RESUME_QUEUE, queue)] if resumed else []
        await transaction.execute(OPERATORS.send_notifications, [], resumed, messages, [])
        return await _record_and_report(transaction, session, RESUME_QUEUE, queue, reason, affected=len(resumed))

    return await session.run(resume)


async def _record_and_report(
    transaction: Transaction, session: OperatorSession, action: str, queue: str, reason: str | None, *, affected: int
) -> ActionReport:
    is_known = await transaction.fetch_single(TASKS.is_queue_known, queue)
    entry = AuditEntry(operator=session.operator, action=action, reason=reason, filter={"queue": queue}, matched=1)
    audit_id = await record_audit(transaction, entry, AuditProgress(affected=affected, skipped=1 - affected))
    # A warning, not an error: the queue may get its first worker or task later.
    unknown = f"no live worker serves {queue} and no task is waiting in it"
    if action == PAUSE_QUEUE:
        unknown += f"; if the name is wrong, undo this with: horsies queue resume {queue}"
    return ActionReport(
        action=action,
        matched=1,
        affected=affected,
        skipped_count=1 - affected,
        audit_id=audit_id,
        warnings=() if is_known else (unknown,),
    )


def validate_queue_name(queue: str) -> None:
    """Raise ConfigurationError if `queue` cannot be the name of a queue."""
    if faults := CustomQueueConfig.try_validate({"name": queue}).err():
        raise ConfigurationError(f"invalid queue name {queue!r}: {faults[0].text}", code=ErrorCode.CLI_INVALID_ARGS)


def _message(action: str, queue: str) -> str:
    return json.dumps({"kind": action, "queue": queue, "from": None, "to": None, "count": 1, "ids": []})
