"""Alias path of the types of tasks, their results, error codes and sends."""

# ruff: noqa: PLC0414  # the alias tells type checkers that the name is exported

from horsies import BUILTIN_CODE_REGISTRY as BUILTIN_CODE_REGISTRY
from horsies import TASK_TERMINAL_STATES as TASK_TERMINAL_STATES
from horsies import BuiltInTaskCode as BuiltInTaskCode
from horsies import ContractCode as ContractCode
from horsies import ExceptionMapper as ExceptionMapper
from horsies import OperationalErrorCode as OperationalErrorCode
from horsies import OutcomeCode as OutcomeCode
from horsies import RetrievalCode as RetrievalCode
from horsies import RetryPolicy as RetryPolicy
from horsies import SubWorkflowError as SubWorkflowError
from horsies import TaskAttemptInfo as TaskAttemptInfo
from horsies import TaskAttemptOutcome as TaskAttemptOutcome
from horsies import TaskContext as TaskContext
from horsies import TaskError as TaskError
from horsies import TaskFunction as TaskFunction
from horsies import TaskHandle as TaskHandle
from horsies import TaskInfo as TaskInfo
from horsies import TaskResult as TaskResult
from horsies import TaskSendError as TaskSendError
from horsies import TaskSendErrorCode as TaskSendErrorCode
from horsies import TaskSendOptions as TaskSendOptions
from horsies import TaskSendPayload as TaskSendPayload
from horsies import TaskSendResult as TaskSendResult
from horsies import TaskStatus as TaskStatus
from horsies import current_task as current_task
