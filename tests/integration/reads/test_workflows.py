from __future__ import annotations

from uuid import uuid4

import pytest

from horsies.store.database import Database
from horsies_ops.reads.workflows import WorkflowFilter
from tests.support.rows import insert_node, insert_run
from tests.support.store import ops_on


async def test_runs_are_listed_newest_first_with_node_counts(database: Database, database_url: str) -> None:
    older = await insert_run(database_url, status="FAILED", error={"error_code": "X"})
    newer = await insert_run(database_url)
    for index, status in enumerate(("COMPLETED", "COMPLETED", "FAILED", "SKIPPED", "RUNNING", "PENDING")):
        await insert_node(database_url, newer, index, status=status)
    first, second = (await ops_on(database).list_workflows()).workflows
    assert (first.id, first.total, first.done, first.failed, first.skipped, first.running) == (newer, 6, 2, 1, 1, 1)
    assert (second.id, second.total, second.error_code) == (older, 0, "X")


async def test_pages_of_runs_follow_each_other(database: Database, database_url: str) -> None:
    ids = [await insert_run(database_url) for _ in range(3)]
    first = await ops_on(database).list_workflows(limit=2)
    second = await ops_on(database).list_workflows(limit=2, after=first.next)
    assert [run.id for run in (*first.workflows, *second.workflows)] == ids[::-1]
    assert second.next is None


async def test_runs_are_filtered_by_status_name_and_root(database: Database, database_url: str) -> None:
    root = await insert_run(database_url, name="etl.night")
    child = await insert_run(database_url, name="etl.part", parent_workflow_id=root, root_workflow_id=root, depth=1)
    paused = await insert_run(database_url, name="digest", status="PAUSED")

    async def found(workflow_filter: WorkflowFilter) -> list[object]:
        return [run.id for run in (await ops_on(database).list_workflows(workflow_filter)).workflows]

    assert await found(WorkflowFilter(statuses=["PAUSED"])) == [paused]
    assert await found(WorkflowFilter(names=["etl.*"])) == [child, root]
    assert await found(WorkflowFilter(names=["etl.*"], root_only=True)) == [root]


async def test_run_detail_has_nodes_and_sub_workflows(database: Database, database_url: str) -> None:
    run = await insert_run(database_url, result={"ok": 7}, output_task_index=1, definition_key="d")
    child = await insert_run(database_url, parent_workflow_id=run, root_workflow_id=run, status="COMPLETED")
    await insert_node(database_url, child, 0, status="COMPLETED")
    await insert_node(database_url, run, 0, status="FAILED", result={"err": {"error_code": "X", "message": "no"}})
    sub = {"is_subworkflow": True, "sub_workflow_id": child, "sub_workflow_name": "part", "queue_name": None}
    await insert_node(database_url, run, 1, 0, join_type="quorum", min_success=1, **sub)
    detail = await ops_on(database).workflow(run)
    assert detail is not None
    assert (detail.run.result, detail.run.definition_key, detail.run.output_index) == ({"ok": 7}, "d", 1)
    assert detail.counts == {"FAILED": 1, "PENDING": 1}
    failed, joined = detail.nodes
    assert (failed.error_code, failed.error_message) == ("X", "no")
    assert (joined.name, list(joined.dependencies), joined.join, joined.sub_workflow_id) == (
        "part",
        [0],
        "quorum",
        child,
    )
    assert {row.id: (row.done, row.total) for row in detail.sub_workflows.values()} == {child: (1, 1)}


async def test_unknown_run_is_none_and_malformed_id_is_rejected(database: Database) -> None:
    assert await ops_on(database).workflow(uuid4()) is None
    with pytest.raises(ValueError, match="invalid id"):
        await ops_on(database).workflow("w-7")
