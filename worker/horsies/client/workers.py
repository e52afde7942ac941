"""Monitoring: pings the database and workers, and reads the snapshots of workers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Set as AbstractSet
from uuid import UUID, uuid4

from horsies.client.broker import PostgresBroker
from horsies.client.results import broker_result
from horsies.errors import BrokerErrorCode
from horsies.model.result import BrokerResult, DatabasePing, WorkerPong, WorkerStateSnapshot
from horsies.model.task import parse_id
from horsies.store.listen import Subscription, open_ping
from horsies.store.migrate import SCHEMA
from horsies.store.workers import WorkerStore


class WorkerMonitor:
    """Pings the database and the workers of a broker, and reads their snapshots."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker

    @broker_result(BrokerErrorCode.DB_PING_FAILED)
    async def ping_database(self) -> DatabasePing:
        """Measure one round trip to the database."""
        session = await self._broker.session()
        started_at = time.perf_counter()  # after opening the session, which may resolve and migrate the database
        await session.database.execute(SCHEMA.server_version)
        return DatabasePing(latency_ms=(time.perf_counter() - started_at) * 1000)

    @broker_result(BrokerErrorCode.WORKER_PING_FAILED)
    async def ping(
        self, *, target_worker_id: str | None, timeout_seconds: float, min_responses: int | None
    ) -> list[WorkerPong]:
        """The workers that reply in time, in the order of their replies; may be empty."""
        if timeout_seconds <= 0:
            raise ValueError(f"timeout_seconds must be above 0, got {timeout_seconds}")
        if min_responses is not None and min_responses < 1:
            raise ValueError(f"min_responses must be at least 1, got {min_responses}")
        target = None if target_worker_id is None else parse_id(target_worker_id)
        ping = WorkerPing(target=target, min_responses=min_responses)
        direct = (await self._broker.session()).database.connection_spec.direct
        async with open_ping(direct, reply_channel=ping.reply_channel, message=ping.message) as replies:
            await ping.collect(replies, timeout_seconds)
        return list(ping.pongs.values())

    @broker_result(BrokerErrorCode.MONITORING_QUERY_FAILED)
    async def states(self) -> list[WorkerStateSnapshot]:
        """The newest snapshot of each worker."""
        return await (await self._store()).newest_states()

    @broker_result(BrokerErrorCode.MONITORING_QUERY_FAILED)
    async def history(self, worker_id: str, limit: int | None) -> list[WorkerStateSnapshot]:
        """Snapshots of one worker, newest first."""
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        return await (await self._store()).state_history(UUID(parse_id(worker_id)), limit)

    async def state(self, worker_id: str) -> BrokerResult[WorkerStateSnapshot | None]:
        """The newest snapshot of one worker."""
        return (await self.history(worker_id, 1)).map(lambda newest: newest[0] if newest else None)

    async def _store(self) -> WorkerStore:
        return WorkerStore((await self._broker.session()).database)


class WorkerPing:
    """One ping: its message, and the replies so far by worker id.

    It ends early when the target, all `expected` workers, or any `min_responses` workers have replied.
    """

    def __init__(
        self, *, target: str | None, min_responses: int | None = None, expected: AbstractSet[str] = frozenset()
    ) -> None:
        self._target = target
        self._expected = expected if target is None else {target}
        self._min_responses = min_responses
        self._correlation_id = str(uuid4())
        self._sent_at = time.perf_counter()
        self.reply_channel = f"horsies_pong_{uuid4().hex}"
        self.pongs: dict[str, WorkerPong] = {}

    @property
    def message(self) -> str:
        return json.dumps(
            {
                "kind": "ping",
                "correlation_id": self._correlation_id,
                "reply_channel": self.reply_channel,
                "target_worker_id": self._target,
                "task_ids": None,
            }
        )

    async def collect(self, replies: Subscription, timeout_s: float) -> None:
        """Collect replies until there are enough or the timeout has passed."""
        self._sent_at = time.perf_counter()  # latencies must not include the time to connect
        try:
            async with asyncio.timeout(timeout_s):
                while not self._has_enough():
                    pong = self._parse_reply(await replies.next_payload())
                    if pong is not None and self._target in {None, pong.worker_id}:
                        self.pongs.setdefault(pong.worker_id, pong)
        except TimeoutError:
            return

    def _has_enough(self) -> bool:
        if self._expected:
            return self._expected <= self.pongs.keys()
        return self._min_responses is not None and len(self.pongs) >= self._min_responses

    def _parse_reply(self, payload: str) -> WorkerPong | None:
        """None for anything but a reply to this ping: any client of the database can notify the channel."""
        try:
            body = json.loads(payload)
            if body["correlation_id"] != self._correlation_id:
                return None
            return WorkerPong(
                worker_id=parse_id(body["worker_id"]),
                hostname=str(body["hostname"]),
                pid=int(body["pid"]),
                latency_ms=(time.perf_counter() - self._sent_at) * 1000,
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
