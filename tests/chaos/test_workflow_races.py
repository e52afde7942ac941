"""Pause, resume and cancel race with starts and outcomes: nothing starts after the answer, and nothing hangs."""

# ruff: noqa: ASYNC110, S311  # the database sets no events; the seed makes races nearly reproducible

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
COUNT_STARTED_AFTER = """
SELECT count(*)
  FROM horsies_tasks AS t
  JOIN horsies_workflows AS w ON w.id = t.workflow_id
 WHERE w.root_workflow_id = $1
   AND (t.started_at > $2
        OR EXISTS (SELECT FROM horsies_task_attempts AS a WHERE a.task_id = t.id AND a.started_at > $2))
"""
"""A task that waits for its retry has no started_at; its attempts have."""


@pytest.mark.timeout(300)
async def test_nothing_starts_after_a_pause_or_cancel_returned(database_url: str) -> None:
    rng = random.Random(SEED)
    connection = await asyncpg.connect(database_url)
    async with Database(ConnectionSpec(url=database_url, masked_url=database_url)) as database:
        stop = asyncio.Event()
        workers = [asyncio.create_task(_work(database, stop, random.Random(SEED + number))) for number in range(3)]
        runs = [await _start(database) for _ in range(12)]
        await asyncio.gather(*(_disturb(database, workflow_id, random.Random(rng.random())) for workflow_id in runs))
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


async def _work(database: Database, stop: asyncio.Event, rng: random.Random) -> None:
    """A simple worker: claims a few tasks, retries some, finishes the others and processes the outbox."""
    driver = WorkflowDriver(database, known=KNOWN)
    while not stop.is_set():
        rows = await driver.claim_and_start(rng.randint(1, 4))
        retried = [row for row in rows if rng.random() < 0.2]
        for row in retried:
            await driver.retry(row)
        await driver.finish([row for row in rows if row not in retried])
        await driver.outbox.process()


async def _disturb(database: Database, workflow_id: UUID, rng: random.Random) -> None:
    connection = await asyncpg.connect(database.connection_spec.url)
    for _ in range(6):
        await asyncio.sleep(rng.random() * 0.1)
        is_cancel = rng.random() < 0.05
        answer = await (control.cancel if is_cancel else control.pause)(database, workflow_id)
        if answer is True or is_cancel:
            answered_at = await connection.fetchval("SELECT clock_timestamp()")
            await asyncio.sleep(rng.random() * 0.05)
            assert await connection.fetchval(COUNT_STARTED_AFTER, workflow_id, answered_at) == 0
            await control.resume(database, workflow_id)
    await connection.close()


async def _have_ended(connection: Connection, runs: list[UUID]) -> bool:
    return all([(await run_row(connection, workflow_id))["completed_at"] is not None for workflow_id in runs])
