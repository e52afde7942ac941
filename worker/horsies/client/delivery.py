"""Putting payloads into the queue, and what comes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from horsies.client.payload import RESEND_ALL_HINT, BulkBatches, BulkSend, lookup_hint
from horsies.client.results import BrokerTaskReader, TaskHandle
from horsies.errors import BrokerError, BrokerErrorCode, DatabaseUnreachable, HorsiesError
from horsies.model.result import Err, Ok
from horsies.model.send import (
    CompactPayload,
    SendOutcome,
    TaskSendError,
    TaskSendErrorCode,
    TaskSendPayload,
    TaskSendResult,
    to_full_payload,
)
from horsies.registry import TaskDefinition
from horsies.store.connection import UNIQUE_VIOLATION, StatementFailed
from horsies.store.database import Transaction
from horsies.store.endpoint import savepoint
from horsies.store.tasks import EnqueueResult
from horsies.sync import BRIDGE, BridgeUnavailable

if TYPE_CHECKING:
    from horsies.client.broker import BrokerSession, PostgresBroker


# Sends with an idempotency key, which may have to wait for whoever holds it.

_STATEMENT_TIMEOUT = "57014"


class IdempotencyKeyLocked(BrokerError):
    """Another open transaction held the key for as long as a send waits for it; sent again later, it may succeed."""

    def __init__(self, message: str) -> None:
        hint = "look in pg_stat_activity for a session that is idle in transaction"
        super().__init__(message, code=BrokerErrorCode.ENQUEUE_FAILED, retryable=True, hint=hint)


class KeyedSendLimiter:
    """Lets a limited number of sends with keys go on at once.

    Each that waits for its key does so on a connection of the pool; as many as there are connections would keep out
    every other send.
    """

    def __init__(self, *, limit: int, wait_s: float) -> None:
        self._turns = asyncio.Semaphore(limit)
        self._wait_s = wait_s

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[float]:
        """Wait for a turn; yields how many seconds are left to wait for the key itself."""
        ends_at = time.monotonic() + self._wait_s
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turns.acquire()
        except TimeoutError:
            text = (
                f"waited {self._wait_s:g} s behind other sends, for whose idempotency keys there are open transactions"
            )
            raise IdempotencyKeyLocked(text) from None
        try:
            yield max(ends_at - time.monotonic(), 0.001)
        finally:
            self._turns.release()


@contextmanager
def explain_key_timeout(payload: TaskSendPayload, *, wait_s: float) -> Generator[None]:
    """Say of a send that took too long what it waited for."""
    try:
        yield
    except BrokerError as error:
        if payload.idempotency_key is None or not _took_too_long(error):
            raise
        raise IdempotencyKeyLocked(
            f"no answer within {wait_s:g} s: another open transaction seems to hold the idempotency key"
            f" {payload.idempotency_key!r} of {payload.task_name}"
        ) from error


def _took_too_long(error: BrokerError) -> bool:
    is_cut_off = isinstance(error, StatementFailed) and error.sqlstate == _STATEMENT_TIMEOUT
    return is_cut_off or isinstance(error.__cause__, TimeoutError)


RESEND_PAUSES_S = (0.2, 0.4, 0.8)

A = TypeVar("A")
AnyHandle = TaskHandle[Any]
AnyPayload: TypeAlias = CompactPayload | TaskSendPayload


class Delivery(Protocol):
    """Where payloads go."""

    def deliver(self, task: TaskDefinition, send: AnyPayload) -> TaskSendResult[AnyHandle]: ...

    def deliver_async(
        self, task: TaskDefinition, send: AnyPayload, connection: object | None
    ) -> Coroutine[Any, Any, TaskSendResult[AnyHandle]]: ...

    def deliver_many(self, task: TaskDefinition, payloads: BulkSend) -> TaskSendResult[list[AnyHandle]]: ...

    async def deliver_many_async(
        self, task: TaskDefinition, payloads: BulkSend, connection: object | None
    ) -> TaskSendResult[list[AnyHandle]]: ...


class BrokerDelivery:
    """Stores payloads in the database of a broker."""

    def __init__(self, broker: PostgresBroker, results: BrokerTaskReader, *, resends: bool) -> None:
        self._broker = broker
        self._results = results
        self._pauses_s = RESEND_PAUSES_S if resends else ()

    def deliver(self, task: TaskDefinition, send: AnyPayload) -> TaskSendResult[AnyHandle]:
        try:
            return BRIDGE.run(self.deliver_async(task, send, None))
        except BridgeUnavailable as error:
            return Err(_enqueue_failed(error, to_full_payload(send)))

    def deliver_async(
        self,
        task: TaskDefinition,  # noqa: ARG002  # what is stored is all in the send
        send: AnyPayload,
        connection: object | None,
    ) -> Coroutine[Any, Any, TaskSendResult[AnyHandle]]:
        if self._pauses_s:
            return self._with_resends(lambda: self._store(send, connection), connection)
        return self._store(send, connection)

    def deliver_many(self, task: TaskDefinition, payloads: BulkSend) -> TaskSendResult[list[AnyHandle]]:
        try:
            return BRIDGE.run(self.deliver_many_async(task, payloads, None))
        except BridgeUnavailable as error:
            return Err(_enqueue_failed(error, None))

    async def deliver_many_async(
        self,
        task: TaskDefinition,  # noqa: ARG002
        payloads: BulkSend,
        connection: object | None,
    ) -> TaskSendResult[list[AnyHandle]]:
        if not payloads:
            return Ok([])
        batches = BulkBatches(payloads)
        return await self._with_resends(lambda: self._store_many(batches, connection), connection)

    async def _with_resends(
        self, store: Callable[[], Coroutine[Any, Any, TaskSendResult[A]]], connection: object | None
    ) -> TaskSendResult[A]:
        """What came of storing, which is tried again under the same ids where the app asks for that."""
        # A caller's transaction is aborted or gone after a failure: sending again is the caller's own decision.
        for pause_s in self._pauses_s if connection is None else ():
            result = await store()
            if not isinstance(result, Err) or not _may_resend(result.error):
                return result
            await asyncio.sleep(pause_s)
        return await store()

    async def _store_many(self, batches: BulkBatches, connection: object | None) -> TaskSendResult[list[AnyHandle]]:
        try:
            async with self._session_and_savepoint(connection) as (session, transaction):
                await session.tasks.enqueue_many(batches, within=transaction)
        except HorsiesError as error:
            # The ids were made for this bulk alone: rows that have them are its own, of a try whose answer was lost.
            if not _is_unique_violation(error):
                return Err(_bulk_failed(error, batches))
        return Ok([TaskHandle(task_id, self._results) for task_id in batches.bulk.ids])

    def _store(self, send: AnyPayload, connection: object | None) -> Coroutine[Any, Any, TaskSendResult[AnyHandle]]:
        if isinstance(send, CompactPayload) and connection is None:
            return self._store_compact(send)
        return self._store_full(to_full_payload(send), connection)

    async def _store_compact(self, send: CompactPayload) -> TaskSendResult[AnyHandle]:
        """The short way of most sends, once there is a session."""
        session = self._broker.ready_session()
        if session is None or not session.notify_coalescer.notifies_explicitly:
            return await self._store_full(send.full_payload, None)
        asked_at, announcements = time.monotonic(), session.notify_coalescer
        silently = announcements.may_defer(send.queue_name, send_started_at=asked_at)
        is_announced = False
        try:
            if silently:
                await session.tasks.enqueue_without_notify(send)
            else:
                is_announced = await session.tasks.enqueue_compact(send)
        except (HorsiesError, asyncio.CancelledError) as error:
            if silently:  # it may be stored: perhaps the answer was lost, or the sender gave up
                announcements.record_deferred(send.queue_name, send_started_at=asked_at)
            if isinstance(error, asyncio.CancelledError):
                raise
            if _is_unique_violation(error):
                return await self._store_full(send.full_payload, None)
            return Err(_enqueue_failed(error, send.full_payload))
        if is_announced:
            announcements.record_notified(send.queue_name, send_started_at=asked_at)
        elif silently:
            announcements.record_deferred(send.queue_name, send_started_at=asked_at)
        else:
            announcements.record_contended(send.queue_name, send_started_at=asked_at)
        return Ok(TaskHandle(send.task_id, self._results))

    async def _store_full(self, payload: TaskSendPayload, connection: object | None) -> TaskSendResult[AnyHandle]:
        try:
            if connection is None and payload.idempotency_key is None:
                sent = await self._store_in_own_transaction(payload)
            else:
                sent = await self._store_waiting(payload, connection)
        except HorsiesError as error:
            return Err(_enqueue_failed(error, payload))
        refused = send_error_for(sent.outcome, payload, sent.task_id)
        return Ok(TaskHandle(sent.task_id, self._results)) if refused is None else Err(refused)

    async def _store_waiting(self, payload: TaskSendPayload, connection: object | None) -> EnqueueResult:
        """Store where other transactions may have to be waited for, though not for ever."""
        wait_s = self._broker.key_wait_s
        with explain_key_timeout(payload, wait_s=wait_s):
            if connection is None:
                session = await self._broker.session()
                async with session.key_limiter.acquire() as left_s:
                    return await self._store_in_own_transaction(payload, timeout_s=left_s)
            async with self._session_and_savepoint(connection) as (session, transaction):
                return await session.tasks.enqueue(payload, within=transaction, timeout_s=wait_s)

    async def _store_in_own_transaction(
        self, payload: TaskSendPayload, *, timeout_s: float | None = None
    ) -> EnqueueResult:
        """Store in a transaction of its own, and see to it that workers hear of it."""
        session = await self._broker.session()
        asked_at = time.monotonic()
        sent = await session.tasks.enqueue(payload, timeout_s=timeout_s)
        if sent.is_notified:
            session.notify_coalescer.record_notified(payload.queue_name, send_started_at=asked_at)
        elif sent.is_notified is False and not payload.enqueue_delay_seconds:
            session.notify_coalescer.record_contended(payload.queue_name, send_started_at=asked_at)
        return sent

    @asynccontextmanager
    async def _session_and_savepoint(
        self, connection: object | None
    ) -> AsyncGenerator[tuple[BrokerSession, Transaction | None]]:
        """The session, and a savepoint in the caller's transaction where there is one."""
        broker = self._broker
        session = await broker.session()
        if connection is None:
            yield session, None
            return
        async with savepoint(
            connection, session.database.connection_spec, timeout_s=broker.settings.pool_timeout
        ) as transaction:
            yield session, transaction


def send_error_for(outcome: SendOutcome, payload: TaskSendPayload, task_id: str) -> TaskSendError | None:
    """Why a send that ended like this is refused; None where a task stands for it."""
    match outcome:
        case SendOutcome.STORED | SendOutcome.ALREADY_STORED | SendOutcome.DEDUPLICATED:
            return None
        case SendOutcome.PAYLOAD_MISMATCH:
            code, text = TaskSendErrorCode.PAYLOAD_MISMATCH, f"task {task_id} is stored with another payload"
        case SendOutcome.IDEMPOTENCY_KEY_CONFLICT:
            code = TaskSendErrorCode.IDEMPOTENCY_KEY_CONFLICT
            text = f"the idempotency key belongs to task {task_id}, which has other arguments"
        case SendOutcome.CONFLICT_GONE:
            code, text = TaskSendErrorCode.ENQUEUE_FAILED, "rows with the same key came and went meanwhile"
    return TaskSendError(
        code=code,
        message=text,
        retryable=outcome is SendOutcome.CONFLICT_GONE,
        task_id=payload.task_id,
        payload=payload,
    )


def _is_unique_violation(error: HorsiesError) -> bool:
    return isinstance(error, StatementFailed) and error.sqlstate == UNIQUE_VIOLATION


def _enqueue_failed(error: HorsiesError, payload: TaskSendPayload | None) -> TaskSendError:
    return TaskSendError(
        code=TaskSendErrorCode.ENQUEUE_FAILED,
        message=error.message if error.help_text is None else f"{error.message} ({error.help_text})",
        retryable=isinstance(error, BrokerError) and error.retryable,
        task_id=payload.task_id if payload else None,
        payload=payload,
        exception=error,
    )


def _bulk_failed(error: HorsiesError, batches: BulkBatches) -> TaskSendError:
    """As other failures; but sent again by the caller it would have other ids, and might be there twice."""
    failed = _enqueue_failed(error, None)
    batches.may_be_stored |= batches.is_started and isinstance(error, DatabaseUnreachable)
    if not batches.may_be_stored:
        return replace(failed, message=f"{failed.message}; {RESEND_ALL_HINT}") if failed.retryable else failed
    first = batches.bulk.ids[0]
    text = f"{failed.message}; if only the answer was lost, all are stored: {lookup_hint(first)}"
    return replace(failed, message=text, retryable=False, task_id=first)


def _may_resend(error: TaskSendError) -> bool:
    # The store knows better than the caller, who has no ids to send a bulk again; and who waited for a key has waited.
    if isinstance(error.exception, IdempotencyKeyLocked):
        return False
    return error.exception.retryable if isinstance(error.exception, BrokerError) else error.retryable
