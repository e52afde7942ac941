"""The number of statements does not depend on the width of a run."""

from __future__ import annotations

from collections import Counter

from horsies.store.connection import ConnectionSpec
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
        advance_statements = ("lock_due_runs", "run_nodes", "update_nodes", "enqueue_nodes")
        expected = {f"workflows.{name}": 1 for name in advance_statements}
        final_pass = {"workflows.lock_due_runs": 1, "workflows.pending_sub_workflows": 2}  # finds nothing to do
        assert advanced == Counter(expected) + Counter(final_pass)
        await driver.run()
        assert len(driver.started) == WIDTH + 2
        assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"
