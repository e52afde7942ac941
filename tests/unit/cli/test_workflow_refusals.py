"""A refusal names the state of the run and the command that helps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from horsies_ops.cli.commands.workflow import refusal_error
from horsies_ops.reads.workflows import WorkflowBase

RUN, ROOT = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("action", "status", "message", "hint"),
    [
        ("pause", "PAUSED", "is already PAUSED", f"horsies workflow resume {RUN}"),
        ("pause", "COMPLETED", "has finished: it is COMPLETED", f"horsies workflow show {RUN}"),
        ("pause", "RUNNING", "changed meanwhile and is RUNNING", "try again"),
        ("resume", "RUNNING", "is RUNNING, not PAUSED", f"horsies workflow show {RUN}"),
        ("resume", "FAILED", "has finished: it is FAILED", f"horsies workflow retry {RUN}"),
        ("cancel", "CANCELLED", "has finished: it is CANCELLED", f"horsies workflow retry {RUN}"),
        ("retry", "PAUSED", "has not finished: it is PAUSED", f"horsies workflow resume {RUN}"),
        ("retry", "RUNNING", "has not finished: it is RUNNING", f"horsies workflow cancel {RUN} first"),
        ("retry", "COMPLETED", "has no nodes to rerun", f"horsies workflow show {RUN}"),
    ],
)
def test_refusal_names_state_and_hint(action: str, status: str, message: str, hint: str) -> None:
    error = refusal_error(f"{action}_workflow", RUN, _run(status=status))
    assert message in error.message
    assert hint in (error.help_text or "")


def test_sub_workflow_retry_hints_at_root_run() -> None:
    error = refusal_error("retry_workflow", RUN, _run(status="FAILED", parent_id=ROOT, root_id=ROOT))
    assert error.help_text == f"horsies workflow retry {ROOT}"


def test_unknown_run_is_not_found() -> None:
    assert refusal_error("pause_workflow", RUN, None).exit_code == 5


def _run(**columns: Any) -> WorkflowBase:
    usual: dict[str, Any] = {
        "id": RUN,
        "name": "w",
        "definition_key": None,
        "on_error": "fail",
        "generation": 1,
        "parent_id": None,
        "root_id": RUN,
        "depth": 0,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "started_at": None,
        "paused_at": None,
        "completed_at": None,
        "error_code": None,
        "age": timedelta(),
    }
    return WorkflowBase(**usual | columns)
