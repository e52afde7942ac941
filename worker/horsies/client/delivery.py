"""Stores payloads in the database and turns the outcome into a send result.

Handles resends after lost connections, sends on the caller's transaction, notifications of workers and waits for
contended idempotency keys.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from horsies.client.payload import RESEND_ALL_HINT, lookup_hint
from horsies.client.results import BrokerTaskReader
from horsies.client.task import TaskHandle
from horsies.errors import BrokerError, BrokerErrorCode, DatabaseUnreachable, HorsiesError
from horsies.model.result import Err, Ok
from horsies.model.send import (
    BulkPayload,
    SendOutcome,
    TaskSendError,
    TaskSendErrorCode,
    TaskSendPayload,
    TaskSendResult,
)
from horsies.registry import TaskDefinition
from horsies.store.connection import UNIQUE_VIOLATION, StatementFailed
from horsies.store.database import Transaction
from horsies.store.endpoint import savepoint
from horsies.store.tasks import EnqueueResult, Notify, TaskStore
from horsies.sync import BRIDGE, BridgeUnavailable

if TYPE_CHECKING:
    from horsies.client.broker import BrokerSession, PostgresBroker

RESEND_PAUSES_S = (0.2, 0.4, 0.8)
"""The pause before each resend, if the app enables resends."""
STATEMENT_TIMEOUT = "57014"
"""SQLSTATE query_canceled: what the server reports when statement_timeout expires."""

logger = logging.getLogger("horsies.send")

A = TypeVar("A")
AnyHandle = TaskHandle[Any]


class Delivery(Protocol):
    """Stores the payloads of sends: `BrokerDelivery`, or a test double."""

    def deliver(self, task: TaskDefinition, payload: TaskSendPayload) -> TaskSendResult[AnyHandle]: ...

    async def deliver_async(
        self, task: TaskDefinition, payload: TaskSendPayload, connection: object | None
    ) -> TaskSendResult[AnyHandle]: ...

    def deliver_many(self, task: TaskDefinition, bulk: BulkPayload) -> TaskSendResult[list[AnyHandle]]: ...

    async def deliver_many_async(
        self, task: TaskDefinition, bulk: BulkPayload, connection: object | None
    ) -> TaskSendResult[list[AnyHandle]]: ...


class BrokerDelivery:
    """Stores payloads in the database of a broker."""

    def __init__(self, broker: PostgresBroker, results: BrokerTaskReader, *, resends: bool) -> None:
        self._broker = broker
        self._results = results
        self._resend_pauses_s = RESEND_PAUSES_S if resends else ()

    def deliver(self, task: TaskDefinition, payload: TaskSendPayload) -> TaskSendResult[AnyHandle]:
        try:
            return BRIDGE.run(self.deliver_async(task, payload, None))
        except BridgeUnavailable as error:
            return Err(_enqueue_failed(error, payload))

    async def deliver_async(
        self,
        task: TaskDefinition,  # noqa: ARG002  # used by inline delivery only; the payload is all that is stored
        payload: TaskSendPayload,
        connection: object | None,
    ) -> TaskSendResult[AnyHandle]:
        result = await self._store(payload, connection)
        # The caller's transaction is aborted or gone after a failure, so only the caller can send again.
        if isinstance(result, Ok) or connection is not None:
            return result
        return await self._resend(result, lambda: self._store(payload, connection))

    def deliver_many(self, task: TaskDefinition, bulk: BulkPayload) -> TaskSendResult[list[AnyHandle]]:
        try:
            return BRIDGE.run(self.deliver_many_async(task, bulk, None))
        except BridgeUnavailable as error:
            return Err(_enqueue_failed(error, None))

    async def deliver_many_async(
        self,
        task: TaskDefinition,  # noqa: ARG002
        bulk: BulkPayload,
        connection: object | None,
    ) -> TaskSendResult[list[AnyHandle]]:
        progress = BulkProgress()
        result = await self._store_many(bulk, progress, connection)
        if isinstance(result, Ok) or connection is not None:
            return result
        return await self._resend(result, lambda: self._store_many(bulk, progress, connection))

    async def _resend(
        self, result: TaskSendResult[A], store: Callable[[], Coroutine[Any, Any, TaskSendResult[A]]]
    ) -> TaskSendResult[A]:
        """After a transient failure, store again under the same ids, if the app enables resends."""
        for pause_s in self._resend_pauses_s:
            if not isinstance(result, Err) or not _may_resend(result.error):
                break
            await asyncio.sleep(pause_s)
            result = await store()
        return result

    async def _store(self, payload: TaskSendPayload, connection: object | None) -> TaskSendResult[AnyHandle]:
        try:
            session = await self._broker.session()
            wait_s = self._broker.key_wait_s
            if connection is not None:
                with explain_key_timeout(payload, wait_s=wait_s):
                    async with self._savepoint(session, connection) as transaction:
                        enqueued = await TaskStore(transaction).enqueue(payload, timeout_s=wait_s)
            elif payload.idempotency_key is not None:
                with explain_key_timeout(payload, wait_s=wait_s):
                    async with session.key_limiter.acquire() as remaining_s:
                        enqueued = await session.notify_coalescer.enqueue(payload, timeout_s=remaining_s)
            else:
                enqueued = await self._enqueue_expected(session, payload)
        except HorsiesError as error:
            return Err(_enqueue_failed(error, payload))
        error = send_error_for(enqueued.outcome, payload, enqueued.task_id)
        return Ok(TaskHandle(enqueued.task_id, self._results)) if error is None else Err(error)

    async def _enqueue_expected(self, session: BrokerSession, payload: TaskSendPayload) -> EnqueueResult:
        """Let a wait for the result skip its first read if this call stores the task."""
        session.expected_ends.add(payload.task_id)
        try:
            enqueued = await session.notify_coalescer.enqueue(payload)
        except BaseException:
            session.expected_ends.discard(payload.task_id)
            raise
        if enqueued.outcome is not SendOutcome.STORED:  # an earlier try stored it, and it may have ended since
            session.expected_ends.discard(payload.task_id)
        return enqueued

    async def _store_many(
        self, bulk: BulkPayload, progress: BulkProgress, connection: object | None
    ) -> TaskSendResult[list[AnyHandle]]:
        try:
            session = await self._broker.session()

            async def insert(transaction: Transaction) -> None:
                progress.is_started = True
                await TaskStore(transaction).enqueue_many(bulk)

            if connection is None:
                await session.database.run(insert)
            else:
                async with self._savepoint(session, connection) as transaction:
                    await insert(transaction)
        except HorsiesError as error:
            # The ids are unique to this bulk send: if they exist, an earlier try was committed and its answer was lost.
            if not (isinstance(error, StatementFailed) and error.sqlstate == UNIQUE_VIOLATION):
                return Err(_bulk_failed(error, bulk.task_ids[0], progress))
        return Ok([TaskHandle(task_id, self._results) for task_id in bulk.task_ids])

    def _savepoint(self, session: BrokerSession, connection: object) -> AbstractAsyncContextManager[Transaction]:
        """A savepoint in the caller's transaction."""
        timeout_s = self._broker.settings.pool_timeout
        return savepoint(connection, session.database.connection_spec, timeout_s=timeout_s)


@dataclass(slots=True)
class BulkProgress:
    """What is known about a bulk send that has failed, over all its tries."""

    is_started: bool = False
    """Whether a statement may have reached the server; until then, nothing can be stored."""
    may_be_stored: bool = False
    """Whether the answer to a commit was lost. Stays True: a later try does not reveal what happened to it."""


# NOTIFY coalescing

BURST_GAP_S = 0.003
BURST_LENGTH = 8
FLUSH_AFTER_S = 0.02
MAX_ANNOUNCED_DELAY_S = 60.0
"""Like the limit of the insert trigger."""
EXIT_FLUSH_TIMEOUT_S = 1.0
"""How long the exit of the program may wait for the last notifications."""


@dataclass(slots=True)
class Burst:
    """The latest sends of this process to one queue, each shortly after the previous one."""

    length: int = 0
    last_send_at: float = -inf

    def add(self, now: float) -> None:
        self.length = self.length + 1 if now - self.last_send_at < BURST_GAP_S else 1
        self.last_send_at = now


class NotifyCoalescer:
    """Stores tasks, and notifies workers of them at once or a moment later. One per event loop.

    A transaction that executes NOTIFY holds a cluster-wide lock until its commit is on disk. If every send notified,
    concurrent producers would commit one after another: eight of them would be 45 % slower. So a send either

    - notifies with its own commit, so that a worker starts the task at once, or
    - is *deferred*: it stores the task without NOTIFY, and `FLUSH_AFTER_S` later one separate statement notifies for
      all queues that have deferred tasks.

    A send is deferred if it belongs to a burst: at least `BURST_LENGTH` sends to its queue came before it, each less
    than `BURST_GAP_S` after the previous one. Waiting for a result ends all bursts, because a caller that sends and
    waits in turn may be faster than the gap. A send is also deferred if another send to the queue, in any process, is
    notifying at that moment: see `Notify.UNLESS_CONTENDED`.

    A lost notification is harmless, because it only wakes workers early. They also poll, so if this process dies before
    it notifies, its deferred tasks start up to one poll interval later. Closing the session or exiting the program
    notifies at once.
    """

    def __init__(self, tasks: TaskStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._clock = clock
        self._bursts: defaultdict[str, Burst] = defaultdict(Burst)
        self._deferred_queues: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._flush_task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def enqueue(self, payload: TaskSendPayload, *, timeout_s: float | None = None) -> EnqueueResult:
        """Store the task in its own transaction; see `TaskStore.enqueue`."""
        # Workers poll for tasks that become due; they need to know only of those due before the next poll.
        if (payload.enqueue_delay_seconds or 0) > MAX_ANNOUNCED_DELAY_S:
            return await self._tasks.enqueue(payload, notify=Notify.NEVER, timeout_s=timeout_s)
        burst = self._bursts[payload.queue_name]
        burst.add(self._clock())
        notify = Notify.NEVER if burst.length > BURST_LENGTH else Notify.UNLESS_CONTENDED
        is_deferred = notify is Notify.NEVER  # also used if `enqueue` raises: the task may be stored nevertheless
        try:
            enqueued = await self._tasks.enqueue(payload, notify=notify, timeout_s=timeout_s)
            is_deferred = not enqueued.is_notified
        finally:
            burst.last_send_at = self._clock()  # gaps count from the end of a send
            if is_deferred:
                self._deferred_queues.add(payload.queue_name)
                self._schedule_flush()
        return enqueued

    @property
    def has_deferred(self) -> bool:
        """Whether a flush is scheduled or running."""
        return self._timer is not None or self._flush_task is not None

    def on_wait(self) -> None:
        """A caller starts to wait for a result: end all bursts, and notify for deferred tasks without a delay."""
        self._bursts.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._start_flush()

    async def flush(self) -> None:
        """Notify now for every deferred task."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task])  # unlike `await`, does not cancel the task with this call
        await self._notify_deferred()

    async def close(self) -> None:
        """Flush, and schedule no further flushes; workers find tasks deferred after this at their next poll."""
        self._is_closed = True
        await self.flush()

    def _schedule_flush(self) -> None:
        if self.has_deferred or self._is_closed:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FLUSH_AFTER_S, self._start_flush)
        if BRIDGE.owns_loop(loop):
            _BRIDGE_COALESCERS.add(self)

    def _start_flush(self) -> None:
        self._timer = None
        self._flush_task = asyncio.create_task(self._notify_deferred())
        self._flush_task.add_done_callback(self._on_flushed)

    def _on_flushed(self, _: asyncio.Task[None]) -> None:
        self._flush_task = None
        if self._deferred_queues:  # by sends that ended during the flush
            self._schedule_flush()

    async def _notify_deferred(self) -> None:
        queues = sorted(self._deferred_queues)
        if not queues:
            return
        self._deferred_queues.clear()
        try:
            await self._tasks.notify_queues(queues)
        except HorsiesError as error:
            logger.debug("NOTIFY failed, workers will find the tasks at their next poll: %s", error.message)
        except asyncio.CancelledError:
            self._deferred_queues.update(queues)  # the loop is shutting down: `close` will flush them
            raise


_BRIDGE_COALESCERS: weakref.WeakSet[NotifyCoalescer] = weakref.WeakSet()


@atexit.register
def _flush_at_exit() -> None:
    """Flush the coalescers of blocking sends, whose loop runs until the program exits; `close` flushes the others."""
    due = [coalescer for coalescer in _BRIDGE_COALESCERS if coalescer.has_deferred]

    async def flush_all() -> None:
        for coalescer in due:
            await coalescer.flush()

    if due:
        with suppress(BridgeUnavailable, TimeoutError):
            BRIDGE.run(asyncio.wait_for(flush_all(), EXIT_FLUSH_TIMEOUT_S))


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


def _bulk_failed(error: HorsiesError, first_id: str, progress: BulkProgress) -> TaskSendError:
    """Not retryable if the answer was lost: the caller's retry would get new ids and might store everything twice."""
    failed = _enqueue_failed(error, None)
    progress.may_be_stored |= progress.is_started and isinstance(error, DatabaseUnreachable)
    if not progress.may_be_stored:
        return replace(failed, message=f"{failed.message}; {RESEND_ALL_HINT}") if failed.retryable else failed
    text = f"{failed.message}; all or none of the tasks are stored: {lookup_hint(first_id)}"
    return replace(failed, message=text, retryable=False, task_id=first_id)


def _may_resend(error: TaskSendError) -> bool:
    if isinstance(error.exception, IdempotencyKeyLocked):
        return False  # the send already waited for the key as long as it may
    # Use the store's error: `retryable` of a failed bulk send is meant for the caller, who cannot reuse its ids.
    return error.exception.retryable if isinstance(error.exception, BrokerError) else error.retryable


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
