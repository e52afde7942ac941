"""Workflow handles: start runs, wait for them, inspect and control them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from uuid_utils.compat import uuid7

from horsies.client.broker import PostgresBroker
from horsies.client.results import (
    NotInTime,
    WaitTimeout,
    broker_error_result,
    error_result,
    parse_timeout,
    value_of,
    wait_timeout_result,
)
from horsies.client.workflow.definition import DEFINITIONS
from horsies.client.workflow.nodes import result_codec_of
from horsies.client.workflow.spec import WorkflowSpec
from horsies.codec.results import AnyResult, decode_document, decode_result
from horsies.codec.values import ValueCodec
from horsies.errors import BrokerError, HorsiesError
from horsies.model.result import Err, Ok
from horsies.model.task import parse_id
from horsies.model.task_result import (
    ContractCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskError,
    TaskResult,
)
from horsies.model.workflow.plan import (
    NodeRef,
    ValueLoader,
    WorkflowContextMissingIdError,
    WorkflowPlan,
    WorkflowStatus,
)
from horsies.model.workflow.views import (
    HandleErrorCode,
    HandleOperationError,
    HandleResult,
    WorkflowStartError,
    WorkflowStartErrorCode,
    WorkflowStartResult,
    WorkflowTaskInfo,
)
from horsies.store.database import Database
from horsies.store.queries import json_object
from horsies.store.workflows import NodeInfoRow, RunResultRow, WorkflowStore
from horsies.sync import BRIDGE, BridgeUnavailable, InsideEventLoop
from horsies.workflows import control
from horsies.workflows.control import ControlRefusal

T = TypeVar("T")
U = TypeVar("U")


class WorkflowHandle(Generic[T]):
    """Waits for a run, reads its nodes and controls it. Any process can create one from the id of the run.

    Every method has an `_async` version.
    """

    def __init__(self, workflow_id: str | UUID, broker: PostgresBroker) -> None:
        self.workflow_id = parse_id(str(workflow_id))
        self._broker = broker

    def status(self) -> HandleResult[WorkflowStatus]:
        return self._blocking(self.status_async())

    async def status_async(self) -> HandleResult[WorkflowStatus]:
        return await self._to_result(self._status())

    def get(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        """Wait until the run has finished or is paused; None waits without limit, 0 checks once."""
        return BRIDGE.run(self.get_async(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        timeout_s = parse_timeout(timeout_ms)
        try:
            session = await self._broker.session()
            session.notify_coalescer.on_wait()
            row = await session.run_waiters.wait(self.workflow_id, timeout_s)
            # A run without an output node returns a map of results, and only its nodes tell the codec of each.
            needs_nodes = row is not None and row.is_map and row.status == WorkflowStatus.COMPLETED
            nodes = await self._nodes() if needs_nodes else []
        except WaitTimeout as timeout:
            result = wait_timeout_result(f"workflow {self.workflow_id}", timeout)
        except TimeoutError:
            result = NotInTime(f"timed out before the database returned the status of workflow {self.workflow_id}")
        except HorsiesError as error:
            result = broker_error_result(error)
        else:
            result = run_result(self.workflow_id, row, nodes, self._broker.result_codec_for)
        return cast("TaskResult[T, TaskError]", result)

    def value(self, timeout_ms: int | None = None) -> T:
        """Wait for the run and return the value of its result.

        Raises `TimeoutError` if the run has not finished in time, and `ValueError` if it failed.
        """
        return value_of(self.get(timeout_ms))

    async def value_async(self, timeout_ms: int | None = None) -> T:
        return value_of(await self.get_async(timeout_ms))

    def result_for(self, node: NodeRef[U]) -> TaskResult[U, TaskError]:
        """The result of a node: RESULT_NOT_READY if it has none, WORKFLOW_NOT_FOUND if the run does not exist."""
        return BRIDGE.run(self.result_for_async(node))

    async def result_for_async(self, node: NodeRef[U]) -> TaskResult[U, TaskError]:
        node_id: str | None = None
        try:
            node_id = node.key().node_id
            result = (await self._results()).get(node_id)
        except WorkflowContextMissingIdError as error:
            result = error_result(ContractCode.WORKFLOW_CTX_MISSING_ID, f"{error.message}; {error.help_text}")
        except _ControlRefused:
            result = error_result(RetrievalCode.WORKFLOW_NOT_FOUND, f"workflow {self.workflow_id} does not exist")
        except HorsiesError as error:
            result = broker_error_result(error)
        if result is None:
            result = error_result(RetrievalCode.RESULT_NOT_READY, f"node {node_id!r} has no result")
        return cast("TaskResult[U, TaskError]", result)

    def results(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        """The results of the nodes that have one, by node id."""
        return self._blocking(self.results_async())

    async def results_async(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        return await self._to_result(self._results())

    def tasks(self) -> HandleResult[list[WorkflowTaskInfo]]:
        """The current state of the nodes, ordered by index."""
        return self._blocking(self.tasks_async())

    async def tasks_async(self) -> HandleResult[list[WorkflowTaskInfo]]:
        return await self._to_result(self._tasks())

    def pause(self) -> HandleResult[bool]:
        """Pause the run and its sub-workflows: no further task starts. Ok(False) if it is not RUNNING."""
        return self._blocking(self.pause_async())

    async def pause_async(self) -> HandleResult[bool]:
        return await self._to_result(self._control(control.pause))

    def resume(self) -> HandleResult[bool]:
        """Resume a paused run; Ok(False) if it is not PAUSED."""
        return self._blocking(self.resume_async())

    async def resume_async(self) -> HandleResult[bool]:
        return await self._to_result(self._control(control.resume))

    def cancel(self, *, kill: bool = False) -> HandleResult[None]:
        """Cancel the run and its sub-workflows. Running tasks may finish, unless `kill` is set."""
        return self._blocking(self.cancel_async(kill=kill))

    async def cancel_async(self, *, kill: bool = False) -> HandleResult[None]:
        cancelled = await self._to_result(self._control(partial(control.cancel, kill=kill)))
        return cancelled.map(lambda _: None)

    def retry_failed(self) -> HandleResult[int]:
        """Run the failed and skipped nodes of a finished run again; returns how many."""
        return self._blocking(self.retry_failed_async())

    async def retry_failed_async(self) -> HandleResult[int]:
        return await self._to_result(self._control(control.retry_failed))

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.workflow_id!r})"

    @property
    def _id(self) -> UUID:
        return UUID(self.workflow_id)

    async def _database(self) -> Database:
        return (await self._broker.session()).database

    async def _status(self) -> WorkflowStatus:
        rows = await WorkflowStore(await self._database()).run_results([self.workflow_id])
        if not rows:
            raise _ControlRefused(ControlRefusal.NOT_FOUND)
        return rows[0].status

    async def _nodes(self) -> list[NodeInfoRow]:
        return await WorkflowStore(await self._database()).node_infos(self._id)

    async def _results(self) -> dict[str, TaskResult[Any, TaskError]]:
        await self._status()  # raises if the run does not exist
        found = {node.node_id: node_result(node, self._broker.result_codec_for) for node in await self._nodes()}
        return {node_id: result for node_id, result in found.items() if result is not None}

    async def _tasks(self) -> list[WorkflowTaskInfo]:
        await self._status()  # raises if the run does not exist
        return [node_info(node, self._broker.result_codec_for) for node in await self._nodes()]

    async def _control(self, operation: Callable[[Database, UUID], Awaitable[U | ControlRefusal]]) -> U:
        return _raise_if_refused(await operation(await self._database(), self._id))

    async def _to_result(self, operation: Awaitable[U]) -> HandleResult[U]:
        """Await an operation; its errors become `Err`."""
        try:
            return Ok(await operation)
        except _ControlRefused as refused:
            message = f"workflow {self.workflow_id} {_REFUSAL_MESSAGES[refused.reason]}"
            return self._failed(HandleErrorCode(refused.reason), message)
        except HorsiesError as error:
            retryable = isinstance(error, BrokerError) and error.retryable
            return self._failed(HandleErrorCode.DB_OPERATION_FAILED, error.message, error, retryable=retryable)

    def _blocking(self, operation: Coroutine[Any, Any, HandleResult[U]]) -> HandleResult[U]:
        try:
            return BRIDGE.run(operation)
        except InsideEventLoop as error:
            return self._failed(HandleErrorCode.LOOP_RUNNER_FAILED, f"{error.message}; {error.help_text}", error)
        except BridgeUnavailable as error:
            return self._failed(HandleErrorCode.LOOP_RUNNER_FAILED, error.message, error)

    def _failed(
        self, code: HandleErrorCode, message: str, error: Exception | None = None, *, retryable: bool = False
    ) -> Err[HandleOperationError]:
        return Err(
            HandleOperationError(
                code=code, message=message, retryable=retryable, workflow_id=self.workflow_id, exception=error
            )
        )


_REFUSAL_MESSAGES = {
    ControlRefusal.NOT_FOUND: "does not exist; retention may have deleted it",
    ControlRefusal.NOT_TERMINAL: "has not finished; resume() it if it is paused, then wait for it, or cancel() it",
    ControlRefusal.NOT_ROOT: "is a sub-workflow; call retry_failed() on the root run",
}


class _ControlRefused(Exception):
    def __init__(self, reason: ControlRefusal) -> None:
        super().__init__(reason)
        self.reason = reason


def _raise_if_refused(result: U | ControlRefusal) -> U:
    if isinstance(result, ControlRefusal):
        raise _ControlRefused(result)
    return result


# Functions to start and control runs


async def start_plan(
    broker: PostgresBroker, plan: WorkflowPlan, workflow_id: str | None = None
) -> WorkflowStartResult[WorkflowHandle[Any]]:
    """Store a run of this plan; if it has a run with this id, return its handle and change nothing."""
    from horsies.workflows.start import start_run

    # Generated here and not by the database, so that `retry_start` can repeat the start under the same id.
    run_id = uuid7() if workflow_id is None else UUID(workflow_id)
    try:
        session = await broker.session()
        if not await start_run(session.database, plan, run_id):
            for existing in await WorkflowStore(session.database).run_results([str(run_id)]):
                if existing.definition_key != plan.definition_key:
                    text = f"workflow {run_id} is a run of {existing.definition_key!r}, not of {plan.definition_key!r}"
                    return _start_error(plan, WorkflowStartErrorCode.VALIDATION_FAILED, text)
    except HorsiesError as error:
        return _start_error(plan, WorkflowStartErrorCode.ENQUEUE_FAILED, error.message, error, str(run_id))
    return Ok(WorkflowHandle(run_id, broker))


def start_blocking(starting: Coroutine[Any, Any, WorkflowStartResult[T]], plan: WorkflowPlan) -> WorkflowStartResult[T]:
    """Run a start from synchronous code; a call inside an event loop is an `Err` too."""
    try:
        return BRIDGE.run(starting)
    except InsideEventLoop as error:
        text = f"{error.message}; {error.help_text}"
        return _start_error(plan, WorkflowStartErrorCode.INTERNAL_FAILED, text, error)
    except BridgeUnavailable as error:
        return _start_error(plan, WorkflowStartErrorCode.ENQUEUE_FAILED, error.message, error)


def start_workflow(
    spec: WorkflowSpec[T], broker: PostgresBroker, workflow_id: str | None = None
) -> WorkflowStartResult[WorkflowHandle[T]]:
    """Start a run of the spec on this broker."""
    return start_blocking(start_workflow_async(spec, broker, workflow_id), spec.plan())


async def start_workflow_async(
    spec: WorkflowSpec[T], broker: PostgresBroker, workflow_id: str | None = None
) -> WorkflowStartResult[WorkflowHandle[T]]:
    return await spec.start_with_broker(broker, workflow_id)


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


def _start_error(
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


# Results from stored rows

_STATUS_CODES = {
    WorkflowStatus.FAILED: OutcomeCode.WORKFLOW_FAILED,
    WorkflowStatus.CANCELLED: OutcomeCode.WORKFLOW_CANCELLED,
    WorkflowStatus.EXPIRED: OutcomeCode.WORKFLOW_EXPIRED,
}


def run_result(
    workflow_id: str,
    row: RunResultRow | None,
    nodes: Sequence[NodeInfoRow],
    result_codec_for: Callable[[str], ValueCodec | None],
) -> AnyResult:
    """The result of a terminal or paused run; WORKFLOW_NOT_FOUND if there is no row."""
    if row is None:
        return error_result(RetrievalCode.WORKFLOW_NOT_FOUND, f"workflow {workflow_id} does not exist")
    status = row.status
    if status is WorkflowStatus.PAUSED:
        stored = json_object(row.error)
        cause = f" after {stored.get('error_code')}: {stored.get('message')}" if stored else ""
        return error_result(
            OutcomeCode.WORKFLOW_PAUSED, f"workflow {workflow_id} is paused{cause}; resume() continues it"
        )
    if status is not WorkflowStatus.COMPLETED:
        if row.error is not None:
            return decode_result(f'{{"err":{row.error}}}')  # a run stores the bare error, not a result document
        return error_result(_STATUS_CODES[status], f"workflow {workflow_id} is {status}")
    if row.document is None:
        return error_result(RetrievalCode.RESULT_NOT_AVAILABLE, f"workflow {workflow_id} has no stored result")
    if row.is_map:
        return _map_result(row.document, {node.node_id: node for node in nodes}, result_codec_for)
    return decode_result(row.document, _result_codec(row.output_name, row.output_definition_key, result_codec_for))


def node_result(node: NodeInfoRow, result_codec_for: Callable[[str], ValueCodec | None]) -> AnyResult | None:
    """The result of a node; None if it has none."""
    if node.document is None:
        return None
    return decode_result(node.document, _node_codec(node, result_codec_for))


def node_info(node: NodeInfoRow, result_codec_for: Callable[[str], ValueCodec | None]) -> WorkflowTaskInfo:
    return WorkflowTaskInfo(
        node_id=node.node_id,
        index=node.task_index,
        name=node.task_name,
        status=node.status,
        task_id=None if node.task_id is None else str(node.task_id),
        sub_workflow_id=None if node.sub_workflow_id is None else str(node.sub_workflow_id),
        result=node_result(node, result_codec_for),
        started_at=node.started_at,
        completed_at=node.completed_at,
    )


def _map_result(
    document: str, nodes: Mapping[str, NodeInfoRow], result_codec_for: Callable[[str], ValueCodec | None]
) -> AnyResult:
    """The results of the leaf nodes by node id, each decoded with the codec of its task or definition."""
    stored = decode_result(document)
    if stored.is_err():
        return stored
    documents: object = stored.ok_value
    if not isinstance(documents, dict):
        text = "the stored document is not a map of results"
        return error_result(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, text)
    results: dict[str, AnyResult] = {}
    for node_id, node_document in cast("dict[str, Any]", documents).items():
        node = nodes.get(node_id)
        results[node_id] = decode_document(node_document, None if node is None else _node_codec(node, result_codec_for))
    return TaskResult(ok=results)


def _node_codec(node: NodeInfoRow, result_codec_for: Callable[[str], ValueCodec | None]) -> ValueLoader | None:
    return _result_codec(None if node.is_subworkflow else node.task_name, node.definition_key, result_codec_for)


def _result_codec(
    task_name: str | None, definition_key: str | None, result_codec_for: Callable[[str], ValueCodec | None]
) -> ValueLoader | None:
    """The codec of a task, or else of a sub-workflow; None if this process does not know it."""
    if task_name is not None:
        return result_codec_for(task_name)
    definition = None if definition_key is None else DEFINITIONS.find(definition_key)
    return None if definition is None else result_codec_of(definition)
