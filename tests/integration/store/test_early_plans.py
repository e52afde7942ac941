"""A worker plans its statements once, on tables that may be empty then and full an hour later."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from horsies.store.claims import CLAIMS
from horsies.store.connection import ConnectionSpec
from horsies.store.workflow_control import WORKFLOW_CONTROL
from tests.support.store import WORKER, Connection

STORED, BATCH = 5_000, 64

NODES = f"""
WITH run AS (
    INSERT INTO horsies_workflows (id, name, status, on_error, root_workflow_id, sent_at)
    SELECT id, 'run', 'RUNNING', 'fail', id, now() FROM gen_random_uuid() AS id
    RETURNING id
), node AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, queue_name, priority, status,
                                        task_id)
    SELECT gen_random_uuid(), run.id, number, 'n' || number, 'noop', 'default', 100, 'ENQUEUED', gen_random_uuid()
      FROM run, generate_series(1, {STORED}) AS number
    RETURNING task_id, workflow_id, task_index
)
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, is_workflow_task, workflow_id, workflow_task_index)
SELECT task_id, 'noop', now(), '', true, workflow_id, task_index FROM node
"""
RUNS = f"""
WITH run AS (
    INSERT INTO horsies_workflows (id, name, status, on_error, root_workflow_id, sent_at)
    SELECT id, 'run', status, 'fail', id, now()
      FROM (SELECT gen_random_uuid() AS id, status
              FROM generate_series(1, {STORED}), unnest(ARRAY['RUNNING', 'COMPLETED']) AS status) AS made
    RETURNING id, status
), node AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, queue_name, priority, status,
                                        task_id, dependencies)
    SELECT gen_random_uuid(), run.id, index, 'n' || index, 'noop', 'default', 100,
           (ARRAY['COMPLETED', 'RUNNING', 'PENDING'])[1 + index], gen_random_uuid(),
           CASE index WHEN 2 THEN '{{1}}'::integer[] ELSE '{{}}' END
      FROM run, generate_series(0, 2) AS index
     WHERE run.status = 'RUNNING'
    RETURNING task_id, workflow_id, task_index
), task AS (
    INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, is_workflow_task, workflow_id, workflow_task_index,
                               status)
    SELECT task_id, 'noop', now(), '', true, workflow_id, task_index, 'RUNNING' FROM node WHERE task_index = 1
)
INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
SELECT task_id, workflow_id, task_index FROM node
"""
PIDS = ",".join(str(1 + each) for each in range(BATCH))
ASKED = f"ARRAY['default'], ARRAY[{BATCH}], ARRAY[NULL]::integer[], {BATCH}, NULL, NULL"
STUCK = "EXECUTE stuck(200)"
CLAIM = f"EXECUTE claim({ASKED}, '{WORKER}', 'here', '{{{PIDS}}}')"


@pytest.fixture
async def early(database_url: str) -> AsyncIterator[Connection]:
    """A worker's connection that has planned its statements on empty tables, which are no longer empty."""
    link = ConnectionSpec(url=database_url, masked_url="test", force_generic_plan=True)
    connection = await asyncpg.connect(database_url, server_settings=link.session_settings)
    await connection.execute(f"PREPARE claim AS {CLAIMS.claim.sql}")
    await connection.execute(f"PREPARE complete AS {CLAIMS.complete.sql}")
    await connection.execute(f"PREPARE stuck AS {WORKFLOW_CONTROL.stuck_runs.sql}")
    await connection.execute(CLAIM)
    await connection.execute(_completing([]))
    await connection.execute(STUCK)
    await connection.execute(NODES)
    yield connection
    await connection.close()


def _completing(holds: Sequence[tuple[UUID, int]]) -> str:
    """The end of tasks that this worker holds."""
    ids, tokens = ",".join(str(task_id) for task_id, _ in holds), ",".join(str(token) for _, token in holds)
    owners, pids = ",".join([str(WORKER)] * len(holds)), ",".join(["1"] * len(holds))
    documents = ",".join(["null"] * len(holds))
    return f"EXECUTE complete('{{{ids}}}', '{{{tokens}}}', '{{{owners}}}', '{{{documents}}}', '{{{pids}}}', '{{}}')"


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


async def _most_rows(connection: Connection, execute: str) -> float:
    """The most rows that any step of the statement goes through, kept or not."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {execute}")
    removed = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")
    return max(
        (node["Actual Rows"] + sum(node.get(each, 0) for each in removed)) * node["Actual Loops"]
        for node in _nodes(json.loads(text)[0]["Plan"])
    )


async def test_a_claim_of_nodes_goes_through_what_it_takes(early: Connection) -> None:
    assert await _most_rows(early, CLAIM) <= 2 * BATCH
    assert await early.fetchval("SELECT count(*) FROM horsies_workflow_tasks WHERE status = 'RUNNING'") == BATCH


async def test_an_end_goes_through_what_it_ends(early: Connection) -> None:
    await early.execute(CLAIM)
    running = await early.fetch("SELECT id, claim_token FROM horsies_tasks WHERE status = 'RUNNING'")
    holds = [(row["id"], row["claim_token"]) for row in running]
    assert await _most_rows(early, _completing(holds)) <= 2 * BATCH
    assert await early.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == BATCH


async def test_runs_that_are_stuck_are_found_by_going_through_all_runs_a_few_times(early: Connection) -> None:
    await early.execute(RUNS)
    assert await _most_rows(early, STUCK) <= 4 * STORED
