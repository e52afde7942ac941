"""Results of sub-workflows are decoded to the types that their definitions declare."""

from __future__ import annotations

import dataclasses
from datetime import date
from uuid import UUID

import pytest

from horsies import (
    AppConfig,
    Horsies,
    NodeKey,
    OperationalErrorCode,
    OutcomeCode,
    TaskError,
    TaskResult,
    WorkflowDefinition,
)
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
        id=str(UUID(int=2)),
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


@pytest.mark.parametrize("document", ["[]", "5", "9" * 5_000, "[" * 5_000, '{"ok": []}'])
def test_malformed_document_of_a_run_is_an_error(document: str) -> None:
    result = run_result("w", completed_row(document, is_map=True), [NODE], lambda _: None)
    assert result.err_value.error_code == OperationalErrorCode.RESULT_DESERIALIZATION_ERROR


@pytest.mark.parametrize("error", ["[]", "null", "9" * 5_000, "[" * 5_000])
def test_paused_run_with_a_malformed_error_is_paused(error: str) -> None:
    row = dataclasses.replace(completed_row("{}", is_map=False), status=WorkflowStatus.PAUSED, error=error)
    assert run_result("w", row, [], lambda _: None).err_value.error_code == OutcomeCode.WORKFLOW_PAUSED
