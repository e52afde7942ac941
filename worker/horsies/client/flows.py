"""Starting runs of workflows and steering them by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from horsies.client.run_handle import WorkflowHandle
from horsies.codec.ids import IDS
from horsies.errors import BrokerError, HorsiesError
from horsies.model.ids import parse_id
from horsies.model.result import Err, Ok
from horsies.model.workflow.calls import WorkflowStartError, WorkflowStartErrorCode, WorkflowStartResult
from horsies.sync import BRIDGE, InsideEventLoop, NoBridge

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from horsies.client.broker import PostgresBroker
    from horsies.client.workflow.spec import WorkflowSpec
    from horsies.model.workflow.calls import HandleResult
    from horsies.model.workflow.plan import WorkflowPlan

T = TypeVar("T")


async def start(
    broker: PostgresBroker | None, plan: WorkflowPlan, workflow_id: str | UUID | None = None
) -> WorkflowStartResult[WorkflowHandle[Any]]:
    """Store a run of this plan; where there is a run with this id already, its handle and nothing else."""
    from horsies.flows.starting import start as start_run

    if broker is None:
        message = f"workflow {plan.name!r} has no app: make it with app.workflow(…), or give start_workflow a broker"
        return _failed(plan, WorkflowStartErrorCode.BROKER_NOT_CONFIGURED, message)
    try:
        identity = IDS.next() if workflow_id is None else UUID(parse_id(str(workflow_id)))
    except ValueError as error:
        return _failed(plan, WorkflowStartErrorCode.VALIDATION_FAILED, str(error), error)
    try:
        session = await broker.session()
        await start_run(session.database, plan, identity)
    except HorsiesError as error:
        return _failed(plan, WorkflowStartErrorCode.ENQUEUE_FAILED, error.message, error, str(identity))
    return Ok(WorkflowHandle(identity, broker))


def blocking_start(starting: Coroutine[Any, Any, WorkflowStartResult[T]], plan: WorkflowPlan) -> WorkflowStartResult[T]:
    """Wait for a start without an event loop; inside one, the refusal is a value too."""
    try:
        return BRIDGE.run(starting)
    except InsideEventLoop as error:
        text = f"{error.message}; {error.help_text}"
        return _failed(plan, WorkflowStartErrorCode.INTERNAL_FAILED, text, error)
    except NoBridge as error:
        return _failed(plan, WorkflowStartErrorCode.ENQUEUE_FAILED, error.message, error)


def start_workflow(
    spec: WorkflowSpec[T], broker: PostgresBroker, workflow_id: str | None = None
) -> WorkflowStartResult[WorkflowHandle[T]]:
    """Start a run on this broker."""
    return blocking_start(start_workflow_async(spec, broker, workflow_id), spec.plan())


async def start_workflow_async(
    spec: WorkflowSpec[T], broker: PostgresBroker, workflow_id: str | None = None
) -> WorkflowStartResult[WorkflowHandle[T]]:
    return await spec.start_on(broker, workflow_id)


async def pause_workflow(broker: PostgresBroker, workflow_id: str) -> HandleResult[bool]:
    return await WorkflowHandle[Any](workflow_id, broker).pause_async()


def pause_workflow_sync(broker: PostgresBroker, workflow_id: str) -> HandleResult[bool]:
    return WorkflowHandle[Any](workflow_id, broker).pause()


async def resume_workflow(broker: PostgresBroker, workflow_id: str) -> HandleResult[bool]:
    return await WorkflowHandle[Any](workflow_id, broker).resume_async()


def resume_workflow_sync(broker: PostgresBroker, workflow_id: str) -> HandleResult[bool]:
    return WorkflowHandle[Any](workflow_id, broker).resume()


async def cancel_workflow(broker: PostgresBroker, workflow_id: str, *, kill: bool = False) -> HandleResult[None]:
    return await WorkflowHandle[Any](workflow_id, broker).cancel_async(kill=kill)


def cancel_workflow_sync(broker: PostgresBroker, workflow_id: str, *, kill: bool = False) -> HandleResult[None]:
    return WorkflowHandle[Any](workflow_id, broker).cancel(kill=kill)


def _failed(
    plan: WorkflowPlan,
    code: WorkflowStartErrorCode,
    message: str,
    error: Exception | None = None,
    workflow_id: str | None = None,
) -> Err[WorkflowStartError]:
    return Err(
        WorkflowStartError(
            code=code,
            message=message,
            retryable=isinstance(error, BrokerError) and error.retryable,
            workflow_name=plan.name,
            workflow_id=workflow_id,
            exception=error,
        )
    )
