"""Sending a task by name from a process that does not have its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from horsies import JsonValue, TaskError, TaskResult  # imported at run time: the codec evaluates the annotations
from horsies.client.payload import PayloadBuilder, SendOptions, SendRejected
from horsies.errors import BrokerErrorCode, HorsiesError, raise_together
from horsies.model.settings import CustomQueueConfig
from horsies.model.task import DEFAULT_QUEUE
from horsies.registry import TaskDefinition, define_task
from horsies.registry.definition import name_faults
from horsies.store.operators import AuditProgress, record_audit
from horsies.store.tasks import TaskStore
from horsies_ops.actions.report import SEND, ActionReport

if TYPE_CHECKING:
    from horsies.store.database import Transaction
    from horsies_ops.ops import Ops


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
