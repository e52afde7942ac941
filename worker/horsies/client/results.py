"""Reading tasks back: results, rows, and whether the database answers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast
from uuid import UUID

from horsies.client.waiter import WaitTimeout
from horsies.codec.results import AnyResult, decode_result
from horsies.codec.values import ValueCodec
from horsies.errors import BrokerError, BrokerErrorCode, HorsiesError
from horsies.model.result import BrokerOperationError, BrokerResult, DatabasePing, Err, Ok
from horsies.model.task import TaskInfo, TaskStatus, parse_id
from horsies.model.task_result import (
    BuiltInTaskCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskError,
    TaskResult,
)
from horsies.store.migrate import SCHEMA
from horsies.store.tasks import TaskResultRow, task_info
from horsies.sync import BRIDGE, BridgeUnavailable, InsideEventLoop

if TYPE_CHECKING:
    from horsies.client.broker import PostgresBroker


# From what is found in the database to the result that the caller gets.


def stored_task_result(task_id: str, row: TaskResultRow | None, ok: ValueCodec | None) -> AnyResult:
    """The result of a task that is terminal, or that there is no such task."""
    if row is None:
        return error_result(RetrievalCode.TASK_NOT_FOUND, f"there is no task {task_id}")
    if TaskStatus(row.status) is TaskStatus.CANCELLED:
        return _cancelled(task_id, row.document)
    if row.document is not None:
        return decode_result(row.document, ok)
    return error_result(RetrievalCode.RESULT_NOT_AVAILABLE, f"task {task_id} is {row.status} and has no stored result")


def _cancelled(task_id: str, document: str | None) -> AnyResult:
    """Cancelled, in the words of whoever did it; a result that a run before left behind is none."""
    stored = None if document is None else decode_result(document)
    if stored is not None and stored.is_err() and stored.err_value.error_code is OutcomeCode.TASK_CANCELLED:
        return stored
    return error_result(OutcomeCode.TASK_CANCELLED, f"task {task_id} was cancelled")


def wait_timeout_result(task_id: str, status: str, *, seen_s_ago: float = 0) -> AnyResult:
    """The time is over; how the task stood when it was last looked at, which may be a while ago."""
    when = f"when last looked at, {seen_s_ago * 1000:.0f} ms ago, it was" if seen_s_ago else "it is"
    text = f"task {task_id} has not ended in time; {when} {status}{_MEANING.get(status, '')}"
    return error_result(RetrievalCode.WAIT_TIMEOUT, text)


def unread_timeout_result(task_id: str) -> AnyResult:
    """The time is over, and the database has not said how the task stands."""
    return error_result(
        RetrievalCode.WAIT_TIMEOUT, f"the database has not said in time whether task {task_id} has ended"
    )


_MEANING: dict[str, str] = {
    TaskStatus.PENDING: ", in no worker's hands",
    TaskStatus.CLAIMED: " by a worker, and not begun",
}


def broker_error_result(error: HorsiesError) -> AnyResult:
    return error_result(OperationalErrorCode.BROKER_ERROR, error.message)


def is_final(result: AnyResult) -> bool:
    """Whether asking again can give no other answer."""
    passing = {RetrievalCode.WAIT_TIMEOUT, RetrievalCode.TASK_NOT_FOUND, OperationalErrorCode.BROKER_ERROR}
    return result.is_ok() or result.err_value.error_code not in passing


def error_result(code: BuiltInTaskCode, message: str) -> AnyResult:
    return TaskResult(err=TaskError(error_code=code, message=message))


T = TypeVar("T")


async def to_broker_result(code: BrokerErrorCode, asked: Awaitable[T]) -> BrokerResult[T]:
    """What was asked for, or the failure as a value: the one place where errors of the store become `Err`."""
    try:
        return Ok(await asked)
    except HorsiesError as error:
        retryable = isinstance(error, BrokerError) and error.retryable
        return Err(BrokerOperationError(code=code, message=error.message, retryable=retryable, exception=error))
    except ValueError as error:
        return Err(BrokerOperationError(code=code, message=str(error), exception=error))


def run_blocking(asked: Coroutine[Any, Any, BrokerResult[T]]) -> BrokerResult[T]:
    """Wait for a `BrokerResult` without an event loop; inside one, the refusal is a value too."""
    try:
        return BRIDGE.run(asked)
    except InsideEventLoop as error:
        text = f"{error.message}; {error.help_text}"
        return Err(BrokerOperationError(code=BrokerErrorCode.ASYNC_CONTEXT, message=text, exception=error))
    except BridgeUnavailable as error:
        return Err(BrokerOperationError(code=BrokerErrorCode.NO_BROKER, message=error.message, exception=error))


class BrokerTaskReader:
    """Everything about tasks that a program can ask a broker."""

    def __init__(
        self, broker: Callable[[], PostgresBroker], result_codec_for: Callable[[str], ValueCodec | None]
    ) -> None:
        self._broker = broker
        self._result_codec_for = result_codec_for

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult:
        """The task's result once it has one; what keeps it from being had is an err result."""
        timeout_s = parse_timeout(timeout_ms)
        try:
            identity = _parse_task_id(task_id)
        except ValueError as refused:  # what is no id is the id of no task
            return error_result(RetrievalCode.TASK_NOT_FOUND, str(refused))
        try:
            session = await self._broker().session()
            row = await session.task_waiters.wait(identity, timeout_s)
        except WaitTimeout as open_task:
            return wait_timeout_result(str(task_id), open_task.status, seen_s_ago=open_task.seen_s_ago)
        except TimeoutError:
            return unread_timeout_result(str(task_id))
        except HorsiesError as error:
            return broker_error_result(error)
        return stored_task_result(str(task_id), row, self._result_codec_for(row.task_name) if row else None)

    async def raw_result(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]:
        """The stored document as it is; None where there is no task or no document."""
        found = await to_broker_result(BrokerErrorCode.TASK_INFO_QUERY_FAILED, self._document(task_id))
        return found.and_then(_as_object)

    async def info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> BrokerResult[TaskInfo | None]:
        asked = self._info(
            task_id,
            include_result=include_result,
            include_failed_reason=include_failed_reason,
            include_attempts=include_attempts,
        )
        return await to_broker_result(BrokerErrorCode.TASK_INFO_QUERY_FAILED, asked)

    async def ping(self) -> BrokerResult[DatabasePing]:
        """One round trip."""
        return await to_broker_result(BrokerErrorCode.DB_PING_FAILED, self._ping())

    async def _document(self, task_id: str | UUID) -> str | None:
        identity = _parse_task_id(task_id)
        session = await self._broker().session()
        rows = await session.tasks.results([identity])
        return rows[0].document if rows else None

    async def _info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> TaskInfo | None:
        identity = _parse_task_id(task_id)
        session = await self._broker().session()
        row = await session.tasks.info(identity, with_document=include_result)
        if row is None:
            return None
        attempts = await session.tasks.attempts(identity) if include_attempts else None
        return task_info(row, attempts, include_failed_reason=include_failed_reason)

    async def _ping(self) -> DatabasePing:
        session = await self._broker().session()
        began = time.perf_counter()
        await session.database.fetch_raw(SCHEMA.server_info)
        return DatabasePing(latency_ms=(time.perf_counter() - began) * 1000)


def _parse_task_id(task_id: object) -> UUID:
    """The id as a value; `ValueError` for what is none, whatever its type."""
    return (
        task_id if isinstance(task_id, UUID) else UUID(parse_id(task_id if isinstance(task_id, str) else repr(task_id)))
    )


def parse_timeout(timeout_ms: float | None) -> float | None:
    """How long to wait, where None is for ever; anything but a number is a mistake in the program, so it is raised."""
    if timeout_ms is None:
        return None
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, (int, float)) or math.isnan(timeout_ms):
        raise ValueError(f"timeout_ms must be milliseconds or None, got {timeout_ms!r}")
    return timeout_ms / 1000


def _as_object(document: str | None) -> BrokerResult[dict[str, object] | None]:
    if document is None:
        return Ok(None)
    try:
        stored = json.loads(document)
    except ValueError:  # a number with more digits than the interpreter reads
        stored = None
    if isinstance(stored, dict):
        return Ok(cast("dict[str, object]", stored))
    text = "the stored document is no JSON object"
    return Err(BrokerOperationError(code=BrokerErrorCode.INVALID_JSON_PAYLOAD, message=text))


# A task that was sent, seen from the sender's side.

NO_BROKER = error_result(OperationalErrorCode.BROKER_ERROR, "this handle has no broker")


class TaskReader(Protocol):
    """Where results and rows of tasks are looked up."""

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult: ...

    async def raw_result(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]: ...

    async def info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> BrokerResult[TaskInfo | None]: ...


class TaskHandle(Generic[T]):
    """Waits for a task's result and looks at its row. A result that is final is asked for once and kept."""

    __slots__ = ("__weakref__", "_known", "_results", "task_id")

    def __init__(self, task_id: str, results: TaskReader | None = None, *, known: AnyResult | None = None) -> None:
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
        return run_blocking(
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
