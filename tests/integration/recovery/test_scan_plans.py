"""Rows read by a scan for stale tasks: unfinished tasks and their recent heartbeats only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from horsies.store.recovery import PAGE_SIZE, RECOVERY
from tests.support.databases import Cluster
from tests.support.store import Connection

FINISHED, PENDING, RUNNING, OVERDUE = 30_000, 10_000, 400, 50
FIRST = UUID(int=0)
SCAN = ("RUNNING", FIRST, timedelta(minutes=5), None, None, True, PAGE_SIZE)

FILL = """
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, terminal_at)
SELECT gen_random_uuid(), 'x', now(), '', 'COMPLETED', now() FROM generate_series(1, {finished});
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, good_until)
SELECT gen_random_uuid(), 'x', now(), '', now() + CASE WHEN n <= {overdue} THEN '-1 s' ELSE '1 day' END::interval
  FROM generate_series(1, {pending}) AS n;
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, claim_token, claimed_at, started_at)
SELECT gen_random_uuid(), 'x', now(), '', 'RUNNING', 1, now() - interval '1 h', now() - interval '1 h'
  FROM generate_series(1, {running});
INSERT INTO horsies_heartbeats (task_id, claim_token, role, sender_id, sent_at)
SELECT id, 1, 'runner', 'x', now() - make_interval(secs => 30 * n)
  FROM horsies_tasks, generate_series(1, 20) AS n
 WHERE status = 'RUNNING';
ANALYZE;
"""

READ = (
    "SELECT pg_stat_get_xact_tuples_returned(c) + pg_stat_get_xact_tuples_fetched(c) FROM (SELECT $1::regclass) AS t(c)"
)


@pytest.fixture(scope="module")
def large_url(cluster: Cluster) -> Iterator[str]:
    with cluster.database(migrated=True) as url:
        asyncio.run(_fill(url))
        yield url


async def _fill(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(FILL.format(finished=FINISHED, pending=PENDING, running=RUNNING, overdue=OVERDUE))
    await connection.close()


@pytest.fixture
async def large(large_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(large_url)
    async with connection.transaction():
        yield connection
    await connection.close()


async def _rows_read(connection: Connection, table: str, sql: str, *arguments: Any) -> int:
    before = await connection.fetchval(READ, table)
    await connection.fetch(sql, *arguments)
    return await connection.fetchval(READ, table) - before


async def test_scan_reads_only_running_tasks(large: Connection) -> None:
    assert await _rows_read(large, "horsies_tasks", RECOVERY.stale.sql, *SCAN) <= 3 * RUNNING


async def test_scan_reads_only_recent_heartbeats(large: Connection) -> None:
    assert await _rows_read(large, "horsies_heartbeats", RECOVERY.stale.sql, *SCAN) <= 3 * RUNNING


async def test_overdue_tasks_are_read_from_their_index(large: Connection) -> None:
    start = datetime.min  # noqa: DTZ901  # the driver maps it to -infinity
    assert await _rows_read(large, "horsies_tasks", RECOVERY.overdue.sql, start, FIRST, 500) <= 3 * OVERDUE


@pytest.mark.parametrize("size", [1, 7])
async def test_pages_are_in_id_order(large: Connection, size: int) -> None:
    status, after, _, *others, _ = SCAN
    threshold = timedelta(seconds=1)
    expected = [row["id"] for row in await large.fetch(RECOVERY.stale.sql, status, after, threshold, *others, 21)]
    found: list[UUID] = []
    while len(found) < 21:
        page = await large.fetch(RECOVERY.stale.sql, status, found[-1] if found else after, threshold, *others, size)
        found += [row["id"] for row in page]
    assert found[:21] == expected == sorted(expected)
