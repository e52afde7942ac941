"""Where a run and each of its nodes stand."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class WorkflowStatus(StrEnum):
    """The state of a run; the last four are final, but for `retry_failed`."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        return self in WORKFLOW_TERMINAL_STATES


class WorkflowTaskStatus(StrEnum):
    """The state of a node; the last three are final."""

    PENDING = "PENDING"
    READY = "READY"
    ENQUEUED = "ENQUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"

    @property
    def is_terminal(self) -> bool:
        return self in WORKFLOW_TASK_TERMINAL_STATES


WORKFLOW_TERMINAL_STATES: Final = frozenset(
    {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.EXPIRED}
)
WORKFLOW_TASK_TERMINAL_STATES: Final = frozenset(
    {WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED}
)
