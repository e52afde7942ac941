"""Rows read by a retention batch: about as many as it deletes, with generic and custom plans."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from horsies.store.queries import Query
from horsies.store.retention import RETENTION
from tests.support.databases import Cluster
from tests.support.store import Connection

BATCH = 100
WINDOW = timedelta(hours=1)

FILL = """
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, terminal_at)
SELECT gen_random_uuid(), 'mail.send', now(), '', 'COMPLETED', now() - make_interval(mins => n % 120)
  FROM generate_series(1, 30000) AS n;
INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, started_at, finished_at, outcome)
SELECT id, 1, 1, terminal_at, terminal_at, 'COMPLETED' FROM horsies_tasks;
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, claim_token)
SELECT gen_random_uuid(), 'mail.send', now(), '', 'RUNNING', 1 FROM generate_series(1, 50);
INSERT INTO horsies_heartbeats (task_id, claim_token, role, sender_id, sent_at)
SELECT id, 1, 'runner', 'w', now() - make_interval(mins => n)
  FROM horsies_tasks CROSS JOIN generate_series(0, 600) AS n
 WHERE status = 'RUNNING';
INSERT INTO horsies_workflows (id, name, status, on_error, root_workflow_id, sent_at, completed_at)
SELECT id, 'flow', CASE WHEN n % 2 = 0 THEN 'COMPLETED' ELSE 'FAILED' END, 'fail', id, now(),
       now() - make_interval(mins => n % 120)
  FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, 2000) AS n) AS run;
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, terminal_at, workflow_id, is_workflow_task)
SELECT gen_random_uuid(), 'mail.send', now(), '', 'COMPLETED', run.completed_at, run.id, true
  FROM horsies_workflows AS run CROSS JOIN generate_series(1, 5);
INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, queue_name, priority, status,
                                    task_id)
SELECT gen_random_uuid(), workflow_id, n, n::text, 'mail.send', 'default', 100, 'COMPLETED', id
  FROM (SELECT *, row_number() OVER (PARTITION BY workflow_id) AS n
          FROM horsies_tasks WHERE workflow_id IS NOT NULL) AS task;
ANALYZE;
"""


@pytest.fixture(scope="module")
def large_database_url(cluster: Cluster) -> Iterator[str]:
    """A database with many rows of every kind, half of them old, analyzed."""
    with cluster.database(migrated=True) as url:
        asyncio.run(_fill(url))
        yield url


async def _fill(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(FILL)
    await connection.close()


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"])
async def large(large_database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Connection]:
    """A connection whose changes are rolled back after the test."""
    connection = await asyncpg.connect(large_database_url, server_settings={"jit": "off"})
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"SET LOCAL plan_cache_mode = {request.param}")
    yield connection
    await transaction.rollback()
    await connection.close()


async def _rows_read(connection: Connection, query: Query[Any], *arguments: object) -> int:
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query.sql}", *arguments)
    removed = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")
    return sum(
        int((node["Actual Rows"] * ("Relation Name" in node) + sum(node.get(name, 0) for name in removed)) * loops)
        for node in _nodes(json.loads(text)[0]["Plan"])
        if (loops := node["Actual Loops"])
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


async def test_heartbeat_batch_reads_few_rows_per_deleted_row(large: Connection) -> None:
    assert await _rows_read(large, RETENTION.delete_heartbeats, WINDOW, BATCH) <= 8 * BATCH


async def test_task_batch_skips_workflow_tasks_by_key(large: Connection) -> None:
    # A fifth of the old tasks belong to workflows and are skipped after a look at their run.
    assert await _rows_read(large, RETENTION.delete_tasks, WINDOW, BATCH) <= 8 * BATCH


async def test_run_tree_batch_reads_only_its_trees(large: Connection) -> None:
    # Each tree has five nodes and five tasks; the batch reads the trees and their nodes.
    assert await _rows_read(large, RETENTION.lock_run_trees, WINDOW, BATCH) <= 20 * BATCH
    roots = {row["root_id"] for row in await large.fetch(RETENTION.lock_run_trees.sql, WINDOW, BATCH)}
    assert len(roots) == BATCH // 5
    assert await _rows_read(large, RETENTION.delete_run_trees, WINDOW, list(roots)) <= 10 * BATCH
