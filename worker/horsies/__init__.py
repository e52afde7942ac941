"""horsies: a task queue and workflow engine on PostgreSQL.

Names are imported on first use, so that `horsies --help` and small programs load only what they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import JsonValue as JsonValue

    from horsies.app import ChildProcessStartHook as ChildProcessStartHook
    from horsies.app import Horsies as Horsies
    from horsies.client.broker import PostgresBroker as PostgresBroker
    from horsies.client.task import TaskFunction as TaskFunction
    from horsies.client.task import TaskHandle as TaskHandle
    from horsies.client.task import TaskSendOptions as TaskSendOptions
    from horsies.client.workflow.definition import WorkflowDefinition as WorkflowDefinition
    from horsies.client.workflow.handle import WorkflowHandle as WorkflowHandle
    from horsies.client.workflow.handle import cancel_workflow as cancel_workflow
    from horsies.client.workflow.handle import cancel_workflow_sync as cancel_workflow_sync
    from horsies.client.workflow.handle import pause_workflow as pause_workflow
    from horsies.client.workflow.handle import pause_workflow_sync as pause_workflow_sync
    from horsies.client.workflow.handle import resume_workflow as resume_workflow
    from horsies.client.workflow.handle import resume_workflow_sync as resume_workflow_sync
    from horsies.client.workflow.handle import start_workflow as start_workflow
    from horsies.client.workflow.handle import start_workflow_async as start_workflow_async
    from horsies.client.workflow.nodes import AnyNode as AnyNode
    from horsies.client.workflow.nodes import SubWorkflowNode as SubWorkflowNode
    from horsies.client.workflow.nodes import SuccessCase as SuccessCase
    from horsies.client.workflow.nodes import SuccessPolicy as SuccessPolicy
    from horsies.client.workflow.nodes import TaskNode as TaskNode
    from horsies.client.workflow.nodes import from_node as from_node
    from horsies.client.workflow.spec import WorkflowSpec as WorkflowSpec
    from horsies.client.workflow.spec import chain as chain
    from horsies.client.workflow.spec import group as group
    from horsies.errors import BrokerError as BrokerError
    from horsies.errors import BrokerErrorCode as BrokerErrorCode
    from horsies.errors import ConfigurationError as ConfigurationError
    from horsies.errors import ErrorCode as ErrorCode
    from horsies.errors import HorsiesError as HorsiesError
    from horsies.errors import MultipleValidationErrors as MultipleValidationErrors
    from horsies.errors import RegistryError as RegistryError
    from horsies.errors import SourceLocation as SourceLocation
    from horsies.errors import TaskDefinitionError as TaskDefinitionError
    from horsies.errors import ValidationReport as ValidationReport
    from horsies.errors import WorkflowValidationError as WorkflowValidationError
    from horsies.model.recovery.decision import RecoveredWorkers as RecoveredWorkers
    from horsies.model.recovery.decision import RecoveryContext as RecoveryContext
    from horsies.model.recovery.decision import RecoveryReason as RecoveryReason
    from horsies.model.result import BrokerOperationError as BrokerOperationError
    from horsies.model.result import BrokerResult as BrokerResult
    from horsies.model.result import DatabasePing as DatabasePing
    from horsies.model.result import Err as Err
    from horsies.model.result import Ok as Ok
    from horsies.model.result import Result as Result
    from horsies.model.result import UnwrapError as UnwrapError
    from horsies.model.result import WorkerPong as WorkerPong
    from horsies.model.result import WorkerStateSnapshot as WorkerStateSnapshot
    from horsies.model.result import is_err as is_err
    from horsies.model.result import is_ok as is_ok
    from horsies.model.retry import Recovery as Recovery
    from horsies.model.retry import RetryPolicy as RetryPolicy
    from horsies.model.send import TaskSendError as TaskSendError
    from horsies.model.send import TaskSendErrorCode as TaskSendErrorCode
    from horsies.model.send import TaskSendPayload as TaskSendPayload
    from horsies.model.send import TaskSendResult as TaskSendResult
    from horsies.model.settings import AppConfig as AppConfig
    from horsies.model.settings import CustomQueueConfig as CustomQueueConfig
    from horsies.model.settings import PayloadPolicy as PayloadPolicy
    from horsies.model.settings import PostgresConfig as PostgresConfig
    from horsies.model.settings import QueueMode as QueueMode
    from horsies.model.settings import RecoveryConfig as RecoveryConfig
    from horsies.model.settings import RetentionConfig as RetentionConfig
    from horsies.model.settings import ScheduleConfig as ScheduleConfig
    from horsies.model.settings import TaskSchedule as TaskSchedule
    from horsies.model.settings import WorkerConfig as WorkerConfig
    from horsies.model.settings import WorkerResilienceConfig as WorkerResilienceConfig
    from horsies.model.settings.patterns import BothDays as BothDays
    from horsies.model.settings.patterns import ByMonthDay as ByMonthDay
    from horsies.model.settings.patterns import ByWeekday as ByWeekday
    from horsies.model.settings.patterns import CronEnumRange as CronEnumRange
    from horsies.model.settings.patterns import CronEnumStep as CronEnumStep
    from horsies.model.settings.patterns import CronEnumValues as CronEnumValues
    from horsies.model.settings.patterns import CronEvery as CronEvery
    from horsies.model.settings.patterns import CronRange as CronRange
    from horsies.model.settings.patterns import CronSchedule as CronSchedule
    from horsies.model.settings.patterns import CronStep as CronStep
    from horsies.model.settings.patterns import CronValues as CronValues
    from horsies.model.settings.patterns import DailySchedule as DailySchedule
    from horsies.model.settings.patterns import DaySelector as DaySelector
    from horsies.model.settings.patterns import EitherDay as EitherDay
    from horsies.model.settings.patterns import EveryDay as EveryDay
    from horsies.model.settings.patterns import HourlySchedule as HourlySchedule
    from horsies.model.settings.patterns import IntervalSchedule as IntervalSchedule
    from horsies.model.settings.patterns import Month as Month
    from horsies.model.settings.patterns import MonthlySchedule as MonthlySchedule
    from horsies.model.settings.patterns import SchedulePattern as SchedulePattern
    from horsies.model.settings.patterns import Weekday as Weekday
    from horsies.model.settings.patterns import WeeklySchedule as WeeklySchedule
    from horsies.model.settings.recovery import INFRASTRUCTURE_RESILIENT_FLAG as INFRASTRUCTURE_RESILIENT_FLAG
    from horsies.model.task import TASK_TERMINAL_STATES as TASK_TERMINAL_STATES
    from horsies.model.task import TaskAttemptInfo as TaskAttemptInfo
    from horsies.model.task import TaskAttemptOutcome as TaskAttemptOutcome
    from horsies.model.task import TaskContext as TaskContext
    from horsies.model.task import TaskInfo as TaskInfo
    from horsies.model.task import TaskStatus as TaskStatus
    from horsies.model.task_result import BUILTIN_CODE_REGISTRY as BUILTIN_CODE_REGISTRY
    from horsies.model.task_result import BuiltInTaskCode as BuiltInTaskCode
    from horsies.model.task_result import ContractCode as ContractCode
    from horsies.model.task_result import ExceptionMapper as ExceptionMapper
    from horsies.model.task_result import OperationalErrorCode as OperationalErrorCode
    from horsies.model.task_result import OutcomeCode as OutcomeCode
    from horsies.model.task_result import RetrievalCode as RetrievalCode
    from horsies.model.task_result import SubWorkflowError as SubWorkflowError
    from horsies.model.task_result import TaskError as TaskError
    from horsies.model.task_result import TaskResult as TaskResult
    from horsies.model.workflow.plan import WORKFLOW_TASK_TERMINAL_STATES as WORKFLOW_TASK_TERMINAL_STATES
    from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES as WORKFLOW_TERMINAL_STATES
    from horsies.model.workflow.plan import NodeKey as NodeKey
    from horsies.model.workflow.plan import OnError as OnError
    from horsies.model.workflow.plan import WorkflowContextMissingIdError as WorkflowContextMissingIdError
    from horsies.model.workflow.plan import WorkflowStatus as WorkflowStatus
    from horsies.model.workflow.plan import WorkflowTaskStatus as WorkflowTaskStatus
    from horsies.model.workflow.plan import slugify as slugify
    from horsies.model.workflow.views import HandleErrorCode as HandleErrorCode
    from horsies.model.workflow.views import HandleOperationError as HandleOperationError
    from horsies.model.workflow.views import HandleResult as HandleResult
    from horsies.model.workflow.views import SubWorkflowSummary as SubWorkflowSummary
    from horsies.model.workflow.views import WorkflowContext as WorkflowContext
    from horsies.model.workflow.views import WorkflowMeta as WorkflowMeta
    from horsies.model.workflow.views import WorkflowStartError as WorkflowStartError
    from horsies.model.workflow.views import WorkflowStartErrorCode as WorkflowStartErrorCode
    from horsies.model.workflow.views import WorkflowStartResult as WorkflowStartResult
    from horsies.model.workflow.views import WorkflowTaskInfo as WorkflowTaskInfo
    from horsies.registry.invocation import current_task as current_task
    from horsies.version import __version__ as __version__

_NAMES = {
    "horsies.app": "ChildProcessStartHook Horsies",
    "horsies.client.broker": "PostgresBroker",
    "horsies.client.task": "TaskFunction TaskHandle TaskSendOptions",
    "horsies.client.workflow.definition": "WorkflowDefinition",
    "horsies.client.workflow.handle": (
        "WorkflowHandle cancel_workflow cancel_workflow_sync pause_workflow pause_workflow_sync resume_workflow "
        "resume_workflow_sync start_workflow start_workflow_async"
    ),
    "horsies.client.workflow.nodes": "AnyNode SubWorkflowNode SuccessCase SuccessPolicy TaskNode from_node",
    "horsies.client.workflow.spec": "WorkflowSpec chain group",
    "horsies.errors": (
        "BrokerError BrokerErrorCode ConfigurationError ErrorCode HorsiesError MultipleValidationErrors "
        "RegistryError SourceLocation TaskDefinitionError ValidationReport WorkflowValidationError"
    ),
    "horsies.model.recovery.decision": "RecoveredWorkers RecoveryContext RecoveryReason",
    "horsies.model.result": (
        "BrokerOperationError BrokerResult DatabasePing Err Ok Result UnwrapError WorkerPong WorkerStateSnapshot "
        "is_err is_ok"
    ),
    "horsies.model.retry": "Recovery RetryPolicy",
    "horsies.model.send": "TaskSendError TaskSendErrorCode TaskSendPayload TaskSendResult",
    "horsies.model.settings.recovery": "INFRASTRUCTURE_RESILIENT_FLAG",
    "horsies.model.settings": (
        "AppConfig CustomQueueConfig PayloadPolicy PostgresConfig QueueMode RecoveryConfig RetentionConfig "
        "ScheduleConfig TaskSchedule WorkerConfig WorkerResilienceConfig"
    ),
    "horsies.model.settings.patterns": (
        "BothDays ByMonthDay ByWeekday CronEnumRange CronEnumStep CronEnumValues CronEvery CronRange CronSchedule "
        "CronStep CronValues DailySchedule DaySelector EitherDay EveryDay HourlySchedule IntervalSchedule Month "
        "MonthlySchedule SchedulePattern Weekday WeeklySchedule"
    ),
    "horsies.model.task": "TASK_TERMINAL_STATES TaskAttemptInfo TaskAttemptOutcome TaskContext TaskInfo TaskStatus",
    "horsies.model.task_result": (
        "BUILTIN_CODE_REGISTRY BuiltInTaskCode ContractCode ExceptionMapper OperationalErrorCode OutcomeCode "
        "RetrievalCode SubWorkflowError TaskError TaskResult"
    ),
    "horsies.model.workflow.plan": (
        "NodeKey OnError WORKFLOW_TASK_TERMINAL_STATES WORKFLOW_TERMINAL_STATES WorkflowContextMissingIdError "
        "WorkflowStatus WorkflowTaskStatus slugify"
    ),
    "horsies.model.workflow.views": (
        "HandleErrorCode HandleOperationError HandleResult SubWorkflowSummary WorkflowContext WorkflowMeta "
        "WorkflowStartError WorkflowStartErrorCode WorkflowStartResult WorkflowTaskInfo"
    ),
    "horsies.registry.invocation": "current_task",
    "horsies.version": "__version__",
    "pydantic": "JsonValue",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

# Type checkers read the imports above instead. The flag is documented with its setting, not as a name of the library.
__all__ = sorted(_MODULE_OF.keys() - {"INFRASTRUCTURE_RESILIENT_FLAG"})  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
