"""Pauses, resumes and cancels raced against starts and outcomes: nothing starts after the answer, and nothing hangs."""

# ruff: noqa: ASYNC110, S311  # the database sets no events; a seed makes a race almost repeatable

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import asyncpg
import pytest

from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.workflows import control
from tests.support.store import Connection, count_deadlocks
from tests.support.workflows import FakeDefinitions, WorkflowDriver, node, plan, run_row, sub_node

CHILD = plan(node(0, name="c0"), node(1, 0, name="c1"), definition_key="child")
KNOWN = FakeDefinitions({"child": CHILD})
SEED = 7
LATE = """
SELECT count(*)
  FROM horsies_tasks AS t
  JOIN horsies_workflows AS w ON w.id = t.workflow_id
 WHERE w.root_workflow_id = $1
   AND (t.started_at > $2
        OR EXISTS (SELECT FROM horsies_task_attempts AS a WHERE a.task_id = t.id AND a.started_at > $2))
"""
"""A task that failed and is to start again has forgotten when it started; its attempts have not."""


@pytest.mark.timeout(300)
async def test_nothing_starts_once_a_pause_or_a_cancel_was_answered(database_url: str) -> None:
    chance = random.Random(SEED)
    connection = await asyncpg.connect(database_url)
    async with Database(ConnectionSpec(url=database_url, masked_url=database_url)) as database:
        stop = asyncio.Event()
        workers = [asyncio.create_task(_work(database, stop, random.Random(SEED + each))) for each in range(3)]
        runs = [await _start(database) for _ in range(12)]
        await asyncio.gather(*(_disturb(database, each, random.Random(chance.random())) for each in runs))
        for workflow_id in runs:
            await control.resume(database, workflow_id)
        async with asyncio.timeout(120):
            while not await _have_ended(connection, runs):
                await asyncio.sleep(0.05)
        stop.set()
        await asyncio.gather(*workers)
    assert await count_deadlocks(connection) == 0
    await connection.close()


async def _start(database: Database) -> UUID:
    nodes = (node(0), node(1, 0, max_retries=2), sub_node(2, "child", 0), node(3, 1, 2), node(4, 0), node(5, 3, 4))
    return await WorkflowDriver(database).start_run(*nodes)


async def _work(database: Database, stop: asyncio.Event, chance: random.Random) -> None:
    """A worker of sorts: it claims a few, fails some of them for another try, and advances what it finds."""
    bench = WorkflowDriver(database, known=KNOWN)
    while not stop.is_set():
        rows = await bench.claim_and_start(chance.randint(1, 4))
        again = [row for row in rows if chance.random() < 0.2]
        for row in again:
            await bench.retry(row)
        await bench.finish([row for row in rows if row not in again])
        await bench.outbox.process()


async def _disturb(database: Database, workflow_id: UUID, chance: random.Random) -> None:
    connection = await asyncpg.connect(database.connection_spec.url)
    for _ in range(6):
        await asyncio.sleep(chance.random() * 0.1)
        is_cancel = chance.random() < 0.05
        answer = await (control.cancel if is_cancel else control.pause)(database, workflow_id)
        if answer is True or is_cancel:
            answered_at = await connection.fetchval("SELECT clock_timestamp()")
            await asyncio.sleep(chance.random() * 0.05)
            assert await connection.fetchval(LATE, workflow_id, answered_at) == 0
            await control.resume(database, workflow_id)
    await connection.close()


async def _have_ended(connection: Connection, runs: list[UUID]) -> bool:
    return all([(await run_row(connection, each))["completed_at"] is not None for each in runs])
