"""Concurrent sweeps, and heartbeats that arrive during a sweep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from horsies.model.recovery.fleet import OperatorObserver, SweepOptions
from horsies.model.settings import RecoveryConfig
from horsies.recovery.report import SweepReport, SweepStatus
from horsies.recovery.sweep import Sweep
from horsies.store.claims import ClaimRef
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.workers import HeartbeatRole, WorkerStore
from tests.support.ledger import Ledger, OrphanedTask

SWEEPERS = 8
TASKS = 40
HOUR_S = 3600.0
FORCED = SweepOptions(force=True)
OPERATOR = OperatorObserver(local_config=RecoveryConfig())
WAITING = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%recovery.apply_decision%'"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@asynccontextmanager
async def sweepers(url: str) -> AsyncGenerator[list[Database]]:
    """Databases with their own connections, as separate processes would have."""
    databases = [Database(ConnectionSpec(url=url, masked_url=url)) for _ in range(SWEEPERS)]
    try:
        yield databases
    finally:
        for database in databases:
            await database.close()


@asynccontextmanager
async def locked_row(url: str, task_id: str) -> AsyncGenerator[None]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM horsies_tasks WHERE id = $1::text::uuid FOR UPDATE", task_id)
            yield
    finally:
        await connection.close()


async def operator_sweep(database: Database) -> SweepReport:
    return await Sweep(database, FORCED, observer=OPERATOR).run()


async def send_heartbeat(database: Database, ledger: Ledger, task_id: str) -> None:
    """Send a heartbeat as the owner, with the statement that workers use."""
    sql = "SELECT claimed_by_worker_id AS owner FROM horsies_tasks WHERE id = $1::text::uuid"
    (row,) = await ledger.fetch(sql, task_id)
    claim = ClaimRef(task_id=UUID(task_id), claim_token=1, worker_id=UUID(str(row["owner"])))
    (reply,) = await WorkerStore(database).task_heartbeats(HeartbeatRole.RUNNER, {claim: 1}, hostname="elsewhere")
    assert reply.is_held


async def test_concurrent_sweeps_recover_each_task_once(ledger: Ledger, database_url: str) -> None:
    statuses = ["RUNNING", "CLAIMED"] * (TASKS // 2)
    sent = [await OrphanedTask(status=status, task="wait_for", silent_s=HOUR_S).insert(ledger) for status in statuses]
    async with sweepers(database_url) as databases:
        # Without the leader lock: it only saves work, sweeps must be correct without it.
        passes = [Sweep(database, FORCED, observer=OPERATOR).run_pass() for database in databases]
        reports = await asyncio.gather(*passes)
    assert sum(report.recovered_count for report in reports) == TASKS
    applied = [task.task_id for report in reports for task in report.tasks if task.applied]
    assert sorted(map(str, applied)) == sorted(sent)
    rows = await ledger.rows(*sent)
    assert sorted(row["status"] for row in rows.values()) == ["FAILED"] * (TASKS // 2) + ["PENDING"] * (TASKS // 2)
    assert len(await ledger.attempts(*sent)) == TASKS // 2
    assert len(await ledger.events("task_recovered")) == TASKS
    assert (await ledger.fetch(DEADLOCKS))[0]["deadlocks"] == 0


async def test_leader_lock_lets_one_sweep_run(ledger: Ledger, database_url: str) -> None:
    sent = [await OrphanedTask(task="wait_for", silent_s=HOUR_S).insert(ledger) for _ in range(TASKS)]
    async with sweepers(database_url) as databases:
        async with locked_row(database_url, sent[0]):
            first = asyncio.create_task(operator_sweep(databases[0]))
            await ledger.until(lambda: ledger.fetch(WAITING))
            others = await asyncio.gather(*(operator_sweep(database) for database in databases[1:]))
        report = await first
    assert {other.status for other in others} == {SweepStatus.BUSY}
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, TASKS)
    assert {row["attempts"] for row in (await ledger.rows(*sent)).values()} == {1}


@pytest.mark.parametrize("is_waiting", [False, True], ids=["before the lock", "while the decision waits for the lock"])
async def test_heartbeat_after_the_scan_saves_the_task(ledger: Ledger, database_url: str, is_waiting: bool) -> None:
    blocker, saved = [await OrphanedTask(task="wait_for", silent_s=HOUR_S).insert(ledger) for _ in range(2)]
    locked = saved if is_waiting else blocker  # rows are recovered in the order of their ids
    async with sweepers(database_url) as databases:
        async with locked_row(database_url, locked):
            sweeping = asyncio.create_task(operator_sweep(databases[0]))
            await ledger.until(lambda: ledger.fetch(WAITING))
            await send_heartbeat(databases[1], ledger, saved)
        report = await sweeping
    assert {str(task.task_id): task.applied for task in report.tasks} == {blocker: True, saved: False}
    row = await ledger.row(saved)
    assert (row["status"], row["attempts"], row["crash_count"]) == ("RUNNING", 0, 0)
