"""Lost notifications: tasks are found by polling, the worker reports it and recovers."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

import horsies.store
from horsies.engine import events
from horsies.errors import ExitCode
from tests.support.cli import Executable
from tests.support.faults import Proxy
from tests.support.ledger import Ledger
from tests.support.workers import APP, ROOT, InProcessWorker, environment_of, worker_in_process

POLL_S = 1.0
FLOOD = "SELECT pg_notify('horsies_worker_ping', $1 || repeat(' ', n)) FROM generate_series(1, 500) AS n"
PROBE_AFTER_S = 0.3

KILL_LISTENERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()
"""
NOTIFICATIONS = Path(horsies.store.__file__).parent / "migrations" / "0005_notifications.sql"
ENABLE = "ALTER TABLE horsies_tasks ENABLE TRIGGER horsies_tasks_announce"
CREATE = "CREATE TRIGGER" + NOTIFICATIONS.read_text().split("CREATE TRIGGER")[1].split(";")[0]


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


async def until_listener_is(ledger: Ledger, state: str) -> None:
    async def matches() -> bool:
        (row,) = await ledger.fetch("SELECT health FROM horsies_workers")
        return json.loads(row["health"]).get("listener") == state

    await ledger.until(matches)


async def waited_s(ledger: Ledger, worker: InProcessWorker) -> float:
    """Send a task and return how long it waited."""
    task_id = await worker.send("work")
    row = (await ledger.until_terminal(task_id))[task_id]
    return (row["started_at"] - row["enqueued_at"]).total_seconds()


async def test_disconnected_listener_reconnects(ledger: Ledger, database_url: str) -> None:
    async with worker_in_process(database_url, processes=1) as worker:
        await ledger.until(lambda: ledger.fetch(KILL_LISTENERS))
        await worker.wait_for_event(events.ListenerDegraded)
        await worker.wait_for_event(events.ListenerRestored)
        assert await waited_s(ledger, worker) < POLL_S
        assert [row["kind"] for row in await ledger.fetch("SELECT kind FROM horsies_events ORDER BY id")] == [
            "listener_degraded",
            "listener_restored",
        ]


async def test_tasks_are_found_by_polling_without_a_listener(ledger: Ledger, database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        broker = {"broker": {"session_database_url": proxy.url}}
        async with worker_in_process(database_url, config=broker, processes=1) as worker:
            proxy.cut()
            await until_listener_is(ledger, "degraded")
            assert await waited_s(ledger, worker) < POLL_S + 0.5
            proxy.restore()
            await until_listener_is(ledger, "ok")
            assert await waited_s(ledger, worker) < POLL_S


async def test_frozen_listener_connection_is_detected_and_replaced(ledger: Ledger, database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        broker = {"broker": {"session_database_url": proxy.url}}
        async with worker_in_process(database_url, config=broker, processes=1, probe_after_s=PROBE_AFTER_S) as worker:
            proxy.freeze()
            degraded = await worker.wait_for_event(events.ListenerDegraded)
            assert "receives no notifications" in degraded.why
            await until_listener_is(ledger, "degraded")
            proxy.restore()
            await worker.wait_for_event(events.ListenerRestored)
            await until_listener_is(ledger, "ok")


@pytest.mark.parametrize(
    ("break_sql", "repair_sql"),
    [
        ("ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_tasks_announce", ENABLE),
        ("ALTER TABLE horsies_tasks ENABLE REPLICA TRIGGER horsies_tasks_announce", ENABLE),
        ("DROP TRIGGER horsies_tasks_announce ON horsies_tasks", CREATE),
    ],
)
async def test_tasks_are_found_by_polling_without_the_trigger(
    ledger: Ledger, database_url: str, break_sql: str, repair_sql: str
) -> None:
    async with worker_in_process(database_url, processes=1, probe_after_s=PROBE_AFTER_S) as worker:
        await ledger.fetch(break_sql)
        degraded = await worker.wait_for_event(events.ListenerDegraded)
        assert "horsies_tasks_announce" in degraded.why
        await until_listener_is(ledger, "degraded")
        assert await waited_s(ledger, worker) < POLL_S + 0.5
        await ledger.fetch(repair_sql)
        await worker.wait_for_event(events.ListenerRestored)
        await until_listener_is(ledger, "ok")
        assert await waited_s(ledger, worker) < POLL_S


async def test_retry_starts_on_time_with_rare_polls(ledger: Ledger, database_url: str) -> None:
    rare_polls = {"resilience": {"notify_poll_interval_ms": 30_000}}
    async with worker_in_process(database_url, config=rare_polls, processes=1) as worker:
        task_id = await worker.send("return_error", "LISTED")
        await ledger.until_terminal(task_id, within_s=20)
    first, second, third = [entry.at for entry in await ledger.starts(task_id)]
    assert [1 <= later.total_seconds() < 2 for later in (second - first, third - second)] == [True, True]


def test_worker_without_notifications_does_not_start(database_url: str, empty_database_url: str) -> None:
    # A notification in one database does not reach another, just as with a pooler in between.
    config = {"broker": {"session_database_url": empty_database_url}}
    answer = Executable(cwd=ROOT, environment=environment_of(database_url, config))("worker", APP)
    assert answer.code == ExitCode.FAILED
    assert "HRS-211" in answer.stderr
    assert "session_database_url" in answer.stderr
    assert "worker started" not in answer.stderr


async def test_flood_of_pings_is_bounded(ledger: Ledger, database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Any role that may connect can notify. A malformed message costs one line at DEBUG and no exception."""
    caplog.set_level(logging.DEBUG, "horsies.notify")
    async with worker_in_process(database_url, processes=1) as worker:
        stranger = await asyncpg.connect(database_url)
        heard: list[str] = []

        def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            heard.append(str(payload))

        await stranger.add_listener("horsies_task_new", hear)
        for message in (
            "[" * 5_000,
            "9" * 5_000,
            '{"kind": "ping", "target_worker_id": 1e999}',
            '{"kind": "ping", "target_worker_id": []}',
            json.dumps({"kind": "ping", "reply_channel": "horsies_task_new"}),
            json.dumps({"kind": "ping", "reply_channel": "horsies_pong_" + "0" * 32, "correlation_id": "x" * 5_000}),
        ):
            await stranger.execute("SELECT pg_notify('horsies_worker_ping', $1)", message)
        ping = json.dumps({"kind": "ping", "reply_channel": "horsies_pong_" + "0" * 32})
        for _ in range(20):
            await stranger.execute(FLOOD, ping)
        assert await waited_s(ledger, worker) < POLL_S
        await stranger.close()
        assert all("worker_id" not in payload for payload in heard)
    assert [record for record in caplog.records if record.name == "asyncio"] == []
    malformed = [record.message for record in caplog.records if record.message.startswith("malformed message")]
    assert [message.split(": ")[1] for message in malformed] == ["RecursionError", "ValueError"]
