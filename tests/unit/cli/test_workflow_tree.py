"""The tree of `horsies workflow show`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from horsies_ops.cli.commands.workflow import tree_lines
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail, WorkflowRecord

BEGUN_AT = datetime(2024, 2, 29, tzinfo=UTC)

RUN = WorkflowRecord(
    id=UUID(int=1),
    name="flow",
    status="RUNNING",
    definition_key="flow",
    on_error="fail",
    generation=0,
    parent_id=None,
    root_id=UUID(int=1),
    depth=0,
    created_at=BEGUN_AT,
    started_at=BEGUN_AT,
    paused_at=None,
    completed_at=None,
    error_code=None,
    age=timedelta(minutes=5),
    output_index=None,
    result_json=None,
    error_json=None,
)


def node(**columns: Any) -> NodeRow:
    usual: dict[str, Any] = {
        "index": 0,
        "node_id": "load",
        "name": "etl.load",
        "status": "RUNNING",
        "join": "all",
        "min_success": None,
        "allow_failed_deps": False,
        "dependencies": (),
        "task_id": None,
        "is_subworkflow": False,
        "sub_workflow_id": None,
        "queue": "default",
        "priority": 100,
        "started_at": None,
        "completed_at": None,
        "error_code": None,
        "error_message": None,
    }
    return NodeRow(**usual | columns)


def line_of(row: NodeRow) -> str:
    (line,) = tree_lines(WorkflowDetail(run=RUN, nodes=(row,), sub_workflows={}))
    return line


def test_running_node_shows_its_duration() -> None:
    assert line_of(node(started_at=BEGUN_AT + timedelta(minutes=1))) == "└─ [0] load (etl.load)  RUNNING  4m00s"


def test_finished_node_shows_its_duration() -> None:
    times = {"started_at": BEGUN_AT, "completed_at": BEGUN_AT + timedelta(seconds=2)}
    assert line_of(node(status="COMPLETED", **times)) == "└─ [0] load (etl.load)  COMPLETED  2.0s"


@pytest.mark.parametrize("node_id", ["flow:0", "etl.load:0", "etl.load"])
def test_node_id_that_nobody_chose_is_omitted(node_id: str) -> None:
    assert line_of(node(node_id=node_id)) == "└─ [0] etl.load  RUNNING"


def test_id_that_another_node_would_get_was_chosen() -> None:
    assert line_of(node(node_id="flow:1")) == "└─ [0] flow:1 (etl.load)  RUNNING"
