"""Reads the results and rows of tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast
from uuid import UUID

from horsies.codec.results import AnyResult, decode_result
from horsies.codec.values import ValueCodec
from horsies.errors import BrokerError, BrokerErrorCode, HorsiesError
from horsies.model.result import BrokerOperationError, BrokerResult, Err, Ok
from horsies.model.task import InfoParts, TaskInfo, TaskStatus, parse_id
from horsies.model.task_result import (
    BuiltInTaskCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskError,
    TaskResult,
)
from horsies.sync import BRIDGE, BridgeUnavailable, InsideEventLoop

if TYPE_CHECKING:
    from horsies.client.broker import PostgresBroker
    from horsies.store.tasks import TaskResultRow

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")


def broker_result(
    code: BrokerErrorCode,
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, CoroutineType[Any, Any, BrokerResult[T]]]]:
    """Decorator for methods: what they return becomes `Ok`; HorsiesError and ValueError become `Err` with this code."""

    def decorate(method: Callable[P, Awaitable[T]]) -> Callable[P, CoroutineType[Any, Any, BrokerResult[T]]]:
        @wraps(method)
        async def to_result(*args: P.args, **kwargs: P.kwargs) -> BrokerResult[T]:
            try:
                return Ok(await method(*args, **kwargs))
            except HorsiesError as error:
                retryable = isinstance(error, BrokerError) and error.retryable
                return Err(BrokerOperationError(code=code, message=error.message, retryable=retryable, exception=error))
            except ValueError as error:
                return Err(BrokerOperationError(code=code, message=str(error), exception=error))

        return to_result

    return decorate


class WaitTimeout(TimeoutError):
    """A wait timed out; has the status at the last read."""

    def __init__(self, status: str, *, seen_s_ago: float) -> None:
        super().__init__(status)
        self.status = status
        self.seen_s_ago = seen_s_ago


class TaskReader(Protocol):
    """Reads results and rows of tasks: `BrokerTaskReader`, or a test double."""

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult: ...

    async def raw_result(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]: ...

    async def info(self, task_id: str | UUID, **parts: Unpack[InfoParts]) -> BrokerResult[TaskInfo | None]: ...


class BrokerTaskReader:
    """Reads results and rows of tasks from the database of a broker."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult:
        """Wait until the task is terminal; timeouts and database errors are err results."""
        timeout_s = parse_timeout(timeout_ms)
        try:
            parsed_id = _parse_task_id(task_id)
        except ValueError as error:  # a malformed id cannot belong to a task
            return error_result(RetrievalCode.TASK_NOT_FOUND, str(error))
        try:
            session = await self._broker.session()
            session.notify_coalescer.on_wait()
            row = await session.task_waiters.wait(parsed_id, timeout_s)
        except WaitTimeout as timeout:
            return wait_timeout_result(f"task {task_id}", timeout)
        except TimeoutError:
            return NotInTime(f"timed out before the database returned the status of task {task_id}")
        except HorsiesError as error:
            return broker_error_result(error)
        return stored_task_result(str(task_id), row, self._broker.result_codec_for(row.task_name) if row else None)

    async def raw_result(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]:
        """The stored document, not decoded; None if there is no task or no document."""
        return (await self._document(task_id)).and_then(_as_object)

    @broker_result(BrokerErrorCode.TASK_INFO_QUERY_FAILED)
    async def info(self, task_id: str | UUID, **parts: Unpack[InfoParts]) -> TaskInfo | None:
        parsed_id = UUID(_parse_task_id(task_id))
        return await (await self._broker.session()).tasks.info(parsed_id, **parts)

    @broker_result(BrokerErrorCode.TASK_INFO_QUERY_FAILED)
    async def _document(self, task_id: str | UUID) -> str | None:
        parsed_id = _parse_task_id(task_id)
        rows = await (await self._broker.session()).tasks.results([parsed_id])
        return rows[0].document if rows else None


def run_blocking(operation: Coroutine[Any, Any, BrokerResult[T]]) -> BrokerResult[T]:
    """Run an operation from synchronous code; a call inside an event loop is an `Err` too."""
    try:
        return BRIDGE.run(operation)
    except InsideEventLoop as error:
        text = f"{error.message}; {error.help_text}"
        return Err(BrokerOperationError(code=BrokerErrorCode.ASYNC_CONTEXT, message=text, exception=error))
    except BridgeUnavailable as error:
        return Err(BrokerOperationError(code=BrokerErrorCode.NO_BROKER, message=error.message, exception=error))


def blocking(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, BrokerResult[T]]],
) -> Callable[Concatenate[S, P], BrokerResult[T]]:
    """The blocking equivalent of an `x_async` method, for callers without an event loop."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> BrokerResult[T]:
        return run_blocking(method(self, *args, **kwargs))

    run.__name__ = method.__name__.removesuffix("_async")
    run.__qualname__ = method.__qualname__.removesuffix("_async")
    return run


def parse_timeout(timeout_ms: float | None) -> float | None:
    """Milliseconds to seconds; None waits without limit. Raises ValueError for anything but a number."""
    if timeout_ms is None:
        return None
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, (int, float)) or math.isnan(timeout_ms):
        raise ValueError(f"timeout_ms must be milliseconds or None, got {timeout_ms!r}")
    return timeout_ms / 1000


def _parse_task_id(task_id: object) -> str:
    """Return the id as text in lower case; raises ValueError for anything that is not one, including other types."""
    if isinstance(task_id, UUID):
        return str(task_id)
    return parse_id(task_id if isinstance(task_id, str) else repr(task_id))


def _as_object(document: str | None) -> BrokerResult[dict[str, object] | None]:
    if document is None:
        return Ok(None)
    try:
        stored = json.loads(document)
    except (ValueError, RecursionError):  # an integer with more digits than the interpreter's limit, or deep nesting
        stored = None
    if isinstance(stored, dict):
        return Ok(cast("dict[str, object]", stored))
    text = "the stored document is not a JSON object"
    return Err(BrokerOperationError(code=BrokerErrorCode.INVALID_JSON_PAYLOAD, message=text))


# Results from stored rows and from failures to read them


def stored_task_result(task_id: str, row: TaskResultRow | None, codec: ValueCodec | None) -> AnyResult:
    """The result of a terminal task; TASK_NOT_FOUND if there is no row."""
    if row is None:
        return error_result(RetrievalCode.TASK_NOT_FOUND, f"task {task_id} does not exist")
    if row.status == TaskStatus.CANCELLED:
        stored = None if row.document is None else decode_result(row.document)
        # The stored cancellation error has the reason; a result left by an earlier attempt does not count.
        if stored is not None and stored.is_err() and stored.err_value.error_code is OutcomeCode.TASK_CANCELLED:
            return stored
        return error_result(OutcomeCode.TASK_CANCELLED, f"task {task_id} was cancelled", data={"task_id": task_id})
    if row.document is not None:
        return decode_result(row.document, codec)
    return error_result(RetrievalCode.RESULT_NOT_AVAILABLE, f"task {task_id} is {row.status} without a stored result")


_STATUS_NOTES: dict[str, str] = {
    TaskStatus.PENDING: " and not claimed by any worker",
    TaskStatus.CLAIMED: " but not started",
}


def wait_timeout_result(subject: str, timeout: WaitTimeout) -> AnyResult:
    """The result WAIT_TIMEOUT of a task or run, with the status that was read last."""
    status, seen_ms_ago = timeout.status, timeout.seen_s_ago * 1000
    status_text = f"it was {status} {seen_ms_ago:.0f} ms ago" if seen_ms_ago else f"it is {status}"
    text = f"{subject} did not finish in time; {status_text}{_STATUS_NOTES.get(status, '')}"
    return NotInTime(text)


class NotInTime(TaskResult[Any, TaskError]):
    """WAIT_TIMEOUT of this wait. A task that waited for another one may have failed with the same code."""

    __slots__ = ()

    def __init__(self, message: str) -> None:
        super().__init__(err=TaskError(error_code=RetrievalCode.WAIT_TIMEOUT, message=message))


def value_of(result: TaskResult[T, TaskError]) -> T:
    """The value of a result; raises `TimeoutError` if it did not arrive in time and `ValueError` if the task failed."""
    if isinstance(result, NotInTime):
        raise TimeoutError(f"{result.err_value.message}; call value() again to keep waiting")
    return result.ok_value


def broker_error_result(error: HorsiesError) -> AnyResult:
    return error_result(OperationalErrorCode.BROKER_ERROR, error.message)


_TRANSIENT_CODES = frozenset({RetrievalCode.TASK_NOT_FOUND, OperationalErrorCode.BROKER_ERROR})


def is_final(result: AnyResult) -> bool:
    """Whether reading again would give the same result."""
    return result.is_ok() or not (isinstance(result, NotInTime) or result.err_value.error_code in _TRANSIENT_CODES)


def error_result(code: BuiltInTaskCode, message: str, *, data: object = None) -> AnyResult:
    return TaskResult(err=TaskError(error_code=code, message=message, data=data))
