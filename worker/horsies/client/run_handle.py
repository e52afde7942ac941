"""A run of a workflow, seen from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from uuid import UUID

from horsies.client.outcome import failed, unreachable
from horsies.client.results import seconds
from horsies.client.run_results import node_info, node_result, run_result
from horsies.errors import BrokerError, HorsiesError
from horsies.flows import control
from horsies.flows.control import Refusal
from horsies.model.codes import RetrievalCode
from horsies.model.ids import parse_id
from horsies.model.result import Err, Ok
from horsies.model.workflow.calls import HandleErrorCode, HandleOperationError, HandleResult
from horsies.model.workflow.status import WorkflowStatus
from horsies.store.flow_reads import FlowReadStore
from horsies.sync import BRIDGE, InsideEventLoop, NoBridge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from horsies.client.broker import PostgresBroker
    from horsies.model.task_error import TaskError
    from horsies.model.task_result import TaskResult
    from horsies.model.workflow.info import WorkflowTaskInfo
    from horsies.model.workflow.names import Keyed
    from horsies.store.db import Database
    from horsies.store.flow_reads import NodeInfoRow

T = TypeVar("T")
U = TypeVar("U")


class WorkflowHandle(Generic[T]):
    """Waits for a run, looks at its nodes and steers it. Any process may make one from the id of the run.

    Every call has an `_async` twin.
    """

    def __init__(self, workflow_id: str | UUID, broker: PostgresBroker) -> None:
        self.workflow_id = parse_id(str(workflow_id))
        self._broker = broker

    def status(self) -> HandleResult[WorkflowStatus]:
        return self._blocking(self.status_async())

    async def status_async(self) -> HandleResult[WorkflowStatus]:
        return await self._answered(self._status())

    def get(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        """The result of the run once it has ended or is paused; None waits for ever, 0 looks once."""
        return BRIDGE.run(self.get_async(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        timeout_s = seconds(timeout_ms)
        try:
            session = await self._broker.session()
            row = await session.runs.until_settled(self._id, timeout_s)
            needs_nodes = row is not None and row.is_map and row.status == WorkflowStatus.COMPLETED
            nodes = await self._nodes() if needs_nodes else []
        except TimeoutError:
            result = failed(RetrievalCode.WAIT_TIMEOUT, f"workflow {self.workflow_id} has not ended in time")
        except HorsiesError as error:
            result = unreachable(error)
        else:
            result = run_result(self.workflow_id, row, nodes, self._broker.ok_of)
        return cast("TaskResult[T, TaskError]", result)

    def result_for(self, node: Keyed[U]) -> TaskResult[U, TaskError]:
        """What a node ended with; RESULT_NOT_READY while it has not, and where it never ran.

        WORKFLOW_NOT_FOUND where there is no such run.
        """
        return BRIDGE.run(self.result_for_async(node))

    async def result_for_async(self, node: Keyed[U]) -> TaskResult[U, TaskError]:
        node_id = node.key().node_id
        try:
            result = (await self._results()).get(node_id)
        except _Refused:
            result = failed(RetrievalCode.WORKFLOW_NOT_FOUND, f"there is no workflow {self.workflow_id}")
        except HorsiesError as error:
            result = unreachable(error)
        if result is None:
            result = failed(RetrievalCode.RESULT_NOT_READY, f"node {node_id!r} has no result")
        return cast("TaskResult[U, TaskError]", result)

    def results(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        """The results of the nodes that have one, by node id."""
        return self._blocking(self.results_async())

    async def results_async(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        return await self._answered(self._results())

    def tasks(self) -> HandleResult[list[WorkflowTaskInfo]]:
        """The nodes as they stand, by index."""
        return self._blocking(self.tasks_async())

    async def tasks_async(self) -> HandleResult[list[WorkflowTaskInfo]]:
        return await self._answered(self._tasks())

    def pause(self) -> HandleResult[bool]:
        """Stop starting tasks of the run and of those below it; Ok(False) where it was not RUNNING."""
        return self._blocking(self.pause_async())

    async def pause_async(self) -> HandleResult[bool]:
        return await self._answered(self._steered(control.pause))

    def resume(self) -> HandleResult[bool]:
        """Let a paused run go on; Ok(False) where it was not PAUSED."""
        return self._blocking(self.resume_async())

    async def resume_async(self) -> HandleResult[bool]:
        return await self._answered(self._steered(control.resume))

    def cancel(self, *, kill: bool = False) -> HandleResult[None]:
        """End the run and those below it. Code that runs may finish, unless it is to be killed."""
        return self._blocking(self.cancel_async(kill=kill))

    async def cancel_async(self, *, kill: bool = False) -> HandleResult[None]:
        return await self._answered(self._cancelled(kill=kill))

    def retry_failed(self) -> HandleResult[int]:
        """Begin again what failed or was skipped in a run that has ended; returns how many nodes that are."""
        return self._blocking(self.retry_failed_async())

    async def retry_failed_async(self) -> HandleResult[int]:
        return await self._answered(self._retried())

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.workflow_id!r})"

    @property
    def _id(self) -> UUID:
        return UUID(self.workflow_id)

    async def _database(self) -> Database:
        return (await self._broker.session()).database

    async def _status(self) -> WorkflowStatus:
        rows = await FlowReadStore(await self._database()).outcomes([self._id])
        if not rows:
            raise _Refused(Refusal.NOT_FOUND)
        return WorkflowStatus(rows[0].status)

    async def _nodes(self) -> list[NodeInfoRow]:
        return await FlowReadStore(await self._database()).nodes(self._id)

    async def _results(self) -> dict[str, TaskResult[Any, TaskError]]:
        await self._status()
        found = {node.node_id: node_result(node, self._broker.ok_of) for node in await self._nodes()}
        return {node_id: result for node_id, result in found.items() if result is not None}

    async def _tasks(self) -> list[WorkflowTaskInfo]:
        await self._status()
        return [node_info(node, self._broker.ok_of) for node in await self._nodes()]

    async def _steered(self, steer: Any) -> bool:
        return _unless_refused(await steer(await self._database(), self._id))

    async def _cancelled(self, *, kill: bool) -> None:
        _unless_refused(await control.cancel(await self._database(), self._id, kill=kill))

    async def _retried(self) -> int:
        return _unless_refused(await control.retry_failed(await self._database(), self._id))

    async def _answered(self, asked: Awaitable[U]) -> HandleResult[U]:
        """What was asked for, or why it could not be had: the one place where errors become `Err`."""
        try:
            return Ok(await asked)
        except _Refused as refused:
            return self._failed(HandleErrorCode(refused.why), f"workflow {self.workflow_id}: {_WORDS[refused.why]}")
        except HorsiesError as error:
            retryable = isinstance(error, BrokerError) and error.retryable
            return self._failed(HandleErrorCode.DB_OPERATION_FAILED, error.message, error, retryable=retryable)

    def _blocking(self, asked: Coroutine[Any, Any, HandleResult[U]]) -> HandleResult[U]:
        try:
            return BRIDGE.run(asked)
        except InsideEventLoop as error:
            return self._failed(HandleErrorCode.LOOP_RUNNER_FAILED, f"{error.message}; {error.help_text}", error)
        except NoBridge as error:
            return self._failed(HandleErrorCode.LOOP_RUNNER_FAILED, error.message, error)

    def _failed(
        self, code: HandleErrorCode, message: str, error: Exception | None = None, *, retryable: bool = False
    ) -> Err[HandleOperationError]:
        return Err(
            HandleOperationError(
                code=code, message=message, retryable=retryable, workflow_id=self.workflow_id, exception=error
            )
        )


_WORDS = {
    Refusal.NOT_FOUND: "there is none, or no longer: retention deletes what ended long ago",
    Refusal.NOT_TERMINAL: "it has not ended; resume() it where it is paused, and wait for its end, or cancel() it",
    Refusal.NOT_ROOT: "it is a step of another run; retry_failed() of the root begins it again too",
}


class _Refused(Exception):
    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why


def _unless_refused(answer: U | Refusal) -> U:
    if isinstance(answer, Refusal):
        raise _Refused(answer)
    return answer
