"""Random workflow graphs, run with disturbances, end in the state that the graph determines.

Few examples by default; `--hypothesis-profile=chaos` tries many.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from uuid_utils.compat import uuid7

from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.workflows import control
from horsies.workflows.healing import heal
from horsies.workflows.start import start_run
from tests.support.store import Connection
from tests.support.workflow_graphs import RANDOM_GENERATORS, Dag, dags, expected_outcome
from tests.support.workflows import FakeDefinitions, PlannedDag, WorkflowDriver, stored_outcome

TABLES = ("horsies_workflow_outbox", "horsies_workflows", "horsies_tasks", "horsies_task_attempts")
OPEN = "SELECT id, status FROM horsies_workflows WHERE completed_at IS NULL ORDER BY id"


@pytest.mark.timeout(600)
@given(dag=dags(), rng=RANDOM_GENERATORS)
@settings(
    max_examples=settings().max_examples // 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_run_ends_as_its_graph_determines(database_url: str, dag: Dag, rng: Random) -> None:
    asyncio.run(asyncio.wait_for(_run_graph(database_url, dag, rng), 60))


async def _run_graph(database_url: str, dag: Dag, rng: Random) -> None:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database(ConnectionSpec(url=database_url, masked_url=database_url)))
        connection = await asyncpg.connect(database_url)
        stack.push_async_callback(connection.close)
        planned = PlannedDag(dag)
        known = FakeDefinitions(dict(planned.definitions()))
        driver = WorkflowDriver(database, known=known)
        for table in TABLES:  # a failed example leaves its runs behind
            await connection.execute(f"DELETE FROM {table}")
        workflow_id = uuid7()
        assert await start_run(database, planned.plan, workflow_id)
        successes = dict(planned.successes())
        while open_runs := await connection.fetch(OPEN):
            await _disturb(database, connection, known, rng)
            for run in open_runs:
                if run["status"] == "PAUSED":  # by a failure or by _disturb
                    await control.resume(database, run["id"])
            rows = await driver.claim_and_start(rng.randint(1, 8))
            await driver.finish(rows, lambda name: "ok" if successes[name] else "err")
            if not rng.randint(0, 2):
                await driver.outbox.process()
        expected = expected_outcome(dag)
        assert await stored_outcome(connection, workflow_id, dag) == expected
        assert sorted(driver.started) == sorted(planned.starts(expected)), "each task starts once"


async def _disturb(database: Database, connection: Connection, known: FakeDefinitions, rng: Random) -> None:
    """Randomly lose the outbox, pause a run or advance it early; heal if no task is left."""
    match rng.randint(0, 5):
        case 0:
            await connection.execute("DELETE FROM horsies_workflow_outbox")
        case 1:
            await control.pause(database, await _any_run(connection, rng))
        case 2:
            await control.advance_tree(database, await _any_run(connection, rng))
        case _:
            pass
    if not await connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL"):
        await heal(database, known)


async def _any_run(connection: Connection, rng: Random) -> UUID:
    return rng.choice(await connection.fetch("SELECT id FROM horsies_workflows ORDER BY id"))["id"]
