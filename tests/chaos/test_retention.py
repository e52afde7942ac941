"""F19: retention with windows of one second, beside running, paused and retried trees, killed in mid-batch."""

# ruff: noqa: ASYNC110, S311  # other processes set no events; the kill times are random

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
import pytest

from tests.support.store import Connection, until_lock_waiters

NODES, TREES, KILLS = 2, 20, 6

# Each tree is a run, its sub-workflow and a sub-workflow of that; only the last has the given status, the others
# have finished.
INSERT_TREES = """
WITH tree AS (
    SELECT n AS tree, array_agg(gen_random_uuid() ORDER BY level) AS ids
      FROM generate_series(1, $1::integer) AS n CROSS JOIN generate_series(1, 3) AS level
     GROUP BY n
), run AS (
    INSERT INTO horsies_workflows (id, name, status, on_error, parent_workflow_id, root_workflow_id, depth, sent_at,
                                   completed_at)
    SELECT ids[level], $2, CASE WHEN level < 3 THEN 'COMPLETED' ELSE $2 END, 'fail', ids[level - 1], ids[1], level - 1,
           now(), now() - interval '1 hour'
      FROM tree CROSS JOIN generate_series(1, 3) AS level
    RETURNING id
), node AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, queue_name, priority, status,
                                        task_id)
    SELECT gen_random_uuid(), run.id, n, n::text, 'mail.send', 'default', 100, 'COMPLETED', gen_random_uuid()
      FROM run CROSS JOIN generate_series(1, 2) AS n
    RETURNING workflow_id, task_index, task_id
), task AS (
    INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, terminal_at, attempts, is_workflow_task,
                               workflow_id, workflow_task_index)
    SELECT task_id, 'mail.send', now(), '', 'COMPLETED', now() - interval '1 hour', 1, true, workflow_id, task_index
      FROM node
), outbox AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT task_id, workflow_id, task_index FROM node WHERE task_index = 1
)
INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, started_at, finished_at, outcome)
SELECT task_id, 1, 1, now(), now(), 'COMPLETED' FROM node
"""

INCOMPLETE_TREES = """
SELECT 'run without its tree' AS fault, root_workflow_id AS id
  FROM horsies_workflows GROUP BY root_workflow_id HAVING count(*) <> 3
 UNION ALL
SELECT 'run without its nodes', run.id
  FROM horsies_workflows AS run LEFT JOIN horsies_workflow_tasks AS node ON node.workflow_id = run.id
 GROUP BY run.id HAVING count(node.id) <> 2
 UNION ALL
SELECT 'node without its task', node.id
  FROM horsies_workflow_tasks AS node LEFT JOIN horsies_tasks AS task ON task.id = node.task_id WHERE task.id IS NULL
 UNION ALL
SELECT 'task without its run', task.id
  FROM horsies_tasks AS task LEFT JOIN horsies_workflows AS run ON run.id = task.workflow_id WHERE run.id IS NULL
 UNION ALL
SELECT 'task without its attempt', task.id
  FROM horsies_tasks AS task LEFT JOIN horsies_task_attempts AS attempt ON attempt.task_id = task.id
 WHERE task.attempts = 1 AND attempt.task_id IS NULL
 UNION ALL
SELECT 'attempt without its task', attempt.task_id
  FROM horsies_task_attempts AS attempt LEFT JOIN horsies_tasks AS task ON task.id = attempt.task_id
 WHERE task.id IS NULL
 UNION ALL
SELECT 'outbox without its run', outbox.workflow_id
  FROM horsies_workflow_outbox AS outbox LEFT JOIN horsies_workflows AS run ON run.id = outbox.workflow_id
 WHERE run.id IS NULL
"""
# The status of the deepest run decides about the whole tree.
HAS_FINISHED_TREES = """
SELECT EXISTS (SELECT FROM horsies_workflows WHERE depth = 2 AND status IN ('COMPLETED', 'FAILED'))
"""
TREES_LEFT = "SELECT name, count(DISTINCT root_workflow_id) AS trees FROM horsies_workflows GROUP BY name"


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def cleaner(url: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that cleans with retention windows of one second; killed at the end."""
    command = (sys.executable, "-m", "tests.support.faults", url)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"cleaning\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def trees_left(connection: Connection) -> dict[str, int]:
    return {row["name"]: row["trees"] for row in await connection.fetch(TREES_LEFT)}


@pytest.mark.parametrize("table", ["workflows", "workflow_tasks", "workflow_outbox", "tasks", "task_attempts"])
async def test_killed_cleaner_leaves_the_tree_complete(connection: Connection, database_url: str, table: str) -> None:
    await connection.execute(INSERT_TREES, 1, "COMPLETED")
    async with connection.transaction():
        # The cleaner blocks at this row after deleting other rows of the tree in its transaction.
        await connection.execute(f"SELECT FROM horsies_{table} LIMIT 1 FOR UPDATE")
        async with cleaner(database_url):
            await until_lock_waiters(connection)
    assert await connection.fetch(INCOMPLETE_TREES) == []
    assert await trees_left(connection) == {"COMPLETED": 1}


async def test_unfinished_trees_survive_and_none_is_left_incomplete(connection: Connection, database_url: str) -> None:
    seed = random.randrange(1_000_000)
    rng = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201  # shown when the test fails
    for state in ("COMPLETED", "FAILED", "RUNNING", "PAUSED"):
        await connection.execute(INSERT_TREES, TREES, state)
    for _ in range(KILLS):
        async with cleaner(database_url):
            retrying = asyncio.create_task(retry_some(database_url, rng))
            await asyncio.sleep(rng.uniform(0.0, 0.1))
        await retrying
        assert await connection.fetch(INCOMPLETE_TREES) == []
    async with cleaner(database_url):
        await until_finished_trees_are_gone(connection)
    left = await trees_left(connection)
    assert (left["RUNNING"], left["PAUSED"]) == (TREES, TREES)
    assert await connection.fetch(INCOMPLETE_TREES) == []


async def retry_some(url: str, rng: random.Random) -> None:
    """Retry failed runs, as an operator would, while they are being deleted."""
    connection = await asyncpg.connect(url)
    failed = await connection.fetch("SELECT id FROM horsies_workflows WHERE status = 'FAILED'")
    for row in rng.sample(failed, min(3, len(failed))):
        await retry(connection, row["id"])
    await connection.close()


async def retry(connection: Connection, run_id: UUID) -> None:
    async with connection.transaction():
        sql = "UPDATE horsies_workflows SET status = 'RUNNING', name = 'RUNNING AGAIN' WHERE id = $1 RETURNING id"
        if await connection.fetch(sql, run_id):
            nodes = "UPDATE horsies_workflow_tasks SET status = 'ENQUEUED' WHERE workflow_id = $1"
            assert await connection.execute(nodes, run_id) == f"UPDATE {NODES}"


async def until_finished_trees_are_gone(connection: Connection) -> None:
    async with asyncio.timeout(30):
        while await connection.fetchval(HAS_FINISHED_TREES):
            await asyncio.sleep(0.02)
