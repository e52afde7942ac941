"""A worker's statements read a bounded number of rows with every plan, never the whole table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from horsies.store.claims import CLAIMS, READ_AGAIN
from horsies.store.workers import WORKERS
from horsies.store.workflows import WORKFLOW_CONTROL
from tests.support.databases import Cluster
from tests.support.store import WORKER, Connection, insert_pending

DUE, BATCH = 20_000, 400
QUEUES = ["default", "empty"]
NO_CAPS: list[None] = [None, None]
NO_SKIPS: list[None] = [None, None]
CHUNK = QUEUES, [BATCH, BATCH], BATCH, WORKER, "here", 7, None, None, NO_SKIPS


@pytest.fixture(scope="module", params=[0, 200_000], ids=["no delayed tasks", "many delayed tasks"])
def large_database_url(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A backlog in one queue, alone or with ten times as many delayed tasks, freshly analysed."""
    with cluster.database(migrated=True) as url:
        asyncio.run(_fill(url, delayed=request.param))
        yield url


async def _fill(url: str, *, delayed: int) -> None:
    connection = await asyncpg.connect(url)
    await insert_pending(connection, count=DUE, due_in_s=-60)
    await insert_pending(connection, count=delayed, due_in_s=86_400)
    await connection.execute("ANALYZE")
    await connection.close()


@pytest.fixture
async def large(large_database_url: str) -> AsyncIterator[Connection]:
    """A connection whose changes are rolled back after the test."""
    connection = await asyncpg.connect(large_database_url)
    transaction = connection.transaction()
    await transaction.start()
    yield connection
    await transaction.rollback()
    await connection.close()


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"], autouse=True)
async def _plans(large: Connection, request: pytest.FixtureRequest) -> None:
    await large.execute(f"SET LOCAL plan_cache_mode = {request.param}")


def _plan_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _plan_nodes(child)


async def _rows_read(connection: Connection, sql: str, *arguments: object) -> int:
    """Number of rows a statement reads, including filtered ones and pairs compared by joins."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *arguments)
    nodes = list(_plan_nodes(json.loads(text)[0]["Plan"]))
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "horsies_tasks"]
    removed = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")
    return sum(
        int((node["Actual Rows"] * ("Relation Name" in node) + sum(node.get(name, 0) for name in removed)) * loops)
        for node in nodes
        if (loops := node["Actual Loops"])
    )


async def _claim(connection: Connection, *, limit: int = BATCH, cluster_cap: int | None = None) -> list[Any]:
    return await connection.fetch(CLAIMS.claim.sql, *_claim_arguments(limit=limit, cluster_cap=cluster_cap))


def _claim_arguments(*, limit: int = BATCH, cluster_cap: int | None = None, pids: bool = True) -> tuple[object, ...]:
    children = list(range(1, limit + 1)) if pids else []
    return QUEUES, [None, None], NO_CAPS, limit, cluster_cap, None, WORKER, "here", children, None, None, NO_SKIPS


def _claim_columns(rows: list[Any]) -> tuple[list[UUID], list[int], list[UUID]]:
    return [row["id"] for row in rows], [row["claim_token"] for row in rows], [WORKER] * len(rows)


@pytest.mark.parametrize("cluster_cap", [None, 1_000])
async def test_claim_reads_only_claimed_rows(large: Connection, cluster_cap: int | None) -> None:
    # Each row is found, looked up and updated; a few more to find the priorities.
    assert await _rows_read(large, CLAIMS.claim.sql, *_claim_arguments(cluster_cap=cluster_cap)) <= 3 * BATCH + 20


async def test_claim_of_a_chunk_reads_only_claimed_rows(large: Connection) -> None:
    assert await _rows_read(large, CLAIMS.claim_chunk.sql, *CHUNK) <= 3 * BATCH + 20
    await large.execute("DELETE FROM horsies_tasks WHERE enqueued_at <= now()")
    assert await _rows_read(large, CLAIMS.claim_chunk.sql, *CHUNK) <= 20


async def test_claim_without_due_tasks_does_not_read_delayed_ones(large: Connection) -> None:
    await large.execute("DELETE FROM horsies_tasks WHERE enqueued_at <= now()")
    assert await _rows_read(large, CLAIMS.claim.sql, *_claim_arguments()) <= 20


async def test_cap_count_reads_only_in_flight_tasks(large: Connection) -> None:
    await _claim(large)
    count = "SELECT * FROM horsies_lock_in_flight(true, ARRAY[]::text[])"
    await large.fetch(count)
    before = await _index_rows(large)
    assert [row["tasks"] for row in await large.fetch(count)] == [BATCH]
    assert await _index_rows(large) - before <= 2 * BATCH


async def _index_rows(connection: Connection) -> int:
    """Rows of the tasks table that this transaction has read."""
    return await connection.fetchval(
        "SELECT pg_stat_get_xact_tuples_returned(c) + pg_stat_get_xact_tuples_fetched(c)"
        " FROM (SELECT 'horsies_tasks'::regclass) AS t(c)"
    )


async def test_finish_looks_up_rows_by_key(large: Connection) -> None:
    refs = _claim_columns(await _claim(large))
    nulls = [None] * BATCH
    failures = [["FAILED"] * BATCH, ['{"err": null}'] * BATCH, *[nulls] * 4, [False] * BATCH, nulls, nulls]
    assert await _rows_read(large, CLAIMS.finish.sql, *refs, *failures, "{}", []) <= 5 * BATCH


async def test_start_release_and_heartbeat_look_up_rows_by_key(large: Connection) -> None:
    rows = await large.fetch(CLAIMS.claim.sql, *_claim_arguments(pids=False))
    refs, pids = _claim_columns(rows), [7] * BATCH
    lease = (60.0, 60.0)
    assert await _rows_read(large, WORKERS.task_heartbeats.sql, *refs, pids, "claimer", "here", *lease, []) <= 5 * BATCH
    assert await _rows_read(large, CLAIMS.start.sql, *refs, pids, "here") <= 5 * BATCH
    assert await _rows_read(large, CLAIMS.record_children.sql, *refs, pids) <= 5 * BATCH
    assert await _rows_read(large, CLAIMS.release.sql, *refs, "RUNNING", "{}", False) <= 5 * BATCH


async def test_poll_for_due_work_reads_few_rows_per_priority(large: Connection) -> None:
    assert await _rows_read(large, WORKERS.due_work.sql, QUEUES) <= 8


async def test_owned_tasks_are_read_from_the_owner_index(large: Connection) -> None:
    await _claim(large)
    assert await _rows_read(large, CLAIMS.owned.sql, uuid4()) == 0


async def test_search_for_orphaned_workflow_tasks_reads_no_other_tasks(large: Connection) -> None:
    assert await _rows_read(large, WORKFLOW_CONTROL.orphaned_tasks.sql, 100) == 0


async def test_search_for_known_tasks_bounds_what_claims_read_again(large: Connection) -> None:
    (row,) = await large.fetch(CLAIMS.first_known.sql, ["default"], ["mail.send"], READ_AGAIN)
    skips = [row["at"], None]
    arguments = QUEUES, [BATCH, BATCH], BATCH, WORKER, "here", 7, None, ["mail.send"], skips
    assert await _rows_read(large, CLAIMS.claim_chunk.sql, *arguments) <= READ_AGAIN + 20
