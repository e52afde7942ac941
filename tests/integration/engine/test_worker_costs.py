"""The load of a worker on the server: connections, transactions, row versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from horsies.engine import events
from tests.support.databases import Cluster
from tests.support.ledger import POLL_S, Ledger, insert_pending_tasks, statuses
from tests.support.workers import worker_in_process

IDLE_S = 5
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1"
HAS_STARTED = """
SELECT count(*) = 3 AND max(query_start) < clock_timestamp() - interval '1 second'
  FROM pg_stat_activity
 WHERE datname = $1 AND backend_type = 'client backend'
"""
"""Whether the statements of the start are over: its three sessions have sent none for a second."""
COMPLETED_ONCE = """
SELECT count(*) AS attempts, count(DISTINCT t.id) AS tasks
  FROM horsies_task_attempts AS a
  JOIN horsies_tasks AS t ON t.id = a.task_id AND t.status = 'COMPLETED' AND t.result IS NOT NULL
 WHERE a.outcome = 'COMPLETED'
"""
IDLE = {
    "recovery": {
        "runner_heartbeat_interval_ms": 30_000,
        "claimer_heartbeat_interval_ms": 30_000,
        "claimed_stale_threshold_ms": 120_000,
        "running_stale_threshold_ms": 300_000,
        "worker_stale_threshold_ms": 300_000,
        "check_interval_ms": 30_000,
    },
    "resilience": {"notify_poll_interval_ms": 5_000},
}


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


async def test_idle_worker_has_three_connections(database_url: str, ledger: Ledger) -> None:
    for processes in (1, 6):
        async with worker_in_process(database_url, config=IDLE, processes=processes) as worker:
            await worker.until(lambda worker=worker, processes=processes: len(worker.children) == processes)
            await ledger.until_connections_are(3)
        await ledger.until_connections_are(0)


async def test_busy_worker_stays_within_its_connection_limit(database_url: str, ledger: Ledger) -> None:
    max_connections = 0
    async with worker_in_process(database_url, processes=2, max_tasks_per_child=100) as worker:
        first = {child.pid for child in worker.children}
        task_ids = await insert_pending_tasks(ledger, "plain", count=1_000)

        async def are_done() -> bool:
            nonlocal max_connections
            max_connections = max(max_connections, await ledger.connections())
            return len(worker.events_of(events.TaskFinished)) == len(task_ids)

        await ledger.until(are_done, within_s=30)
        await worker.until(lambda: not first & {child.pid for child in worker.children})
    assert max_connections <= 7
    assert await statuses(ledger, *task_ids) == ["COMPLETED"] * len(task_ids)


async def transactions(ledger: Ledger) -> int:
    (row,) = await ledger.fetch(COMMITS.replace("$1", "current_database()"))
    return row["xact_commit"]


async def test_idle_worker_commits_at_most_once_a_second(database_url: str, cluster: Cluster) -> None:
    # Measured from another database, so that our own transactions do not count.
    observer = await asyncpg.connect(cluster.url)
    name = urlsplit(database_url).path.removeprefix("/")

    async def commits_of_a_worker(idle_s: float) -> int:
        before = await observer.fetchval(COMMITS, name)
        async with worker_in_process(database_url, config=IDLE):
            while not await observer.fetchval(HAS_STARTED, name):  # noqa: ASYNC110  # the server sets no events
                await asyncio.sleep(POLL_S)
            await asyncio.sleep(idle_s)
        # A connection flushes its statistics when it closes.
        while await observer.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = $1", name):  # noqa: ASYNC110  # the server sets no events
            await asyncio.sleep(POLL_S)
        return await observer.fetchval(COMMITS, name) - before

    # On a busy machine a start may need more commits than another: the fewest of each count.
    shorts, longs = list[int](), list[int]()
    for _ in range(3):
        shorts.append(await commits_of_a_worker(0))
        longs.append(await commits_of_a_worker(IDLE_S))
        if min(longs) - min(shorts) <= IDLE_S:
            break
    await observer.close()
    assert min(longs) - min(shorts) <= IDLE_S, (shorts, longs)


async def test_draining_many_tasks_needs_few_transactions_and_updates(database_url: str, ledger: Ledger) -> None:
    tasks = 10_000
    await insert_pending_tasks(ledger, "plain", count=tasks)
    before = await transactions(ledger)
    async with worker_in_process(database_url, config=IDLE, processes=2) as worker:
        await worker.until(lambda: len(worker.events_of(events.TaskFinished)) == tasks, within_s=90)
    # A connection flushes its statistics when it closes.
    await ledger.until_connections_are(0)
    (table,) = await ledger.fetch("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'horsies_tasks'")
    assert (await transactions(ledger) - before) / tasks <= 0.1
    # On a busy machine some chunks are recalled, which writes their rows twice more.
    assert 2 <= table["n_tup_upd"] / tasks <= 2.2
    assert await ledger.fetch(COMPLETED_ONCE) == [{"attempts": tasks, "tasks": tasks}]
