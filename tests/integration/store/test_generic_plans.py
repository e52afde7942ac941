"""Generic plans made on empty tables stay fast when the tables are full."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from horsies.store.claims import CLAIMS
from horsies.store.connection import ConnectionSpec
from horsies.store.queries import Query
from horsies.store.tasks import TASKS
from horsies.store.workflows import WORKFLOW_CONTROL, WORKFLOWS
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
PIDS = ",".join(str(1 + number) for number in range(BATCH))
CLAIM_ARGUMENTS = f"ARRAY['default'], ARRAY[{BATCH}], ARRAY[NULL]::integer[], {BATCH}, NULL, NULL"
NO_SKIPS = "ARRAY[NULL]::timestamptz[]"
STUCK = "EXECUTE stuck(200)"
CLAIM = f"EXECUTE claim({CLAIM_ARGUMENTS}, '{WORKER}', 'here', '{{{PIDS}}}', NULL, NULL, {NO_SKIPS})"

CLAIM_CHUNK = (
    f"EXECUTE claim_chunk(ARRAY['default'], ARRAY[{BATCH}], {BATCH}, '{WORKER}', 'here', 7, NULL, NULL, {NO_SKIPS})"
)


READS_BY_ID = (TASKS.results, WORKFLOWS.run_results, WORKFLOWS.node_infos, WORKFLOW_CONTROL.retryable_runs)
"""Statements of clients about one task or run."""


@pytest.fixture
async def planned_early(database_url: str) -> AsyncIterator[Connection]:
    """A worker's connection that planned its statements on empty tables, which are full now."""
    spec = ConnectionSpec(url=database_url, masked_url="test", force_generic_plan=True)
    connection = await asyncpg.connect(database_url, server_settings=spec.session_settings)
    await connection.execute(f"PREPARE claim AS {CLAIMS.claim.sql}")
    await connection.execute(f"PREPARE claim_chunk AS {CLAIMS.claim_chunk.sql}")
    await connection.execute(f"PREPARE complete AS {CLAIMS.complete.sql}")
    await connection.execute(f"PREPARE stuck AS {WORKFLOW_CONTROL.stuck_runs.sql}")
    for query in READS_BY_ID:
        await connection.execute(f'PREPARE "{query.name}" AS {query.sql}')
        await connection.execute(_read_statement(query, UUID(int=0)))
    await connection.execute(CLAIM)
    await connection.execute(CLAIM_CHUNK)
    await connection.execute(_complete_statement([]))
    await connection.execute(STUCK)
    await connection.execute(NODES)
    yield connection
    await connection.close()


def _complete_statement(refs: Sequence[tuple[UUID, int]]) -> str:
    """The end of tasks that this worker refs."""
    ids, tokens = ",".join(str(task_id) for task_id, _ in refs), ",".join(str(token) for _, token in refs)
    documents = ",".join(["null"] * len(refs))
    return f"EXECUTE complete('{{{ids}}}', '{{{tokens}}}', '{{{WORKER}}}', '{{{documents}}}', '{{}}', '{{}}')"


def _read_statement(query: Query[Any], row_id: UUID) -> str:
    argument = f"{{{row_id}}}" if query is WORKFLOWS.run_results else row_id
    return f"EXECUTE \"{query.name}\"('{argument}')"


def _plan_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _plan_nodes(child)


async def _most_rows(connection: Connection, execute: str) -> float:
    """Largest number of rows that any plan node reads, including filtered ones."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {execute}")
    removed = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")
    return max(
        (node["Actual Rows"] + sum(node.get(name, 0) for name in removed)) * node["Actual Loops"]
        for node in _plan_nodes(json.loads(text)[0]["Plan"])
    )


@pytest.mark.parametrize("claim", [CLAIM, CLAIM_CHUNK], ids=["claim", "chunk"])
async def test_claim_of_workflow_tasks_reads_only_claimed_rows(planned_early: Connection, claim: str) -> None:
    assert await _most_rows(planned_early, claim) <= 2 * BATCH
    assert await planned_early.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING'") == BATCH


async def test_complete_reads_only_finished_rows(planned_early: Connection) -> None:
    await planned_early.execute(CLAIM)
    running = await planned_early.fetch("SELECT id, claim_token FROM horsies_tasks WHERE status = 'RUNNING'")
    refs = [(row["id"], row["claim_token"]) for row in running]
    assert await _most_rows(planned_early, _complete_statement(refs)) <= 2 * BATCH
    assert await planned_early.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == BATCH


async def test_stuck_runs_reads_each_run_a_few_times(planned_early: Connection) -> None:
    await planned_early.execute(RUNS)
    nodes = 4 * STORED  # of one run with many, and of many with three
    assert await _most_rows(planned_early, STUCK) <= 1.1 * nodes


@pytest.mark.parametrize("query", READS_BY_ID, ids=lambda query: query.name)
async def test_read_by_id_reads_only_rows_of_its_run(planned_early: Connection, query: Query[Any]) -> None:
    await planned_early.execute(RUNS)
    await planned_early.execute(f"UPDATE horsies_tasks SET status = 'RUNNING', claimed_by_worker_id = '{WORKER}'")
    await planned_early.execute("UPDATE horsies_workflows SET status = 'FAILED'")
    run_id = await planned_early.fetchval(
        "SELECT workflow_id FROM horsies_workflow_tasks GROUP BY workflow_id HAVING count(*) = 3 LIMIT 1"
    )
    task_id = await planned_early.fetchval("SELECT id FROM horsies_tasks WHERE workflow_id = $1", run_id)
    row_id = task_id if query is TASKS.results else run_id
    assert await _most_rows(planned_early, _read_statement(query, row_id)) <= 10
