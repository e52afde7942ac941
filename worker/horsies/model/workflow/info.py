"""A run as seen from outside the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.model.result import JsonValue
    from horsies.model.task_error import TaskError
    from horsies.model.task_result import TaskResult
    from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SubWorkflowSummary:
    """How a sub-workflow ended, and how far it came."""

    status: WorkflowStatus
    output: JsonValue
    """The value of its output node; None where it has none or did not succeed."""
    total_tasks: int
    completed_tasks: int
    failed_tasks: int
    skipped_tasks: int
    error_summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTaskInfo:
    """A node of a run at the moment of asking; `result` is None until it has ended with one."""

    node_id: str
    index: int
    name: str
    status: WorkflowTaskStatus
    task_id: str | None = None
    sub_workflow_id: str | None = None
    result: TaskResult[object, TaskError] | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
