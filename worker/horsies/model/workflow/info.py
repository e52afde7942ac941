"""A run as seen from outside the engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from horsies.model.workflow.status import WorkflowStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from horsies.model.result import JsonValue
    from horsies.model.task_error import TaskError
    from horsies.model.task_result import TaskResult
    from horsies.model.workflow.status import WorkflowTaskStatus


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

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SubWorkflowSummary:
        """The summary that `document` writes; `ValueError` when it is none."""
        try:
            fields: dict[str, Any] = {**document, "status": WorkflowStatus(document["status"])}
            return cls(**fields)
        except (KeyError, TypeError) as missing:
            raise ValueError(f"no summary of a sub-workflow: {missing}") from None

    def document(self) -> dict[str, JsonValue]:
        """The summary as plain JSON."""
        return asdict(self) | {"status": self.status.value}


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
