"""Sending a task by name; pausing and resuming queues.

A paused queue gets no new claims; tasks in flight continue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from horsies import JsonValue, TaskError, TaskResult  # imported at run time: the codec evaluates the annotations
from horsies.client.payload import PayloadBuilder, SendOptions, SendRejected
from horsies.errors import BrokerErrorCode, ConfigurationError, ErrorCode, HorsiesError, raise_together
from horsies.model.settings import CustomQueueConfig
from horsies.model.task import DEFAULT_QUEUE
from horsies.registry import TaskDefinition, define_task
from horsies.registry.definition import name_faults
from horsies.store.operators import OPERATORS, AuditProgress, record_audit
from horsies.store.tasks import TASKS, TaskStore
from horsies_ops.actions.report import PAUSE_QUEUE, RESUME_QUEUE, SEND, ActionReport

if TYPE_CHECKING:
    from horsies.store.database import Transaction
    from horsies_ops.ops import OperatorSession, Ops


async def send(
    ops: Ops,
    name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    delay: timedelta | float | None = None,
    *,
    priority: int | None = None,
    reason: str | None = None,
) -> ActionReport:
    """Send a task by name, without its code: the worker that runs it validates the arguments."""
    options = SendOptions(delay=delay, priority=priority)
    try:
        payload = PayloadBuilder(unregistered_definition(name, queue), ops.settings).build(options, args, kwargs or {})
    except SendRejected as rejected:
        raise HorsiesError(f"{name}: {rejected}", code=cast("BrokerErrorCode", rejected.code)) from rejected
    task_id = UUID(payload.task_id)
    entry = ops.session.audit_entry(SEND, reason, {"name": payload.task_name, "queue": payload.queue_name})

    async def store(transaction: Transaction) -> int:
        await TaskStore(transaction).enqueue(payload)
        return await record_audit(transaction, entry, AuditProgress(affected=1, task_ids=[task_id]))

    audit_id = await ops.session.run(store)
    return ActionReport(action=SEND, matched=1, affected=1, task_ids=(task_id,), audit_id=audit_id, new_ids=(task_id,))


def unregistered_definition(name: str, queue: str | None = None) -> TaskDefinition:
    """Return a definition that accepts any JSON arguments; raises if `name` or `queue` is malformed."""
    # Checked first: the registry would report the placeholder function below as the location of the error.
    raise_together("the name of the task", name_faults(name))
    # Only an app knows which queues exist, so the name is only checked for its syntax.
    queue_name = DEFAULT_QUEUE if queue is None else CustomQueueConfig(name=queue).name
    return replace(define_task(name, _unregistered_task, {}, queues=None, location=None), queue_name=queue_name)


def _unregistered_task(*args: JsonValue, **kwargs: JsonValue) -> TaskResult[JsonValue, TaskError]:
    """Placeholder for the signature; never called."""
    raise NotImplementedError


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
