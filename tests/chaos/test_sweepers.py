"""Many sweepers at once, and a sign of life at the last moment."""

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
from horsies.recovery.sweep import run_pass, sweep
from horsies.store.claims import ClaimRef
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.workers import HeartbeatStore, TaskHeartbeat
from tests.support.ledger import Ledger, OrphanedTask

SWEEPERS = 8
MANY = 40
AN_HOUR_S = 3600.0
PLAIN_AGES = SweepOptions(force=True)
BY_HAND = OperatorObserver(local_config=RecoveryConfig())
WAITING = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%recovery.apply_decision%'"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@asynccontextmanager
async def sweepers(url: str) -> AsyncGenerator[list[Database]]:
    """As many processes would: each with connections of its own."""
    databases = [Database(ConnectionSpec(url=url, masked_url=url)) for _ in range(SWEEPERS)]
    try:
        yield databases
    finally:
        for database in databases:
            await database.close()


@asynccontextmanager
async def holding_row(url: str, task_id: str) -> AsyncGenerator[None]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM horsies_tasks WHERE id = $1::text::uuid FOR UPDATE", task_id)
            yield
    finally:
        await connection.close()


async def by_hand(database: Database) -> SweepReport:
    return await sweep(database, PLAIN_AGES, observer=BY_HAND)


async def beat_for(database: Database, ledger: Ledger, task_id: str) -> None:
    """Write the owner's own beat, by the statement that workers use."""
    sql = "SELECT claimed_by_worker_id AS owner FROM horsies_tasks WHERE id = $1::text::uuid"
    (row,) = await ledger.fetch(sql, task_id)
    hold = ClaimRef(task_id=UUID(task_id), claim_token=1, worker_id=UUID(str(row["owner"])))
    (answer,) = await HeartbeatStore(database=database, hostname="elsewhere").send_runner_heartbeats(
        [TaskHeartbeat(claim=hold, pid=1)]
    )
    assert answer.is_held


async def test_sweepers_that_know_nothing_of_each_other_settle_each_task_once(
    ledger: Ledger, database_url: str
) -> None:
    statuses = ["RUNNING", "CLAIMED"] * (MANY // 2)
    sent = [
        await OrphanedTask(status=status, task="wait_for", silent_s=AN_HOUR_S).insert(ledger) for status in statuses
    ]
    async with sweepers(database_url) as databases:
        # Past the turn, which is an economy and not what makes a sweep right.
        passes = [run_pass(each, PLAIN_AGES, observer=BY_HAND) for each in databases]
        reports = await asyncio.gather(*passes)
    assert sum(report.recovered_count for report in reports) == MANY
    applied = [task.task_id for report in reports for task in report.tasks if task.applied]
    assert sorted(map(str, applied)) == sorted(sent)
    rows = await ledger.rows(*sent)
    assert sorted(row["status"] for row in rows.values()) == ["FAILED"] * (MANY // 2) + ["PENDING"] * (MANY // 2)
    assert len(await ledger.attempts(*sent)) == MANY // 2
    assert len(await ledger.events("task_recovered")) == MANY
    assert (await ledger.fetch(DEADLOCKS))[0]["deadlocks"] == 0


async def test_of_sweepers_in_turn_one_settles_and_the_others_say_that_they_did_not_look(
    ledger: Ledger, database_url: str
) -> None:
    sent = [await OrphanedTask(task="wait_for", silent_s=AN_HOUR_S).insert(ledger) for _ in range(MANY)]
    async with sweepers(database_url) as databases:
        async with holding_row(database_url, sent[0]):
            first = asyncio.create_task(by_hand(databases[0]))
            await ledger.until(lambda: ledger.fetch(WAITING))
            others = await asyncio.gather(*(by_hand(each) for each in databases[1:]))
        report = await first
    assert {other.status for other in others} == {SweepStatus.BUSY}
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, MANY)
    assert {row["attempts"] for row in (await ledger.rows(*sent)).values()} == {1}


@pytest.mark.parametrize("is_waiting", [False, True], ids=["before the lock", "while the verdict waits for it"])
async def test_a_beat_that_lands_after_the_scan_saves_the_task(
    ledger: Ledger, database_url: str, is_waiting: bool
) -> None:
    blocker, saved = [await OrphanedTask(task="wait_for", silent_s=AN_HOUR_S).insert(ledger) for _ in range(2)]
    held = saved if is_waiting else blocker  # rows are settled in the order of their ids
    async with sweepers(database_url) as databases:
        async with holding_row(database_url, held):
            sweeping = asyncio.create_task(by_hand(databases[0]))
            await ledger.until(lambda: ledger.fetch(WAITING))
            await beat_for(databases[1], ledger, saved)
        report = await sweeping
    assert {str(task.task_id): task.applied for task in report.tasks} == {blocker: True, saved: False}
    row = await ledger.row(saved)
    assert (row["status"], row["attempts"], row["crash_count"]) == ("RUNNING", 0, 0)
