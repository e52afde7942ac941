"""Runs from start to finish, advanced by the outbox."""

from __future__ import annotations

from collections.abc import Callable

from uuid_utils.compat import uuid7

from horsies.model.workflow.plan import JoinType, OnError, SuccessRule
from horsies.store.database import Database
from horsies.workflows.start import start_run
from tests.support.store import Connection
from tests.support.workflows import WorkflowDriver, node, node_row, node_statuses, plan, run_row


async def test_diamond_runs_in_order_and_completes(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0), node(2, 0), node(3, 1, 2), output_index=3)
    await driver.run()
    assert driver.started == ["n0", "n1", "n2", "n3"]
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["result"], run["error"]) == ("COMPLETED", {"ok": "n3"}, None)
    assert run["started_at"] <= run["completed_at"]
    assert (run["root_workflow_id"], run["depth"], run["generation"]) == (workflow_id, 0, 1)


async def test_result_without_output_maps_the_leaf_nodes(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0), node(2, 0))
    await driver.run()
    run = await run_row(connection, workflow_id)
    assert run["result"] == {"ok": {"n1": {"ok": "n1"}, "n2": {"ok": "n2"}}}


async def test_node_gets_arguments_context_and_metadata(driver: WorkflowDriver) -> None:
    workflow_id = await driver.start_run(
        node(0), node(1), node(2, 0, 1, args_from={"left": 0}, ctx_from=("n1",), kwargs_json='{"x": 1}')
    )
    await driver.run()
    assert driver.contexts["n2"] == {
        "args_from": {"left": {"ok": "n0"}},
        "workflow_ctx": {"n1": {"result": {"ok": "n1"}, "task_name": "n1"}},
        "workflow_meta": {"workflow_id": str(workflow_id), "task_index": 2, "task_name": "n2"},
    }


async def test_failure_skips_dependents_and_fails_the_run(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0), node(2, 1), node(3), node(4, 3))
    await driver.run(_failing("n0"))
    assert await node_statuses(connection, workflow_id) == ["FAILED", "SKIPPED", "SKIPPED", "COMPLETED", "COMPLETED"]
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"], run["error"]["message"]) == ("FAILED", "BROKEN", "n0")
    skipped = await node_row(connection, workflow_id, 2)
    assert skipped["error"]["data"] == {"dependency_index": 2, "because": 1}
    assert skipped["error"]["message"] == "skipped because n1 did not complete"
    assert skipped["completed_at"] is None


async def test_node_that_allows_failed_deps_gets_their_errors(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(
        node(0), node(1, 0), node(2, 0, 1, args_from={"a": 0, "b": 1}, allow_failed_deps=True)
    )
    await driver.run(_failing("n0"))
    args = driver.contexts["n2"]["args_from"]
    assert args["a"]["err"]["error_code"] == "BROKEN"
    assert args["b"]["err"]["error_code"] == "UPSTREAM_SKIPPED"
    assert args["b"]["err"]["data"]["dependency_index"] == 1
    assert (await run_row(connection, workflow_id))["status"] == "FAILED"


async def test_join_any_starts_without_unfinished_dependencies(driver: WorkflowDriver) -> None:
    await driver.start_run(node(0), node(1), node(2, 0, 1, join=JoinType.ANY, args_from={"a": 0, "b": 1}))
    await driver.run(until="n1")
    await driver.claim_and_start()
    assert driver.contexts["n2"]["args_from"] == {"a": {"ok": "n0"}}


async def test_met_success_case_completes_the_run(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1), output_index=0, success_rule=SuccessRule(cases=((1,),)))
    await driver.run(_failing("n0"))
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]) == ("COMPLETED", None)
    assert run["result"]["err"]["error_code"] == "BROKEN"


async def test_unmet_success_policy_fails_with_the_required_nodes_error(
    driver: WorkflowDriver, connection: Connection
) -> None:
    workflow_id = await driver.start_run(node(0), node(1), node(2, 1), success_rule=SuccessRule(cases=((2,), (1, 2))))
    await driver.run(_failing("n0", "n1"))
    assert (await run_row(connection, workflow_id))["error"]["message"] == "n1"


async def test_failure_pauses_a_run_with_on_error_pause(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0), node(2, 1), on_error=OnError.PAUSE)
    await driver.run(_failing("n0"))
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"]) == ("PAUSED", "BROKEN")
    assert await node_statuses(connection, workflow_id) == ["FAILED", "PENDING", "PENDING"]


async def test_starting_the_same_id_twice_stores_one_run(database: Database, connection: Connection) -> None:
    workflow_id = uuid7()
    assert await start_run(database, plan(node(0), node(1, 0)), workflow_id)
    assert not await start_run(database, plan(node(0), node(1, 0)), workflow_id)
    assert await node_statuses(connection, workflow_id) == ["ENQUEUED", "PENDING"]
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


async def test_backing_task_has_the_options_of_its_node(driver: WorkflowDriver, connection: Connection) -> None:
    options = '{"timeout_ms": 5000, "flags": {"slow": true}}'
    await driver.start_run(node(0, options_json=options, max_retries=2, priority=7))
    task = await connection.fetchrow("SELECT * FROM horsies_tasks")
    assert task is not None
    assert (task["task_options"], task["flags"]) == ('{"timeout_ms": 5000}', '{"slow": true}')
    assert (task["max_retries"], task["priority"], task["is_workflow_task"]) == (2, 7, True)


async def test_advance_deletes_its_outbox_entries(driver: WorkflowDriver, connection: Connection) -> None:
    await driver.start_run(node(0), node(1, 0))
    await driver.run()
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


def _failing(*names: str) -> Callable[[str], str]:
    return lambda name: "err" if name in names else "ok"
