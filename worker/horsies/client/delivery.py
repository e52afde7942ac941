"""Stores payloads in the database and turns the outcome into a send result.

Handles resends after lost connections, sends on the caller's transaction and waits for contended idempotency keys.
"""

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

RESEND_PAUSES_S = (0.2, 0.4, 0.8)
"""Pauses before each resend, if the app enables resends."""
STATEMENT_TIMEOUT = "57014"
"""SQLSTATE query_canceled: what the server reports when statement_timeout expires."""

A = TypeVar("A")
AnyHandle = TaskHandle[Any]
AnyPayload: TypeAlias = CompactPayload | TaskSendPayload


class Delivery(Protocol):
    """Stores the payloads of sends: `BrokerDelivery`, or a test double."""

    def deliver(self, task: TaskDefinition, payload: AnyPayload) -> TaskSendResult[AnyHandle]: ...

    def deliver_async(
        self, task: TaskDefinition, payload: AnyPayload, connection: object | None
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
        self._resend_pauses_s = RESEND_PAUSES_S if resends else ()

    def deliver(self, task: TaskDefinition, payload: AnyPayload) -> TaskSendResult[AnyHandle]:
        try:
            return BRIDGE.run(self.deliver_async(task, payload, None))
        except BridgeUnavailable as error:
            return Err(_enqueue_failed(error, to_full_payload(payload)))

    def deliver_async(
        self,
        task: TaskDefinition,  # noqa: ARG002  # used by inline delivery only; the payload is all that is stored
        payload: AnyPayload,
        connection: object | None,
    ) -> Coroutine[Any, Any, TaskSendResult[AnyHandle]]:
        if self._resend_pauses_s:
            return self._with_resends(lambda: self._store(payload, connection), connection)
        return self._store(payload, connection)

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
        """Store, and on a transient failure store again under the same ids, if the app enables resends."""
        # The caller's transaction is aborted or gone after a failure, so only the caller can send again.
        for pause_s in self._resend_pauses_s if connection is None else ():
            result = await store()
            if not isinstance(result, Err) or not _may_resend(result.error):
                return result
            await asyncio.sleep(pause_s)
        return await store()

    async def _store_many(self, batches: BulkBatches, connection: object | None) -> TaskSendResult[list[AnyHandle]]:
        try:
            async with self._session_and_savepoint(connection) as (session, transaction):
                await session.tasks.enqueue_many(batches, transaction=transaction)
        except HorsiesError as error:
            # The ids are unique to this bulk send: if they exist, an earlier attempt committed and its answer was lost.
            if not _is_unique_violation(error):
                return Err(_bulk_failed(error, batches))
        return Ok([TaskHandle(task_id, self._results) for task_id in batches.bulk.ids])

    def _store(self, payload: AnyPayload, connection: object | None) -> Coroutine[Any, Any, TaskSendResult[AnyHandle]]:
        if isinstance(payload, CompactPayload) and connection is None:
            return self._store_compact(payload)
        return self._store_full(to_full_payload(payload), connection)

    async def _store_compact(self, payload: CompactPayload) -> TaskSendResult[AnyHandle]:
        """Fast path: one prepared INSERT without a conflict check. Needs an open session without the insert trigger."""
        session = self._broker.ready_session()
        if session is None or not session.notify_coalescer.notifies_explicitly:
            return await self._store_full(payload.full_payload, None)
        # Taken before the INSERT: the notification of this send covers only tasks stored before it.
        send_started_at, coalescer = time.monotonic(), session.notify_coalescer
        is_deferred = coalescer.may_defer(payload.queue_name, send_started_at=send_started_at)
        is_notified = False
        try:
            if is_deferred:
                await session.tasks.enqueue_without_notify(payload)
            else:
                is_notified = await session.tasks.enqueue_compact(payload)
        except (HorsiesError, asyncio.CancelledError) as error:
            if is_deferred:  # it may have been stored before the connection was lost or the caller cancelled
                coalescer.record_deferred(payload.queue_name, send_started_at=send_started_at)
            if isinstance(error, asyncio.CancelledError):
                raise
            if _is_unique_violation(error):  # a resend: `_store_full` compares it with the stored row
                return await self._store_full(payload.full_payload, None)
            return Err(_enqueue_failed(error, payload.full_payload))
        if is_notified:
            coalescer.record_notified(payload.queue_name, send_started_at=send_started_at)
        elif is_deferred:
            coalescer.record_deferred(payload.queue_name, send_started_at=send_started_at)
        else:
            coalescer.record_contended(payload.queue_name, send_started_at=send_started_at)
        return Ok(TaskHandle(payload.task_id, self._results))

    async def _store_full(self, payload: TaskSendPayload, connection: object | None) -> TaskSendResult[AnyHandle]:
        """Store any payload, with a conflict check."""
        try:
            if connection is None and payload.idempotency_key is None:
                enqueued = await self._store_in_own_transaction(payload)
            else:
                enqueued = await self._store_with_lock_wait(payload, connection)
        except HorsiesError as error:
            return Err(_enqueue_failed(error, payload))
        send_error = send_error_for(enqueued.outcome, payload, enqueued.task_id)
        return Ok(TaskHandle(enqueued.task_id, self._results)) if send_error is None else Err(send_error)

    async def _store_with_lock_wait(self, payload: TaskSendPayload, connection: object | None) -> EnqueueResult:
        """Store a payload that may wait for another open transaction with the same idempotency key, up to a limit."""
        wait_s = self._broker.key_wait_s
        with explain_key_timeout(payload, wait_s=wait_s):
            if connection is None:
                session = await self._broker.session()
                async with session.key_limiter.acquire() as remaining_s:
                    return await self._store_in_own_transaction(payload, timeout_s=remaining_s)
            async with self._session_and_savepoint(connection) as (session, transaction):
                return await session.tasks.enqueue(payload, transaction=transaction, timeout_s=wait_s)

    async def _store_in_own_transaction(
        self, payload: TaskSendPayload, *, timeout_s: float | None = None
    ) -> EnqueueResult:
        session = await self._broker.session()
        send_started_at = time.monotonic()
        enqueued = await session.tasks.enqueue(payload, timeout_s=timeout_s)
        if enqueued.is_notified:
            session.notify_coalescer.record_notified(payload.queue_name, send_started_at=send_started_at)
        # None: nothing was stored. A delayed task needs no notification: workers poll for tasks that become due.
        elif enqueued.is_notified is False and not payload.enqueue_delay_seconds:
            session.notify_coalescer.record_contended(payload.queue_name, send_started_at=send_started_at)
        return enqueued

    @asynccontextmanager
    async def _session_and_savepoint(
        self, connection: object | None
    ) -> AsyncGenerator[tuple[BrokerSession, Transaction | None]]:
        """The session, and a savepoint in the caller's transaction if there is one."""
        broker = self._broker
        session = await broker.session()
        if connection is None:
            yield session, None
            return
        async with savepoint(
            connection, session.database.connection_spec, timeout_s=broker.settings.pool_timeout
        ) as transaction:
            yield session, transaction


# Send errors


def send_error_for(outcome: SendOutcome, payload: TaskSendPayload, task_id: str) -> TaskSendError | None:
    """The error for this outcome; None if the task is stored, now or by an earlier send."""
    match outcome:
        case SendOutcome.STORED | SendOutcome.ALREADY_STORED | SendOutcome.DEDUPLICATED:
            return None
        case SendOutcome.PAYLOAD_MISMATCH:
            code, text = TaskSendErrorCode.PAYLOAD_MISMATCH, f"task {task_id} is already stored with another payload"
        case SendOutcome.IDEMPOTENCY_KEY_CONFLICT:
            code = TaskSendErrorCode.IDEMPOTENCY_KEY_CONFLICT
            text = f"the idempotency key belongs to task {task_id}, which has different arguments"
        case SendOutcome.CONFLICT_GONE:
            code = TaskSendErrorCode.ENQUEUE_FAILED
            text = "a conflicting task with the same key was deleted during the send"
    return TaskSendError(
        code=code,
        message=text,
        retryable=outcome is SendOutcome.CONFLICT_GONE,
        task_id=payload.task_id,
        payload=payload,
    )


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
    """Not retryable if the answer was lost: the caller's retry would get new ids and might store everything twice."""
    failed = _enqueue_failed(error, None)
    batches.may_be_stored |= batches.is_started and isinstance(error, DatabaseUnreachable)
    if not batches.may_be_stored:
        return replace(failed, message=f"{failed.message}; {RESEND_ALL_HINT}") if failed.retryable else failed
    first_id = batches.bulk.ids[0]
    text = f"{failed.message}; all or none of the tasks are stored: {lookup_hint(first_id)}"
    return replace(failed, message=text, retryable=False, task_id=first_id)


def _may_resend(error: TaskSendError) -> bool:
    if isinstance(error.exception, IdempotencyKeyLocked):
        return False  # the send already waited for the key as long as it may
    # Use the store's error: `retryable` of a failed bulk send is meant for the caller, who cannot reuse its ids.
    return error.exception.retryable if isinstance(error.exception, BrokerError) else error.retryable


def _is_unique_violation(error: HorsiesError) -> bool:
    return isinstance(error, StatementFailed) and error.sqlstate == UNIQUE_VIOLATION


# Contended idempotency keys


class IdempotencyKeyLocked(BrokerError):
    """Another open transaction held the key for the whole wait; a later send may succeed."""

    def __init__(self, message: str) -> None:
        hint = "look in pg_stat_activity for a session that is idle in transaction"
        super().__init__(message, code=BrokerErrorCode.ENQUEUE_FAILED, retryable=True, hint=hint)


class KeyedSendLimiter:
    """Limits the number of concurrent sends with idempotency keys.

    A send that waits for its key occupies a pooled connection; without a limit, such sends could block all others.
    """

    def __init__(self, *, limit: int, wait_s: float) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._wait_s = wait_s

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[float]:
        """Wait for a slot; yields the seconds that remain to wait for the key itself."""
        deadline = time.monotonic() + self._wait_s
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire()
        except TimeoutError:
            text = f"waited {self._wait_s:g} s behind sends whose idempotency keys are held by open transactions"
            raise IdempotencyKeyLocked(text) from None
        try:
            yield max(deadline - time.monotonic(), 0.001)  # behind a pooler, 0 would select the default timeout
        finally:
            self._slots.release()


@contextmanager
def explain_key_timeout(payload: TaskSendPayload, *, wait_s: float) -> Generator[None]:
    """Turn the timeout of a send with an idempotency key into `IdempotencyKeyLocked`."""
    try:
        yield
    except BrokerError as error:
        # Either timer may fire first: the server's statement_timeout, or the driver's, which is the cause of the error.
        is_statement_timeout = isinstance(error, StatementFailed) and error.sqlstate == STATEMENT_TIMEOUT
        is_timeout = is_statement_timeout or isinstance(error.__cause__, TimeoutError)
        if payload.idempotency_key is None or not is_timeout:
            raise
        raise IdempotencyKeyLocked(
            f"no answer within {wait_s:g} s: another open transaction seems to hold the idempotency key"
            f" {payload.idempotency_key!r} of {payload.task_name}"
        ) from error
