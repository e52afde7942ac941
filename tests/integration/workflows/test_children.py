"""Sub-workflows: built where they are known, run behind their node."""

from __future__ import annotations

from collections.abc import Mapping

from horsies.model.workflow.plan import OnError, WorkflowPlan
from horsies.store.database import Database
from tests.support.store import Connection
from tests.support.workflows import (
    FakeDefinitions,
    WorkflowDriver,
    node,
    node_row,
    node_statuses,
    plan,
    run_row,
    sub_node,
)

CHILD = plan(node(0), node(1, 0, name="last"), name="child", definition_key="child", output_index=1)


class Raising:
    """Definitions none of which can be built."""

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        raise ValueError(f"cannot build {definition_key} of {kwargs} and {injected}")


async def test_a_child_gives_its_output_to_its_node(database: Database, connection: Connection) -> None:
    known = FakeDefinitions({"child": CHILD})
    bench = WorkflowDriver(database, known=known)
    root = await bench.start_run(
        node(0), sub_node(1, "child", 0, args_from={"x": 0}, kwargs_json='{"y": 2}'), node(2, 1, args_from={"r": 1})
    )
    await bench.run()
    behind = await node_row(connection, root, 1)
    assert (behind["status"], behind["result"]) == ("COMPLETED", {"ok": "last"})
    assert bench.contexts["n2"]["args_from"] == {"r": {"ok": "last"}}
    kwargs, injected = known.built[0]
    assert (kwargs, injected["args_from"]) == ({"y": 2}, {"x": {"ok": "n0"}})
    child = await run_row(connection, behind["sub_workflow_id"])
    assert (child["parent_workflow_id"], child["parent_task_index"], child["depth"]) == (root, 1, 1)
    assert child["root_workflow_id"] == root
    assert (await run_row(connection, root))["status"] == "COMPLETED"


async def test_a_child_without_output_gives_none(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(database, known=FakeDefinitions({"child": plan(node(0))}))
    root = await bench.start_run(sub_node(0, "child"))
    await bench.run()
    assert (await node_row(connection, root, 0))["result"] == {"ok": None}


async def test_a_failed_child_fails_its_node_with_a_summary(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(database, known=FakeDefinitions({"child": CHILD}))
    root = await bench.start_run(sub_node(0, "child"))
    await bench.run(lambda _: "err")
    behind = await node_row(connection, root, 0)
    assert behind["error"]["error_code"] == "SUBWORKFLOW_FAILED"
    assert behind["error"]["sub_workflow_id"] == str(behind["sub_workflow_id"])
    assert behind["error"]["sub_workflow_summary"] == behind["sub_workflow_summary"]
    summary = behind["sub_workflow_summary"]
    assert (summary["status"], summary["total_tasks"], summary["failed_tasks"]) == ("FAILED", 2, 1)
    assert (summary["skipped_tasks"], summary["error_summary"]) == (1, "BROKEN: n0")


async def test_children_have_children(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(database, known=FakeDefinitions({"middle": plan(sub_node(0, "child")), "child": CHILD}))
    root = await bench.start_run(sub_node(0, "middle"))
    await bench.run()
    assert (await run_row(connection, root))["status"] == "COMPLETED"
    depths = await connection.fetch("SELECT depth, root_workflow_id FROM horsies_workflows ORDER BY depth")
    assert [tuple(row) for row in depths] == [(0, root), (1, root), (2, root)]


async def test_an_unknown_definition_is_left_to_others(database: Database, connection: Connection) -> None:
    ignorant, knowing = WorkflowDriver(database), WorkflowDriver(database, known=FakeDefinitions({"child": CHILD}))
    root = await ignorant.start_run(sub_node(0, "child"))
    await ignorant.run()
    assert await node_statuses(connection, root) == ["READY"]
    row = await connection.fetchrow("SELECT tries, last_error, needs FROM horsies_workflow_outbox")
    assert row is not None
    assert (row["tries"], row["needs"]) == (1, "child")
    assert "does not know the definition" in row["last_error"]
    await knowing.run()
    assert (await run_row(connection, root))["status"] == "COMPLETED"


async def test_a_definition_that_nobody_knows_fails_its_node_in_the_end(
    bench: WorkflowDriver, connection: Connection
) -> None:
    root = await bench.start_run(sub_node(0, "child"))
    await bench.run()
    await connection.execute("UPDATE horsies_workflow_outbox SET tries = 24, retry_at = now()")
    await bench.run()
    assert await node_statuses(connection, root) == ["READY"], "not before its ten minutes are over"
    await connection.execute("UPDATE horsies_workflow_outbox SET created_at = now() - interval '1 h', retry_at = now()")
    await bench.run()
    assert (await node_row(connection, root, 0))["error"]["error_code"] == "SUBWORKFLOW_LOAD_FAILED"
    assert (await run_row(connection, root))["status"] == "FAILED"
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


async def test_a_definition_that_raises_fails_its_node(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(database, known=Raising())
    root = await bench.start_run(sub_node(0, "child"), node(1, 0), on_error=OnError.PAUSE)
    await bench.run()
    error = (await node_row(connection, root, 0))["error"]
    assert error["error_code"] == "WORKFLOW_ENQUEUE_FAILED"
    assert "cannot build child" in error["message"]
    assert (await run_row(connection, root))["status"] == "PAUSED"
