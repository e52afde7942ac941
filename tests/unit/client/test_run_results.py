"""What sub-workflows leave is read as their definitions declare, wherever a handle shows it."""

from __future__ import annotations

from datetime import date
from uuid import UUID

from horsies import AppConfig, Horsies, NodeKey, TaskError, TaskResult, WorkflowDefinition
from horsies.client.workflow.handle import node_result, run_result
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
    status="COMPLETED",
    task_id=None,
    is_subworkflow=True,
    definition_key=Calendar.definition_key,
    sub_workflow_id=UUID(int=1),
    document='{"ok": "2024-02-29"}',
    started_at=None,
    completed_at=None,
)


def ended_with(document: str, *, is_map: bool) -> RunResultRow:
    return RunResultRow(
        id=UUID(int=2),
        status="COMPLETED",
        document=document,
        error=None,
        is_map=is_map,
        output_name=None,
        output_definition_key=None if is_map else Calendar.definition_key,
    )


def test_the_result_of_a_node_is_typed() -> None:
    assert node_result(NODE, lambda _: None) == TaskResult(ok=DAY)


def test_the_output_of_a_run_is_typed() -> None:
    outcome = ended_with('{"ok": "2024-02-29"}', is_map=False)
    assert run_result("w", outcome, [], lambda _: None) == TaskResult(ok=DAY)


def test_each_of_several_last_nodes_is_typed() -> None:
    outcome = ended_with('{"ok": {"days": {"ok": "2024-02-29"}}}', is_map=True)
    assert run_result("w", outcome, [NODE], lambda _: None) == TaskResult(ok={"days": TaskResult(ok=DAY)})
