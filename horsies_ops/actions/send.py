"""Sending a task by its name, by a hand that does not have its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from horsies import JsonValue, TaskError, TaskResult  # the codec reads the annotations
from horsies.client.payload import PayloadBuilder, SendOptions
from horsies.errors import BrokerErrorCode, HorsiesError, raise_together
from horsies.model.result import Err
from horsies.model.send import TaskSendPayload, to_full_payload
from horsies.model.settings import AppConfig, CustomQueueConfig
from horsies.model.task import DEFAULT_QUEUE
from horsies.registry import TaskDefinition, define_task
from horsies.registry.definition import name_faults
from horsies.store.operators import AuditEntry, AuditProgress, record_audit
from horsies.store.tasks import TaskStore
from horsies_ops.actions.report import ActionReport

if TYPE_CHECKING:
    from horsies.store.database import Transaction
    from horsies_ops.actions.apply import OperatorSession

SEND = "send"


def unregistered_definition(name: str, queue: str | None = None) -> TaskDefinition:
    """Stands for a task whose code is elsewhere: takes whatever is plain JSON; a wrong name is refused."""
    # Asked for beforehand, since the registry would blame the line where the stand-in is written.
    raise_together("the name of the task", name_faults(name))
    # Which queues there are is for the app to say; without one, only what can be no queue's name is refused.
    bound_for = DEFAULT_QUEUE if queue is None else CustomQueueConfig(name=queue).name
    return replace(define_task(name, _unregistered_task, {}, queues=None, location=None), queue_name=bound_for)


def _unregistered_task(*args: JsonValue, **kwargs: JsonValue) -> TaskResult[JsonValue, TaskError]:
    """Never run."""
    raise NotImplementedError


async def send(
    session: OperatorSession,
    config: AppConfig,
    name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    queue: str | None = None,
    delay: timedelta | float | None = None,
    priority: int | None = None,
    reason: str | None = None,
) -> ActionReport:
    """Store a task with arguments as they are given; nobody checks them before a worker does."""
    options = SendOptions(delay=delay, priority=priority)
    moulded = PayloadBuilder(unregistered_definition(name, queue), config).build(options, args, kwargs or {})
    if isinstance(moulded, Err):
        raise HorsiesError(moulded.error.message, code=cast("BrokerErrorCode", moulded.error.code))
    payload = to_full_payload(moulded)
    task_id = UUID(payload.task_id)

    async def store(transaction: Transaction) -> int:
        await TaskStore(session.database).enqueue(payload, transaction=transaction)
        return await record_audit(
            transaction, _audit_entry(session, payload, reason), AuditProgress(affected=1, task_ids=[task_id])
        )

    audit_id = await session.run(store)
    return ActionReport(action=SEND, matched=1, affected=1, task_ids=(task_id,), audit_id=audit_id, new_ids=(task_id,))


def _audit_entry(session: OperatorSession, payload: TaskSendPayload, reason: str | None) -> AuditEntry:
    sent = {"name": payload.task_name, "queue": payload.queue_name}
    return AuditEntry(operator=session.operator, action=SEND, reason=reason, filter=sent, matched=1)
