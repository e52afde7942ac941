"""Alias path of the tasks' types."""

from horsies.model.info import TaskAttemptInfo, TaskInfo
from horsies.model.retry import RetryPolicy
from horsies.model.task import TASK_TERMINAL_STATES, TaskAttemptOutcome, TaskStatus
from horsies.model.task_error import SubWorkflowError, TaskError
from horsies.model.task_result import TaskResult

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
