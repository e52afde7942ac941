"""Reading tasks back: results, rows, and whether the database answers."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from horsies.client.outcome import failed, no_look, not_yet, result_of, unreachable
from horsies.client.waiting import StillOpen
from horsies.errors import BrokerError, BrokerErrorCode, HorsiesError
from horsies.model.broker import BrokerOperationError, BrokerResult, DatabasePing
from horsies.model.codes import RetrievalCode
from horsies.model.ids import parse_id
from horsies.model.result import Err, Ok
from horsies.store.infos import task_info
from horsies.store.migrate import SCHEMA
from horsies.sync import BRIDGE, InsideEventLoop, NoBridge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from horsies.client.broker import PostgresBroker
    from horsies.codec.result import AnyResult
    from horsies.codec.value import Value
    from horsies.model.info import TaskInfo

T = TypeVar("T")


async def answered(code: BrokerErrorCode, asked: Awaitable[T]) -> BrokerResult[T]:
    """What was asked for, or the failure as a value: the one place where errors of the store become `Err`."""
    try:
        return Ok(await asked)
    except HorsiesError as error:
        retryable = isinstance(error, BrokerError) and error.retryable
        return Err(BrokerOperationError(code=code, message=error.message, retryable=retryable, exception=error))
    except ValueError as error:
        return Err(BrokerOperationError(code=code, message=str(error), exception=error))


def blocking(asked: Coroutine[Any, Any, BrokerResult[T]]) -> BrokerResult[T]:
    """Wait for a `BrokerResult` without an event loop; inside one, the refusal is a value too."""
    try:
        return BRIDGE.run(asked)
    except InsideEventLoop as error:
        text = f"{error.message}; {error.help_text}"
        return Err(BrokerOperationError(code=BrokerErrorCode.ASYNC_CONTEXT, message=text, exception=error))
    except NoBridge as error:
        return Err(BrokerOperationError(code=BrokerErrorCode.NO_BROKER, message=error.message, exception=error))


class Results:
    """Everything about tasks that a program can ask a broker."""

    def __init__(self, broker: Callable[[], PostgresBroker], ok_of: Callable[[str], Value | None]) -> None:
        self._broker = broker
        self._ok_of = ok_of

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult:
        """The task's result once it has one; what keeps it from being had is an err result."""
        timeout_s = seconds(timeout_ms)
        try:
            identity = _identity(task_id)
        except ValueError as refused:  # what is no id is the id of no task
            return failed(RetrievalCode.TASK_NOT_FOUND, str(refused))
        try:
            session = await self._broker().session()
            row = await session.waiters.until_settled(identity, timeout_s)
        except StillOpen as open_task:
            return not_yet(str(task_id), open_task.status, seen_s_ago=open_task.seen_s_ago)
        except TimeoutError:
            return no_look(str(task_id))
        except HorsiesError as error:
            return unreachable(error)
        return result_of(str(task_id), row, self._ok_of(row.task_name) if row else None)

    async def raw_result(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]:
        """The stored document as it is; None where there is no task or no document."""
        found = await answered(BrokerErrorCode.TASK_INFO_QUERY_FAILED, self._document(task_id))
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
        return await answered(BrokerErrorCode.TASK_INFO_QUERY_FAILED, asked)

    async def ping(self) -> BrokerResult[DatabasePing]:
        """One round trip."""
        return await answered(BrokerErrorCode.DB_PING_FAILED, self._ping())

    async def _document(self, task_id: str | UUID) -> str | None:
        identity = _identity(task_id)
        session = await self._broker().session()
        rows = await session.tasks.outcomes([identity])
        return rows[0].document if rows else None

    async def _info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> TaskInfo | None:
        identity = _identity(task_id)
        session = await self._broker().session()
        row = await session.tasks.info(identity, with_document=include_result)
        if row is None:
            return None
        attempts = await session.tasks.attempts(identity) if include_attempts else None
        return task_info(row, attempts, include_failed_reason=include_failed_reason)

    async def _ping(self) -> DatabasePing:
        session = await self._broker().session()
        began = time.perf_counter()
        await session.database.fetch_raw(SCHEMA.server)
        return DatabasePing(latency_ms=(time.perf_counter() - began) * 1000)


def _identity(task_id: object) -> UUID:
    """The id as a value; `ValueError` for what is none, whatever its type."""
    return (
        task_id if isinstance(task_id, UUID) else UUID(parse_id(task_id if isinstance(task_id, str) else repr(task_id)))
    )


def seconds(timeout_ms: float | None) -> float | None:
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
