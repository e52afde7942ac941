"""Results of sub-workflows are decoded to the types that their definitions declare."""

from __future__ import annotations

from datetime import date
from uuid import UUID

from horsies import AppConfig, Horsies, NodeKey, TaskError, TaskResult, WorkflowDefinition
from horsies.client.workflow.handle import node_result, run_result
from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies.store.workflows import NodeInfoRow, RunResultRow

DAY = date(2024, 2, 29)


app = Horsies(AppConfig())


@app.task("today")
def today() -> TaskResult[date, TaskError]:
    return TaskResult(ok=DAY)


class Calendar(WorkflowDefinition[date]):
    name = "calendar"
    definition_key = "tests.run_results.calendar"

    last = today.node()()

    class Meta:
        output = NodeKey[date]("last")


NODE = NodeInfoRow(
    node_id="days",
    task_index=0,
    task_name="calendar",
    status=WorkflowTaskStatus.COMPLETED,
    task_id=None,
    is_subworkflow=True,
    definition_key=Calendar.definition_key,
    sub_workflow_id=UUID(int=1),
    document='{"ok": "2024-02-29"}',
    started_at=None,
    completed_at=None,
)


def completed_row(document: str, *, is_map: bool) -> RunResultRow:
    return RunResultRow(
        id=UUID(int=2),
        definition_key="calendar.v1",
        status=WorkflowStatus.COMPLETED,
        document=document,
        error=None,
        is_map=is_map,
        output_name=None,
        output_definition_key=None if is_map else Calendar.definition_key,
    )


def test_node_result_is_decoded_to_the_declared_type() -> None:
    assert node_result(NODE, lambda _: None) == TaskResult(ok=DAY)


def test_run_output_is_decoded_to_the_declared_type() -> None:
    row = completed_row('{"ok": "2024-02-29"}', is_map=False)
    assert run_result("w", row, [], lambda _: None) == TaskResult(ok=DAY)


def test_each_leaf_result_is_decoded_to_its_declared_type() -> None:
    row = completed_row('{"ok": {"days": {"ok": "2024-02-29"}}}', is_map=True)
    assert run_result("w", row, [NODE], lambda _: None) == TaskResult(ok={"days": TaskResult(ok=DAY)})
