"""F20: no deadlocks behind PgBouncer in transaction mode with a single server connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from horsies import PostgresConfig
from horsies.model.events import EventKind
from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.report import SweepStatus
from horsies_ops.ops import Ops, open_ops
from horsies_ops.reads.filters import TaskFilter
from tests.support.databases import PGBOUNCER, pgbouncer
from tests.support.ledger import Ledger, OrphanedTask
from tests.support.rows import HOUR, insert_finished_task
from tests.support.workers import worker_in_process

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="needs the pgbouncer package")

LIMIT_S = 15
"""Much longer than needed, and half the time a statement waits for a connection."""


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


def _pooled(pooler: str, database_url: str) -> dict[str, Any]:
    return {"database_url": pooler, "session_database_url": database_url, "pgbouncer_transaction_mode": True}


@asynccontextmanager
async def _ops_behind_one_connection(database_url: str) -> AsyncGenerator[Ops]:
    with pgbouncer(database_url, pool_size=1) as pooler:
        async with open_ops(PostgresConfig(**_pooled(pooler, database_url))) as ops, asyncio.timeout(LIMIT_S):
            yield ops


async def test_worker_runs_tasks_and_recovers_orphans(ledger: Ledger, database_url: str) -> None:
    orphan = await OrphanedTask().insert(ledger)
    with pgbouncer(database_url, pool_size=1) as pooler:
        broker = _pooled(pooler, database_url)
        config = {"database_url": broker.pop("database_url"), "broker": broker}
        async with worker_in_process(database_url, config=config, processes=2) as worker:
            sent = [await worker.send("work") for _ in range(10)]
            rows = await ledger.until_terminal(orphan, *sent, within_s=LIMIT_S)
    assert [rows[task_id]["status"] for task_id in sent] == ["COMPLETED"] * 10
    assert rows[orphan]["error_code"] == "WORKER_CRASHED"


async def test_sweep_works_while_it_holds_the_leader_lock(ledger: Ledger, database_url: str) -> None:
    orphan = await OrphanedTask(silent_s=3600).insert(ledger)
    async with _ops_behind_one_connection(database_url) as ops:
        report = await ops.sweep(SweepOptions(force=True))
    assert (report.status, [str(task.task_id) for task in report.tasks]) == (SweepStatus.DONE, [orphan])


async def test_cleanup_works(ledger: Ledger, database_url: str) -> None:
    await insert_finished_task(database_url, age=10_000 * HOUR)
    async with _ops_behind_one_connection(database_url) as ops:
        report = await ops.cleanup()
    assert report.cleaned.counts["tasks"] == 1
    assert len(await ledger.events(EventKind.RETENTION_FINISHED)) == 1


async def test_concurrent_queries_of_the_screens_are_answered(ledger: Ledger, database_url: str) -> None:
    orphan = await OrphanedTask(silent_s=3600).insert(ledger)
    async with _ops_behind_one_connection(database_url) as ops, asyncio.TaskGroup() as group:
        stale = group.create_task(ops.stale_candidates(SweepOptions(force=True)))
        for query in (
            ops.overview(),
            ops.list_queues(),
            ops.list_tasks(TaskFilter(names=["unknown"])),
            ops.count_tasks(),
            ops.facets(),
            ops.list_workflows(),
            ops.events(),
            ops.storage(),
            ops.cleanup_candidates(),
        ):
            group.create_task(query)
    assert [str(task.task_id) for task in (await stale).tasks] == [orphan]
