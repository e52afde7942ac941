"""Roles that may connect but have no privilege on our tables: they can hold our advisory locks, and are named."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import psutil
import pytest

import horsies_ops
from horsies.client.delivery import FLUSH_AFTER_S
from horsies.engine import events
from horsies.model.retention import RetentionWindows
from horsies.recovery.retention import Cleanup
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database, LockHolder, lock_holders
from horsies.store.recovery import RecoveryStore
from horsies_ops.doctor import CheckStatus, check_access, check_locks, locks_finding
from tests.support.cli import Executable
from tests.support.databases import Cluster, start_script
from tests.support.ledger import Ledger
from tests.support.store import listen_on
from tests.support.workers import worker_in_process, worker_process

INTERVAL = timedelta(seconds=30)
# The key of a lock can be computed by everyone.
TAKE = "SELECT pg_advisory_lock(hashtextextended('public/' || $1, 0))"
FLOOD = "SELECT pg_notify('horsies_worker_ping', $1 || repeat(' ', n)) FROM generate_series(1, 500) AS n"
HOLD_SWEEP_LOCK = """
import asyncio, datetime
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.recovery import RecoveryStore
async def work():
    say(held=True)
    await asyncio.sleep(60)
async def main():
    database = Database(ConnectionSpec(url={url!r}, masked_url="test"))
    await RecoveryStore(database).with_leader_lock(work, interval=datetime.timedelta(seconds=1))
asyncio.run(main())
"""


@pytest.fixture
def stranger_url(cluster: Cluster, database_url: str) -> Iterator[str]:
    with cluster.role(database_url) as url:
        yield url


@pytest.fixture
def worker_url(cluster: Cluster, database_url: str) -> Iterator[str]:
    with cluster.role(database_url, "GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}") as url:
        yield url


@pytest.fixture
def creator_url(cluster: Cluster, database_url: str) -> Iterator[str]:
    with cluster.role(database_url, "GRANT CREATE ON SCHEMA public TO {role}") as url:
        yield url


@pytest.fixture
async def stranger(stranger_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(stranger_url, server_settings={"application_name": "mallory"})
    yield connection
    await connection.close()


async def test_holder_of_a_lock_is_named(database: Database, stranger: asyncpg.Connection[Any]) -> None:
    await stranger.execute("BEGIN")
    await stranger.fetchval(TAKE, "sweep")
    [holder] = await lock_holders(database, ["sweep", "claim"])
    assert (holder.purpose, holder.application_name, holder.is_ours) == ("sweep", "mallory", False)
    assert holder.pid == stranger.get_server_pid()
    assert str(holder.role) in str(holder)
    assert holder.is_suspicious(INTERVAL)


async def test_age_that_may_not_be_seen_is_said(worker_url: str, stranger: asyncpg.Connection[Any]) -> None:
    await stranger.fetchval(TAKE, "sweep")
    async with Database(ConnectionSpec(url=worker_url, masked_url="test")) as worker:
        [holder] = await lock_holders(worker, ["sweep"])
    assert (holder.age, holder.application_name) == (None, "mallory")
    assert "hidden from this role" in str(holder)


async def test_claim_waits_for_a_bounded_time_and_names_the_holder(
    database_url: str, stranger: asyncpg.Connection[Any]
) -> None:
    await stranger.fetchval(TAKE, "claim")
    config = {"cluster_wide_cap": 4}
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, config=config) as worker:
        task_id = await worker.send("work")
        blocked = await worker.wait_for_event(events.ClaimsBlocked, within_s=20)
        assert f"pid {stranger.get_server_pid()}: application mallory" in blocked.holder
        assert worker.events_of(events.DatabaseLost) == []
        await stranger.execute("SELECT pg_advisory_unlock_all()")
        await ledger.until_terminal(task_id)


async def test_sweep_lock_of_a_stranger_is_logged(
    database: Database, stranger: asyncpg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    await stranger.fetchval(TAKE, "sweep")

    async def work() -> bool:
        return True

    with caplog.at_level(logging.WARNING, "horsies.locks"):
        assert await RecoveryStore(database).with_leader_lock(work) is None
    assert "application mallory" in caplog.text
    await stranger.execute("SELECT pg_advisory_unlock_all()")
    assert await RecoveryStore(database).with_leader_lock(work)


async def test_retention_lock_of_a_stranger_is_logged_once_a_pass(
    database: Database, stranger: asyncpg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    await stranger.fetchval(TAKE, "retention")
    with caplog.at_level(logging.WARNING, "horsies.locks"):
        summary = await Cleanup(
            database, RetentionWindows(terminal_records=INTERVAL, events=INTERVAL), budget_s=None
        ).run()
    assert summary.is_busy
    assert caplog.text.count("application mallory") == 1


async def test_stopped_leader_frees_the_sweep_lock(database: Database, database_url: str) -> None:
    process = start_script(HOLD_SWEEP_LOCK.format(url=database_url), Path("/nowhere"))
    try:
        assert process.stdout
        await asyncio.to_thread(process.stdout.readline)

        async def work() -> bool:
            return True

        await asyncio.sleep(1.5)  # longer than its interval: a live leader keeps the lock
        assert await RecoveryStore(database).with_leader_lock(work) is None
        process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        while await RecoveryStore(database).with_leader_lock(work) is None:
            assert time.monotonic() - stopped_at < 1.5
            await asyncio.sleep(0.02)
    finally:
        process.kill()
        process.communicate()


async def test_coalescing_lock_of_a_stranger_costs_no_notification(
    database_url: str, stranger: asyncpg.Connection[Any]
) -> None:
    """Each send is notified, once; the worker does not poll meanwhile."""
    await stranger.fetchval(TAKE, "announce/default")
    rare_polls = {"resilience": {"notify_poll_interval_ms": 60_000}}
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=rare_polls, processes=1) as worker,
    ):
        notifications = await listen_on(stranger, "horsies_task_new")
        for _ in range(5):
            task_id = await worker.send("work")
            async with asyncio.timeout(20):  # before the next send, which may share its notification
                assert await notifications.get() == "default"
            await ledger.until_terminal(task_id, within_s=20)
        await stranger.execute("NOTIFY horsies_task_new, 'end'")
        async with asyncio.timeout(20):
            assert await notifications.get() == "end"
    assert FLUSH_AFTER_S <= 0.05, "how long a send that cannot take the lock leaves its notification to the flush"


async def test_flood_of_pings_does_not_swell_the_worker(database_url: str, stranger: asyncpg.Connection[Any]) -> None:
    """Measured until it has received them all: it answers the last ping, which a full queue drops at first."""
    ping = {"kind": "ping", "reply_channel": f"horsies_pong_{uuid4().hex}", "correlation_id": "x" * 300}
    answered = asyncio.Event()

    def on_pong(*_: object) -> None:
        answered.set()

    async with worker_process(database_url, "--processes", "1") as worker:
        process = psutil.Process(worker.pid)
        before = process.memory_info().rss
        for _ in range(120):
            await stranger.execute(FLOOD, json.dumps(ping))
        last = ping | {"reply_channel": f"horsies_pong_{uuid4().hex}"}
        await stranger.add_listener(str(last["reply_channel"]), on_pong)
        async with asyncio.timeout(60):
            while not answered.is_set():
                await stranger.execute("SELECT pg_notify('horsies_worker_ping', $1)", json.dumps(last))
                with suppress(TimeoutError):
                    await asyncio.wait_for(answered.wait(), 0.5)
        grown_mb = (process.memory_info().rss - before) / 2**20
    assert grown_mb < 30, f"grown by {grown_mb:.0f} MB"


async def test_every_wait_for_an_advisory_lock_is_bounded(database: Database) -> None:
    """Statements only try; the functions that wait have a `lock_timeout`."""
    sql = resources.files("horsies.store") / "sql"
    statements = "".join(file.read_text() for file in sql.iterdir())
    assert re.findall(r"\w*advisory\w*lock\(", statements).count("pg_advisory_xact_lock(") == 0
    connection = await asyncpg.connect(database.connection_spec.url)
    rows = await connection.fetch(
        "SELECT proname, proconfig FROM pg_proc WHERE prosrc ~ 'pg_advisory' AND pronamespace = 'public'::regnamespace"
    )
    await connection.close()
    assert [row["proname"] for row in rows] == ["horsies_lock_in_flight"]
    assert "lock_timeout=3s" in rows[0]["proconfig"]


async def test_doctor_fails_while_a_stranger_holds_a_lock(database_url: str, stranger: asyncpg.Connection[Any]) -> None:
    await stranger.fetchval(TAKE, "retention")
    async with horsies_ops.connect(database_url) as ops:
        finding = await check_locks(ops)
    assert finding.status is CheckStatus.FAIL
    assert f"pid {stranger.get_server_pid()}" in finding.detail
    assert "pg_terminate_backend" in str(finding.hint)


def test_lock_of_ours_fails_after_an_interval() -> None:
    def status(age: timedelta) -> CheckStatus:
        holder = LockHolder(purpose="sweep", pid=1, role="w", application_name="horsies", age=age, is_ours=True)
        return locks_finding([holder], interval=INTERVAL).status

    assert status(INTERVAL / 2) is CheckStatus.OK
    assert status(INTERVAL * 2) is CheckStatus.FAIL


async def test_doctor_fails_if_another_role_may_create_functions(database_url: str, creator_url: str) -> None:
    role = creator_url.split("//")[1].split("@", maxsplit=1)[0]
    async with horsies_ops.connect(database_url) as ops:
        finding = await check_access(ops)
    assert finding.status is CheckStatus.FAIL
    assert f"{role} may create functions in the schema public" in finding.detail
    assert f"REVOKE CREATE ON SCHEMA public FROM {role}" in str(finding.hint)


@pytest.mark.usefixtures("stranger_url")
async def test_doctor_warns_if_every_role_may_connect(database_url: str) -> None:
    async with horsies_ops.connect(database_url) as ops:
        finding = await check_access(ops)
        assert (finding.status, "REVOKE CONNECT" in str(finding.hint)) == (CheckStatus.WARN, True)
        connection = await asyncpg.connect(database_url)
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
        await connection.close()
        assert (await check_access(ops)).status is CheckStatus.OK


def test_migrate_warns_of_roles_that_may_create(database_url: str, creator_url: str, tmp_path: Path) -> None:
    done = Executable(cwd=tmp_path)("db", "migrate", "--database-url", database_url)
    assert done.code == 0
    assert "may create functions in the schema public" in done.stderr
