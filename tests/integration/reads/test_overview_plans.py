"""Rows that the overview reads in a table full of finished tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from horsies_ops.reads.overview import OVERVIEW, QUEUE_READS
from horsies_ops.reads.workers import WORKER_READS
from tests.support.store import rows_read

ROWS = 50_000
LIVE = 100
CAP = 200
FAILED = ROWS // 1000

# Nearly all completed long ago, one in a thousand failed, the last ones pending, running or just finished.
FILL = f"""
    INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, terminal_at, error_code, claimed_at,
                               started_at)
    SELECT ('01890a5d-ac96-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'mail.send', now(), '',
           CASE WHEN n <= {LIVE} THEN 'PENDING' WHEN n <= {2 * LIVE} THEN 'RUNNING'
                WHEN n % 1000 = 0 THEN 'FAILED' ELSE 'COMPLETED' END,
           CASE WHEN n > {2 * LIVE} THEN now() - n * interval '1 second' END,
           CASE WHEN n > {2 * LIVE} AND n % 1000 = 0 THEN 'SMTP_DOWN' END, now(), now()
      FROM generate_series(1, {ROWS}) AS n;
    INSERT INTO horsies_workers (id, hostname, pid, version, queues, processes, state)
    SELECT gen_random_uuid(), 'host', n, '1', '{{default}}', 1, 'running' FROM generate_series(1, 3) AS n;
    UPDATE horsies_tasks SET claimed_by_worker_id = (SELECT id FROM horsies_workers LIMIT 1) WHERE status = 'RUNNING';
"""


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(database_url)
    await connection.execute(FILL)
    await connection.execute("VACUUM ANALYZE horsies_tasks")
    await connection.execute("ANALYZE horsies_workers")
    yield connection
    await connection.close()


@pytest.mark.parametrize("plan_mode", ["force_generic_plan", "force_custom_plan"])
async def test_overview_reads_unfinished_tasks_and_few_finished_ones(
    connection: asyncpg.Connection[asyncpg.Record], plan_mode: str
) -> None:
    await connection.execute(f"SET plan_cache_mode = {plan_mode}")
    day, minute = timedelta(days=1), timedelta(minutes=1)
    assert await rows_read(connection, OVERVIEW.owned_counts.sql, []) <= LIVE
    assert await rows_read(connection, QUEUE_READS.list.sql, CAP, []) <= 2 * LIVE + CAP
    assert await rows_read(connection, OVERVIEW.status_counts.sql, CAP, CAP) <= 3 * CAP
    assert await rows_read(connection, OVERVIEW.throughput_buckets.sql, 10 * minute, 30, CAP) <= 30 * CAP + FAILED
    assert await rows_read(connection, OVERVIEW.queue_buckets.sql, 10 * minute, 30, CAP) <= 30 * (CAP + 1) + FAILED
    assert await rows_read(connection, OVERVIEW.time_percentiles.sql, day, CAP) <= CAP
    assert await rows_read(connection, OVERVIEW.error_counts.sql, day, CAP) <= CAP
    assert await rows_read(connection, WORKER_READS.active.sql, minute, CAP) <= LIVE


async def test_capped_bucket_is_extrapolated(
    connection: asyncpg.Connection[asyncpg.Record],
) -> None:
    buckets = await connection.fetch(OVERVIEW.throughput_buckets.sql, timedelta(hours=1), 3, CAP)
    # One task finished in each second of the previous hour.
    assert abs(buckets[1]["done"] - 3600) < 60
