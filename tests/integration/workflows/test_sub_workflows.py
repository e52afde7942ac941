"""Sub-workflows: built by a worker that knows their definition, results passed to their node."""

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

SUB_WORKFLOW = plan(node(0), node(1, 0, name="last"), name="sub", definition_key="sub", output_index=1)


class RaisingDefinitions:
    """Definitions that all fail to build."""

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        raise ValueError(f"cannot build {definition_key} of {kwargs} and {injected}")


async def test_sub_workflow_output_becomes_the_node_result(database: Database, connection: Connection) -> None:
    known = FakeDefinitions({"sub": SUB_WORKFLOW})
    driver = WorkflowDriver(database, known=known)
    root = await driver.start_run(
        node(0), sub_node(1, "sub", 0, args_from={"x": 0}, kwargs_json='{"y": 2}'), node(2, 1, args_from={"r": 1})
    )
    await driver.run()
    parent_node = await node_row(connection, root, 1)
    assert (parent_node["status"], parent_node["result"]) == ("COMPLETED", {"ok": "last"})
    assert driver.contexts["n2"]["args_from"] == {"r": {"ok": "last"}}
    kwargs, injected = known.built[0]
    assert (kwargs, injected["args_from"]) == ({"y": 2}, {"x": {"ok": "n0"}})
    sub_run = await run_row(connection, parent_node["sub_workflow_id"])
    assert (sub_run["parent_workflow_id"], sub_run["parent_task_index"], sub_run["depth"]) == (root, 1, 1)
    assert sub_run["root_workflow_id"] == root
    assert (await run_row(connection, root))["status"] == "COMPLETED"


async def test_sub_workflow_without_output_gives_none(database: Database, connection: Connection) -> None:
    driver = WorkflowDriver(database, known=FakeDefinitions({"sub": plan(node(0))}))
    root = await driver.start_run(sub_node(0, "sub"))
    await driver.run()
    assert (await node_row(connection, root, 0))["result"] == {"ok": None}


async def test_failed_sub_workflow_fails_its_node_with_a_summary(database: Database, connection: Connection) -> None:
    driver = WorkflowDriver(database, known=FakeDefinitions({"sub": SUB_WORKFLOW}))
    root = await driver.start_run(sub_node(0, "sub"))
    await driver.run(lambda _: "err")
    parent_node = await node_row(connection, root, 0)
    assert parent_node["error"]["error_code"] == "SUBWORKFLOW_FAILED"
    assert parent_node["error"]["sub_workflow_id"] == str(parent_node["sub_workflow_id"])
    assert parent_node["error"]["sub_workflow_summary"] == parent_node["sub_workflow_summary"]
    summary = parent_node["sub_workflow_summary"]
    assert (summary["status"], summary["total_tasks"], summary["failed_tasks"]) == ("FAILED", 2, 1)
    assert (summary["skipped_tasks"], summary["error_summary"]) == (1, "BROKEN: n0")


async def test_sub_workflows_can_be_nested(database: Database, connection: Connection) -> None:
    driver = WorkflowDriver(database, known=FakeDefinitions({"middle": plan(sub_node(0, "sub")), "sub": SUB_WORKFLOW}))
    root = await driver.start_run(sub_node(0, "middle"))
    await driver.run()
    assert (await run_row(connection, root))["status"] == "COMPLETED"
    depths = await connection.fetch("SELECT depth, root_workflow_id FROM horsies_workflows ORDER BY depth")
    assert [tuple(row) for row in depths] == [(0, root), (1, root), (2, root)]


async def test_unknown_definition_is_left_to_other_workers(database: Database, connection: Connection) -> None:
    without_definition, with_definition = (
        WorkflowDriver(database),
        WorkflowDriver(database, known=FakeDefinitions({"sub": SUB_WORKFLOW})),
    )
    root = await without_definition.start_run(sub_node(0, "sub"))
    await without_definition.run()
    assert await node_statuses(connection, root) == ["READY"]
    row = await connection.fetchrow("SELECT tries, last_error, needs FROM horsies_workflow_outbox")
    assert row is not None
    assert (row["tries"], row["needs"]) == (1, "sub")
    assert "does not know the definition" in row["last_error"]
    await with_definition.run()
    assert (await run_row(connection, root))["status"] == "COMPLETED"


async def test_definition_unknown_to_all_workers_fails_its_node(driver: WorkflowDriver, connection: Connection) -> None:
    root = await driver.start_run(sub_node(0, "sub"))
    await driver.run()
    await connection.execute("UPDATE horsies_workflow_outbox SET tries = 24, retry_at = now()")
    await driver.run()
    assert await node_statuses(connection, root) == ["READY"], "not before the grace has passed"
    await connection.execute("UPDATE horsies_workflow_outbox SET created_at = now() - interval '1 h', retry_at = now()")
    await driver.run()
    assert (await node_row(connection, root, 0))["error"]["error_code"] == "SUBWORKFLOW_LOAD_FAILED"
    assert (await run_row(connection, root))["status"] == "FAILED"
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


async def test_exception_in_a_definition_fails_its_node(database: Database, connection: Connection) -> None:
    driver = WorkflowDriver(database, known=RaisingDefinitions())
    root = await driver.start_run(sub_node(0, "sub"), node(1, 0), on_error=OnError.PAUSE)
    await driver.run()
    error = (await node_row(connection, root, 0))["error"]
    assert error["error_code"] == "WORKFLOW_ENQUEUE_FAILED"
    assert "cannot build sub" in error["message"]
    assert (await run_row(connection, root))["status"] == "PAUSED"
