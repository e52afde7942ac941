"""Alias path of the tasks' types."""

from horsies.model.retry import RetryPolicy
from horsies.model.task import TASK_TERMINAL_STATES, TaskAttemptInfo, TaskAttemptOutcome, TaskInfo, TaskStatus
from horsies.model.task_result import SubWorkflowError, TaskError, TaskResult

__all__ = [
    "TASK_TERMINAL_STATES",
    "RetryPolicy",
    "SubWorkflowError",
    "TaskAttemptInfo",
    "TaskAttemptOutcome",
    "TaskError",
    "TaskInfo",
    "TaskResult",
    "TaskStatus",
]
