"""Asking after workers, with workers made of a plain connection that listens and answers."""

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
from tests.support.rows import insert

FOR_EVER_S = 60.0
A_MOMENT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A ping, and the server process of whoever sent it."""

    pid: int
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeWorker:
    """Answers each ping with the given answers, in which `correlation_id` is filled in."""

    worker_id: str = field(default_factory=lambda: str(uuid4()))
    says: tuple[str, ...] | None = None
    cuts_the_line: bool = False
    heard: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def answers(self, ping: dict[str, Any]) -> list[str]:
        if self.says is not None:
            return [each.replace("CORRELATION", ping["correlation_id"]) for each in self.says]
        body = {"correlation_id": ping["correlation_id"], "worker_id": self.worker_id, "hostname": "box", "pid": 7}
        return [json.dumps(body)]

    @asynccontextmanager
    async def at_work(self, database_url: str) -> AsyncGenerator[None]:
        connection = await asyncpg.connect(database_url)
        pings: asyncio.Queue[Heard] = asyncio.Queue()

        def hear(_connection: object, pid: int, _channel: str, payload: object) -> None:
            pings.put_nowait(Heard(pid=pid, payload=str(payload)))

        await connection.add_listener("horsies_worker_ping", hear)
        answering = asyncio.create_task(self._answer(connection, pings))
        try:
            yield
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            await connection.close()

    async def _answer(self, connection: asyncpg.Connection[asyncpg.Record], pings: asyncio.Queue[Heard]) -> None:
        while True:
            heard = await pings.get()
            ping = json.loads(heard.payload)
            self.heard.append(ping)
            if self.cuts_the_line:
                await connection.execute("SELECT pg_terminate_backend($1)", heard.pid)
            for answer in self.answers(ping):
                await connection.execute("SELECT pg_notify($1, $2)", ping["reply_channel"], answer)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Horsies]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url)))
    yield app
    await app.close_async()


def _ids(pongs: list[WorkerPong]) -> set[str]:
    return {pong.worker_id for pong in pongs}


async def test_a_ping_returns_as_soon_as_enough_workers_have_answered(app: Horsies, database_url: str) -> None:
    first, second = FakeWorker(), FakeWorker()
    async with first.at_work(database_url), second.at_work(database_url):
        pongs = (await app.ping_workers_async(timeout_seconds=FOR_EVER_S, min_responses=2)).unwrap()
    assert _ids(pongs) == {first.worker_id, second.worker_id}
    assert all((pong.hostname, pong.pid) == ("box", 7) and pong.latency_ms > 0 for pong in pongs)


async def test_a_ping_returns_as_soon_as_its_target_has_answered(app: Horsies, database_url: str) -> None:
    other, target = FakeWorker(), FakeWorker()
    async with other.at_work(database_url), target.at_work(database_url):
        asked = app.ping_workers_async(target_worker_id=target.worker_id.upper(), timeout_seconds=FOR_EVER_S)
        pongs = (await asked).unwrap()
    assert _ids(pongs) == {target.worker_id}


async def test_the_ping_has_the_documented_form(app: Horsies, database_url: str) -> None:
    worker = FakeWorker()
    async with worker.at_work(database_url):
        await app.ping_workers_async(timeout_seconds=FOR_EVER_S, min_responses=1)
    (ping,) = worker.heard
    assert set(ping) == {"kind", "correlation_id", "reply_channel", "target_worker_id", "task_ids"}
    assert (ping["kind"], ping["target_worker_id"]) == ("ping", None)
    assert ping["reply_channel"].startswith("horsies_pong_")


async def test_each_worker_counts_once_and_what_is_no_answer_counts_not_at_all(app: Horsies, database_url: str) -> None:
    body = '{"correlation_id": "CORRELATION", "worker_id": "%s", "hostname": "box", "pid": 7}'
    known, late = str(uuid4()), str(uuid4())
    strange = ("nonsense", "[]", "{}", body % "w-7", (body % uuid4()).replace("CORRELATION", "another call"))
    worker = FakeWorker(says=(*strange, body % known, body % known, body % late))
    async with worker.at_work(database_url):
        pongs = (await app.ping_workers_async(timeout_seconds=FOR_EVER_S, min_responses=2)).unwrap()
    assert [pong.worker_id for pong in pongs] == [known, late]


async def test_a_ping_that_nobody_answers_is_an_empty_list(app: Horsies) -> None:
    assert (await app.ping_workers_async(timeout_seconds=A_MOMENT_S)).unwrap() == []


@pytest.mark.parametrize(
    "options",
    [{"timeout_seconds": 0}, {"timeout_seconds": -1.0}, {"min_responses": 0}, {"target_worker_id": "w-7"}],
    ids=str,
)
async def test_a_ping_without_sense_is_refused(app: Horsies, options: dict[str, Any]) -> None:
    result = await app.ping_workers_async(**options)
    assert isinstance(result, Err)
    assert result.error.code is BrokerErrorCode.WORKER_PING_FAILED


async def test_an_unreachable_database_is_an_error_that_may_pass(unused_tcp_port: int) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=f"postgresql://127.0.0.1:{unused_tcp_port}/nowhere")))
    ping = await app.ping_workers_async()
    states = await app.list_worker_states_async()
    await app.close_async()
    assert isinstance(ping, Err)
    assert isinstance(states, Err)
    assert (ping.error.code, ping.error.retryable) == (BrokerErrorCode.WORKER_PING_FAILED, True)
    assert (states.error.code, states.error.retryable) == (BrokerErrorCode.MONITORING_QUERY_FAILED, True)


async def test_a_connection_lost_while_waiting_is_an_error_that_may_pass(app: Horsies, database_url: str) -> None:
    async with FakeWorker(says=(), cuts_the_line=True).at_work(database_url):
        result = await app.ping_workers_async(timeout_seconds=FOR_EVER_S)
    assert isinstance(result, Err)
    assert (result.error.code, result.error.retryable) == (BrokerErrorCode.WORKER_PING_FAILED, True)


async def test_a_blocking_call_inside_an_event_loop_is_refused_as_a_value(app: Horsies) -> None:
    for result in (app.ping_workers(), app.list_worker_states(), app.get_worker_state(str(uuid4()))):
        assert isinstance(result, Err)
        assert result.error.code is BrokerErrorCode.ASYNC_CONTEXT


def test_every_call_has_a_blocking_twin(database_url: str) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url)))
    worker_id = str(uuid4())
    assert app.ping_workers(timeout_seconds=A_MOMENT_S).unwrap() == []
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


async def test_the_states_are_the_newest_of_each_worker(app: Horsies, database_url: str) -> None:
    first, second = str(uuid4()), str(uuid4())
    await _snapshot(database_url, first, seconds_ago=9, running=1)
    await _snapshot(database_url, first, seconds_ago=5, running=2)
    await _snapshot(database_url, second, seconds_ago=7, running=3)
    states = (await app.list_worker_states_async()).unwrap()
    assert [(state.worker_id, state.tasks_running) for state in states] == [(first, 2), (second, 3)]
    assert states[0].queue_max_concurrency == {"mail": None}
    assert states[0].recovery_config == {"check_interval_ms": 1000}


async def test_the_history_of_a_worker_comes_newest_first_and_may_be_limited(app: Horsies, database_url: str) -> None:
    worker_id = str(uuid4())
    for seconds_ago in (3, 1, 2):
        await _snapshot(database_url, worker_id, seconds_ago=seconds_ago, running=seconds_ago)
    await _snapshot(database_url, str(uuid4()), seconds_ago=0)
    every = (await app.get_worker_state_history_async(worker_id)).unwrap()
    newest = (await app.get_worker_state_history_async(worker_id, limit=1)).unwrap()
    assert [state.tasks_running for state in every] == [1, 2, 3]
    assert newest == every[:1] == [(await app.get_worker_state_async(worker_id)).unwrap()]


async def test_a_worker_id_or_limit_without_sense_is_refused(app: Horsies) -> None:
    for result in (
        await app.get_worker_state_async("w-7"),
        await app.get_worker_state_history_async(str(uuid4()), limit=0),
    ):
        assert isinstance(result, Err)
        assert result.error.code is BrokerErrorCode.MONITORING_QUERY_FAILED
