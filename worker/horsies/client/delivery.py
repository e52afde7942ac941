"""Putting payloads into the queue, and what comes of it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from horsies.client.handle import TaskHandle
from horsies.codec.fingerprint import instant_json
from horsies.errors import BrokerError, HorsiesError
from horsies.model.result import Err, Ok
from horsies.model.sending import SendOutcome, TaskSendError, TaskSendErrorCode, TaskSendPayload, TaskSendResult
from horsies.store.borrowed import savepoint
from horsies.store.tasks import Batch, Sent
from horsies.sync import BRIDGE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from horsies.client.broker import PostgresBroker, Session
    from horsies.client.pattern import Bulk
    from horsies.client.results import Results
    from horsies.registry import TaskDefinition
    from horsies.store.db import Transaction

BATCH_ROWS = 1000
RESEND_PAUSES_S = (0.2, 0.4, 0.8)

AnyHandle = TaskHandle[Any]


class Delivery(Protocol):
    """Where payloads go."""

    def one(self, task: TaskDefinition, payload: TaskSendPayload) -> TaskSendResult[AnyHandle]: ...

    async def one_async(
        self, task: TaskDefinition, payload: TaskSendPayload, connection: object | None
    ) -> TaskSendResult[AnyHandle]: ...

    def many(self, task: TaskDefinition, payloads: Bulk) -> TaskSendResult[list[AnyHandle]]: ...

    async def many_async(
        self, task: TaskDefinition, payloads: Bulk, connection: object | None
    ) -> TaskSendResult[list[AnyHandle]]: ...


class BrokerDelivery:
    """Stores payloads in the database of a broker."""

    def __init__(self, broker: Callable[[], PostgresBroker], results: Results, *, resends: bool) -> None:
        self._broker = broker
        self._results = results
        self._pauses_s = RESEND_PAUSES_S if resends else ()

    def one(self, task: TaskDefinition, payload: TaskSendPayload) -> TaskSendResult[AnyHandle]:
        return BRIDGE.run(self.one_async(task, payload, None))

    async def one_async(
        self,
        task: TaskDefinition,  # noqa: ARG002  # what is stored is all in the payload
        payload: TaskSendPayload,
        connection: object | None,
    ) -> TaskSendResult[AnyHandle]:
        # A caller's transaction is aborted or gone after a failure: sending again is the caller's own decision.
        for pause_s in self._pauses_s if connection is None else ():
            result = await self._store(payload, connection)
            if not isinstance(result, Err) or not result.error.retryable:
                return result
            await asyncio.sleep(pause_s)
        return await self._store(payload, connection)

    def many(self, task: TaskDefinition, payloads: Bulk) -> TaskSendResult[list[AnyHandle]]:
        return BRIDGE.run(self.many_async(task, payloads, None))

    async def many_async(
        self,
        task: TaskDefinition,  # noqa: ARG002
        payloads: Bulk,
        connection: object | None,
    ) -> TaskSendResult[list[AnyHandle]]:
        if not payloads:
            return Ok([])
        try:
            async with self._within(connection) as (session, transaction):
                await session.tasks.enqueue_many(_Batches(payloads), within=transaction)
        except HorsiesError as error:
            return Err(_enqueue_failed(error, None))
        return Ok([TaskHandle(task_id, self._results) for task_id in payloads.ids])

    async def _store(self, payload: TaskSendPayload, connection: object | None) -> TaskSendResult[AnyHandle]:
        wait_s = self._broker().settings.pool_timeout if payload.idempotency_key else None
        try:
            if connection is None:
                sent = await self._store_alone(payload, wait_s)
            else:
                async with self._within(connection) as (session, transaction):
                    sent = await session.tasks.enqueue(payload, within=transaction, timeout_s=wait_s)
        except HorsiesError as error:
            return Err(_enqueue_failed(error, payload))
        refused = refusal_of(sent.outcome, payload, sent.task_id)
        return Ok(TaskHandle(sent.task_id, self._results)) if refused is None else Err(refused)

    async def _store_alone(self, payload: TaskSendPayload, wait_s: float | None) -> Sent:
        """Store in a transaction of its own, and see to it that workers hear of it."""
        session = await self._broker().session()
        asked_at = time.monotonic()
        sent = await session.tasks.enqueue(payload, timeout_s=wait_s)
        if sent.is_announced:
            session.announcements.announced(payload.queue_name, asked_at=asked_at)
        elif sent.is_announced is False and not payload.enqueue_delay_seconds:
            session.announcements.stored_silently(payload.queue_name)
        return sent

    @asynccontextmanager
    async def _within(self, connection: object | None) -> AsyncGenerator[tuple[Session, Transaction | None]]:
        """The session, and a savepoint in the caller's transaction where there is one."""
        broker = self._broker()
        session = await broker.session()
        if connection is None:
            yield session, None
            return
        async with savepoint(connection, session.database.link, timeout_s=broker.settings.pool_timeout) as transaction:
            yield session, transaction


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of a bulk send, each made when its turn comes; they can be gone through again."""

    bulk: Bulk

    def __iter__(self) -> Iterator[Batch]:
        bulk, like = self.bulk, self.bulk[0]
        sent_at_json = instant_json(bulk.sent_at)
        for start in range(0, len(bulk), BATCH_ROWS):
            rows = bulk.arguments[start : start + BATCH_ROWS]
            yield Batch(
                like=like,
                ids="\n".join(bulk.ids[start : start + BATCH_ROWS]),
                args="\n".join([row.args_json for row in rows]),
                kwargs="\n".join([row.kwargs_json for row in rows]),
                shas="\n".join([bulk.pattern.seal.sha(row, sent_at_json) for row in rows]),
            )


def refusal_of(outcome: SendOutcome, payload: TaskSendPayload, task_id: str) -> TaskSendError | None:
    """Why a send that ended like this is refused; None where a task stands for it."""
    match outcome:
        case SendOutcome.STORED | SendOutcome.REPEATED | SendOutcome.FIRST_STANDS:
            return None
        case SendOutcome.OTHER_PAYLOAD:
            code, text = TaskSendErrorCode.PAYLOAD_MISMATCH, f"task {task_id} is stored with another payload"
        case SendOutcome.OTHER_ARGUMENTS:
            code = TaskSendErrorCode.IDEMPOTENCY_KEY_CONFLICT
            text = f"the idempotency key belongs to task {task_id}, which has other arguments"
        case SendOutcome.GONE:
            code, text = TaskSendErrorCode.ENQUEUE_FAILED, "rows with the same key came and went meanwhile"
    return TaskSendError(
        code=code, message=text, retryable=outcome is SendOutcome.GONE, task_id=payload.task_id, payload=payload
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
