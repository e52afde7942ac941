"""Worker pings and snapshots; fake workers are plain connections that listen and reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from horsies import AppConfig, BrokerErrorCode, Err, Horsies, PostgresConfig, WorkerPong
from horsies_ops import connect
from tests.support.rows import insert

LONG_S = 60.0
SHORT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedPing:
    """A ping, and the backend pid of its sender."""

    pid: int
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeWorker:
    """Replies to each ping with the given replies; CORRELATION is replaced by the correlation id."""

    worker_id: str = field(default_factory=lambda: str(uuid4()))
    replies: tuple[str, ...] | None = None
    kills_sender: bool = False
    pings: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def replies_to(self, ping: dict[str, Any]) -> list[str]:
        if self.replies is not None:
            return [reply.replace("CORRELATION", ping["correlation_id"]) for reply in self.replies]
        body = {"correlation_id": ping["correlation_id"], "worker_id": self.worker_id, "hostname": "box", "pid": 7}
        return [json.dumps(body)]

    @asynccontextmanager
    async def running(self, database_url: str) -> AsyncGenerator[None]:
        connection = await asyncpg.connect(database_url)
        received: asyncio.Queue[ReceivedPing] = asyncio.Queue()

        def on_ping(_connection: object, pid: int, _channel: str, payload: object) -> None:
            received.put_nowait(ReceivedPing(pid=pid, payload=str(payload)))

        await connection.add_listener("horsies_worker_ping", on_ping)
        replying = asyncio.create_task(self._reply(connection, received))
        try:
            yield
        finally:
            replying.cancel()
            await asyncio.gather(replying, return_exceptions=True)
            await connection.close()

    async def _reply(
        self, connection: asyncpg.Connection[asyncpg.Record], received: asyncio.Queue[ReceivedPing]
    ) -> None:
        while True:
            received_ping = await received.get()
            ping = json.loads(received_ping.payload)
            self.pings.append(ping)
            if self.kills_sender:
                await connection.execute("SELECT pg_terminate_backend($1)", received_ping.pid)
            for reply in self.replies_to(ping):
                await connection.execute("SELECT pg_notify($1, $2)", ping["reply_channel"], reply)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Horsies]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url)))
    yield app
    await app.close_async()


def _ids(pongs: list[WorkerPong]) -> set[str]:
    return {pong.worker_id for pong in pongs}


async def test_ping_returns_once_enough_workers_replied(app: Horsies, database_url: str) -> None:
    first, second = FakeWorker(), FakeWorker()
    async with first.running(database_url), second.running(database_url):
        pongs = (await app.ping_workers_async(timeout_seconds=LONG_S, min_responses=2)).unwrap()
    assert _ids(pongs) == {first.worker_id, second.worker_id}
    assert all((pong.hostname, pong.pid) == ("box", 7) and pong.latency_ms > 0 for pong in pongs)


async def test_ping_returns_once_its_target_replied(app: Horsies, database_url: str) -> None:
    other, target = FakeWorker(), FakeWorker()
    async with other.running(database_url), target.running(database_url):
        ping = app.ping_workers_async(target_worker_id=target.worker_id.upper(), timeout_seconds=LONG_S)
        pongs = (await ping).unwrap()
    assert _ids(pongs) == {target.worker_id}


async def test_ping_by_operators_waits_for_the_expected_workers(database_url: str) -> None:
    body = '{"correlation_id": "CORRELATION", "worker_id": "%s", "hostname": "box", "pid": 7}'
    presumed_dead, live = uuid4(), uuid4()
    worker = FakeWorker(replies=(body % presumed_dead, body % live))
    async with connect(database_url, read_only=True) as ops, worker.running(database_url):
        pongs = await ops.ping_workers(within=timedelta(seconds=LONG_S), expected={live})
    assert [pong.worker_id for pong in pongs] == [str(presumed_dead), str(live)]


async def test_ping_message_has_the_documented_format(app: Horsies, database_url: str) -> None:
    worker = FakeWorker()
    async with worker.running(database_url):
        await app.ping_workers_async(timeout_seconds=LONG_S, min_responses=1)
    (ping,) = worker.pings
    assert set(ping) == {"kind", "correlation_id", "reply_channel", "target_worker_id", "task_ids"}
    assert (ping["kind"], ping["target_worker_id"]) == ("ping", None)
    assert ping["reply_channel"].startswith("horsies_pong_")


async def test_duplicate_and_malformed_replies_are_ignored(app: Horsies, database_url: str) -> None:
    body = '{"correlation_id": "CORRELATION", "worker_id": "%s", "hostname": "box", "pid": 7}'
    known, late = str(uuid4()), str(uuid4())
    invalid = ("nonsense", "[]", "{}", body % "w-7", (body % uuid4()).replace("CORRELATION", "another ping"))
    invalid += ((body % uuid4()).replace("7}", "1e999}"), "[" * 5_000, "9" * 5_000)
    worker = FakeWorker(replies=(*invalid, body % known, body % known, body % late))
    async with worker.running(database_url):
        pongs = (await app.ping_workers_async(timeout_seconds=LONG_S, min_responses=2)).unwrap()
    assert [pong.worker_id for pong in pongs] == [known, late]


async def test_ping_without_replies_returns_an_empty_list(app: Horsies) -> None:
    assert (await app.ping_workers_async(timeout_seconds=SHORT_S)).unwrap() == []


@pytest.mark.parametrize(
    "options",
    [{"timeout_seconds": 0}, {"timeout_seconds": -1.0}, {"min_responses": 0}, {"target_worker_id": "w-7"}],
    ids=str,
)
async def test_invalid_ping_options_are_rejected(app: Horsies, options: dict[str, Any]) -> None:
    result = await app.ping_workers_async(**options)
    assert isinstance(result, Err)
    assert result.error.code is BrokerErrorCode.WORKER_PING_FAILED


async def test_unreachable_database_is_a_retryable_error(unused_tcp_port: int) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=f"postgresql://127.0.0.1:{unused_tcp_port}/nowhere")))
    ping = await app.ping_workers_async()
    states = await app.list_worker_states_async()
    await app.close_async()
    assert isinstance(ping, Err)
    assert isinstance(states, Err)
    assert (ping.error.code, ping.error.retryable) == (BrokerErrorCode.WORKER_PING_FAILED, True)
    assert (states.error.code, states.error.retryable) == (BrokerErrorCode.MONITORING_QUERY_FAILED, True)


async def test_connection_lost_during_a_ping_is_a_retryable_error(app: Horsies, database_url: str) -> None:
    async with FakeWorker(replies=(), kills_sender=True).running(database_url):
        result = await app.ping_workers_async(timeout_seconds=LONG_S)
    assert isinstance(result, Err)
    assert (result.error.code, result.error.retryable) == (BrokerErrorCode.WORKER_PING_FAILED, True)


async def test_blocking_call_inside_a_loop_returns_an_error(app: Horsies) -> None:
    for result in (app.ping_workers(), app.list_worker_states(), app.get_worker_state(str(uuid4()))):
        assert isinstance(result, Err)
        assert result.error.code is BrokerErrorCode.ASYNC_CONTEXT


def test_every_call_has_a_blocking_version(database_url: str) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url)))
    worker_id = str(uuid4())
    assert app.ping_workers(timeout_seconds=SHORT_S).unwrap() == []
    assert app.list_worker_states().unwrap() == []
    assert app.get_worker_state(worker_id).unwrap() is None
    assert app.get_worker_state_history(worker_id).unwrap() == []
    app.close()


NOW = datetime.now(UTC)


async def _snapshot(database_url: str, worker_id: str, *, seconds_ago: int, running: int = 0) -> None:
    await insert(
        database_url,
        "horsies_worker_states",
        worker_id=worker_id,
        snapshot_at=NOW - timedelta(seconds=seconds_ago),
        worker_started_at=NOW - timedelta(hours=1),
        hostname="box",
        pid=7,
        processes=2,
        max_claim_batch=0,
        max_claim_per_worker=0,
        queues=["mail"],
        queue_priorities={"mail": 1},
        queue_max_concurrency={"mail": None},
        recovery_config={"check_interval_ms": 1000},
        tasks_running=running,
        tasks_claimed=0,
    )


async def test_states_are_the_newest_snapshot_of_each_worker(app: Horsies, database_url: str) -> None:
    first, second = str(uuid4()), str(uuid4())
    await _snapshot(database_url, first, seconds_ago=9, running=1)
    await _snapshot(database_url, first, seconds_ago=5, running=2)
    await _snapshot(database_url, second, seconds_ago=7, running=3)
    states = (await app.list_worker_states_async()).unwrap()
    assert [(state.worker_id, state.tasks_running) for state in states] == [(first, 2), (second, 3)]
    assert states[0].queue_max_concurrency == {"mail": None}
    assert states[0].recovery_config == {"check_interval_ms": 1000}


async def test_history_is_ordered_newest_first_and_can_be_limited(app: Horsies, database_url: str) -> None:
    worker_id = str(uuid4())
    for seconds_ago in (3, 1, 2):
        await _snapshot(database_url, worker_id, seconds_ago=seconds_ago, running=seconds_ago)
    await _snapshot(database_url, str(uuid4()), seconds_ago=0)
    every = (await app.get_worker_state_history_async(worker_id)).unwrap()
    newest = (await app.get_worker_state_history_async(worker_id, limit=1)).unwrap()
    assert [state.tasks_running for state in every] == [1, 2, 3]
    assert newest == every[:1] == [(await app.get_worker_state_async(worker_id)).unwrap()]


async def test_invalid_worker_id_or_limit_is_rejected(app: Horsies) -> None:
    for result in (
        await app.get_worker_state_async("w-7"),
        await app.get_worker_state_history_async(str(uuid4()), limit=0),
    ):
        assert isinstance(result, Err)
        assert result.error.code is BrokerErrorCode.MONITORING_QUERY_FAILED
