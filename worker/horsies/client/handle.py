"""A task that was sent, seen from the sender's side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from horsies.client.outcome import failed, is_final
from horsies.client.results import blocking
from horsies.errors import BrokerErrorCode
from horsies.model.broker import BrokerOperationError, BrokerResult
from horsies.model.codes import OperationalErrorCode
from horsies.model.result import Err
from horsies.sync import BRIDGE

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.codec.result import AnyResult
    from horsies.model.info import TaskInfo
    from horsies.model.task_error import TaskError
    from horsies.model.task_result import TaskResult

T = TypeVar("T")

NO_BROKER = failed(OperationalErrorCode.BROKER_ERROR, "this handle has no broker")


class TaskReads(Protocol):
    """Where results and rows of tasks are looked up."""

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult: ...

    async def raw_result(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]: ...

    async def info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> BrokerResult[TaskInfo | None]: ...


class TaskHandle(Generic[T]):
    """Waits for a task's result and looks at its row. A result that is final is asked for once and kept."""

    __slots__ = ("__weakref__", "_known", "_results", "task_id")

    def __init__(self, task_id: str, results: TaskReads | None = None, *, known: AnyResult | None = None) -> None:
        self.task_id = task_id
        self._results = results
        self._known = known

    def get(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        """Wait for the result; None waits for ever, 0 looks once. Always a `TaskResult`, also when waiting fails."""
        if self._known is not None:
            return self._typed(self._known)
        return BRIDGE.run(self.get_async(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        if self._known is None:
            result = NO_BROKER if self._results is None else await self._results.result(self.task_id, timeout_ms)
            if not is_final(result):
                return self._typed(result)
            self._known = result
        return self._typed(self._known)

    def info(
        self, *, include_result: bool = False, include_failed_reason: bool = False, include_attempts: bool = False
    ) -> BrokerResult[TaskInfo | None]:
        """The task's row as it stands; None where there is none."""
        return blocking(
            self.info_async(
                include_result=include_result,
                include_failed_reason=include_failed_reason,
                include_attempts=include_attempts,
            )
        )

    async def info_async(
        self, *, include_result: bool = False, include_failed_reason: bool = False, include_attempts: bool = False
    ) -> BrokerResult[TaskInfo | None]:
        if self._results is None:
            return Err(BrokerOperationError(code=BrokerErrorCode.NO_BROKER, message="this handle has no broker"))
        return await self._results.info(
            self.task_id,
            include_result=include_result,
            include_failed_reason=include_failed_reason,
            include_attempts=include_attempts,
        )

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"

    def _typed(self, result: AnyResult) -> TaskResult[T, TaskError]:
        # The value was read by the declared type's own adapter, so this is true wherever the task is registered.
        return cast("TaskResult[T, TaskError]", result)
