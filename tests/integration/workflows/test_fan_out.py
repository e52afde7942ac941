"""A wide run costs as many statements as a narrow one."""

from __future__ import annotations

from collections import Counter

from horsies.store.connection import ConnectionSpec
from tests.support.faults import CrashingDatabase
from tests.support.store import Connection
from tests.support.workflows import WorkflowDriver, node, run_row

WIDTH = 1_000


async def test_a_layer_of_a_thousand_nodes_is_four_statements(database_url: str, connection: Connection) -> None:
    async with CrashingDatabase(ConnectionSpec(url=database_url, masked_url=database_url)) as database:
        bench = WorkflowDriver(database)
        wide = [node(index, 0) for index in range(1, WIDTH + 1)]
        workflow_id = await bench.start_run(node(0), *wide, node(WIDTH + 1, *range(1, WIDTH + 1)))
        await bench.finish(await bench.claim_and_start())
        database.statements.clear()
        await bench.outbox.process()
        advanced = Counter(name for name in database.statements if name.startswith("workflows."))
        once = ("lock_due_runs", "run_nodes", "update_nodes", "enqueue_nodes")
        expected = {f"workflows.{name}": 1 for name in once}
        looks = {"workflows.lock_due_runs": 1, "workflows.pending_sub_workflows": 2}  # until nothing is left
        assert advanced == Counter(expected) + Counter(looks)
        await bench.run()
        assert len(bench.started) == WIDTH + 2
        assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"
