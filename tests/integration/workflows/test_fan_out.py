"""What an advance reads and how many statements it takes do not depend on the size of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from horsies.model.workflow.plan import NodePlan
from horsies.store.connection import ConnectionSpec
from horsies.store.workflows import WorkflowStore
from tests.support.faults import CrashingDatabase
from tests.support.store import Connection
from tests.support.workflows import WorkflowDriver, node, run_row

WIDTH = 1_000


async def test_advancing_a_thousand_nodes_takes_four_statements(database_url: str, connection: Connection) -> None:
    async with CrashingDatabase(ConnectionSpec(url=database_url, masked_url=database_url)) as database:
        driver = WorkflowDriver(database)
        layer = [node(index, 0) for index in range(1, WIDTH + 1)]
        workflow_id = await driver.start_run(node(0), *layer, node(WIDTH + 1, *range(1, WIDTH + 1)))
        await driver.finish(await driver.claim_and_start())
        database.statements.clear()
        await driver.outbox.process()
        advanced = Counter(name for name in database.statements if name.startswith("workflows."))
        advance_statements = ("lock_due_runs", "ended_nodes", "update_nodes", "enqueue_nodes")
        expected = {f"workflows.{name}": 1 for name in advance_statements}
        final_pass = {"workflows.lock_due_runs": 1, "workflows.pending_sub_workflows": 2}  # finds nothing to do
        assert advanced == Counter(expected) + Counter(final_pass)
        await driver.run()
        assert len(driver.started) == WIDTH + 2
        assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


CHAIN = [node(0), *(node(index, index - 1) for index in range(1, 30))]
LEAVES = [node(index) for index in range(30)]


@pytest.mark.parametrize("nodes", [CHAIN, LEAVES])
async def test_only_the_end_of_a_run_reads_all_its_nodes(database_url: str, nodes: Sequence[NodePlan]) -> None:
    async with CrashingDatabase(ConnectionSpec(url=database_url, masked_url=database_url)) as database:
        driver = WorkflowDriver(database)
        await driver.start_run(*nodes)
        while rows := await driver.claim_and_start(1):
            await driver.finish(rows)
            await driver.outbox.process()
        assert len(driver.started) == len(nodes)
        reads = Counter(database.statements)
        assert (reads["workflows.ended_nodes"], reads["workflows.run_nodes"]) == (len(nodes), 1)


@pytest.mark.parametrize(
    ("nodes", "read"),
    [
        pytest.param(CHAIN, [0, 1], id="a dependent"),
        pytest.param(LEAVES, [0, 29], id="one node that has not ended"),
        pytest.param([node(0), node(1), node(2, 0, 1), node(3, 0)], [0, 2, 3], id="two dependents"),
    ],
)
async def test_an_advance_reads_what_ended_and_its_dependents(
    driver: WorkflowDriver, connection: Connection, nodes: Sequence[NodePlan], read: list[int]
) -> None:
    await driver.start_run(*nodes)
    await driver.finish(await driver.claim_and_start(1))
    entries = [row["task_id"] for row in await connection.fetch("SELECT task_id FROM horsies_workflow_outbox")]
    rows = await WorkflowStore(driver.database).ended_nodes(entries)
    assert [row.task_index for row in rows] == read


async def test_run_stored_without_dependents_advances(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(*CHAIN[:3])
    await connection.execute("UPDATE horsies_workflow_tasks SET dependents = NULL")
    await driver.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"
