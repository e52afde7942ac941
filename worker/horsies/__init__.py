"""horsies: tasks in PostgreSQL, run by supervised workers.

Names are loaded when first used, so that `horsies --help` and other small programs import only what they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horsies.app import ChildProcessStartHook as ChildProcessStartHook
    from horsies.app import Horsies as Horsies
    from horsies.client.broker import PostgresBroker as PostgresBroker
    from horsies.client.flows import cancel_workflow as cancel_workflow
    from horsies.client.flows import cancel_workflow_sync as cancel_workflow_sync
    from horsies.client.flows import pause_workflow as pause_workflow
    from horsies.client.flows import pause_workflow_sync as pause_workflow_sync
    from horsies.client.flows import resume_workflow as resume_workflow
    from horsies.client.flows import resume_workflow_sync as resume_workflow_sync
    from horsies.client.flows import start_workflow as start_workflow
    from horsies.client.flows import start_workflow_async as start_workflow_async
    from horsies.client.handle import TaskHandle as TaskHandle
    from horsies.client.run_handle import WorkflowHandle as WorkflowHandle
    from horsies.client.send_options import TaskSendOptions as TaskSendOptions
    from horsies.client.task_function import TaskFunction as TaskFunction
    from horsies.client.workflow.definition import WorkflowDefinition as WorkflowDefinition
    from horsies.client.workflow.nodes import AnyNode as AnyNode
    from horsies.client.workflow.nodes import SubWorkflowNode as SubWorkflowNode
    from horsies.client.workflow.nodes import TaskNode as TaskNode
    from horsies.client.workflow.nodes import from_node as from_node
    from horsies.client.workflow.policies import SuccessCase as SuccessCase
    from horsies.client.workflow.policies import SuccessPolicy as SuccessPolicy
    from horsies.client.workflow.spec import WorkflowSpec as WorkflowSpec
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
    from horsies.model.broker import BrokerOperationError as BrokerOperationError
    from horsies.model.broker import BrokerResult as BrokerResult
    from horsies.model.broker import DatabasePing as DatabasePing
    from horsies.model.broker import WorkerPong as WorkerPong
    from horsies.model.broker import WorkerStateSnapshot as WorkerStateSnapshot
    from horsies.model.codes import BUILTIN_CODE_REGISTRY as BUILTIN_CODE_REGISTRY
    from horsies.model.codes import BuiltInTaskCode as BuiltInTaskCode
    from horsies.model.codes import ContractCode as ContractCode
    from horsies.model.codes import OperationalErrorCode as OperationalErrorCode
    from horsies.model.codes import OutcomeCode as OutcomeCode
    from horsies.model.codes import RetrievalCode as RetrievalCode
    from horsies.model.info import TaskAttemptInfo as TaskAttemptInfo
    from horsies.model.info import TaskContext as TaskContext
    from horsies.model.info import TaskInfo as TaskInfo
    from horsies.model.mapping import ExceptionMapper as ExceptionMapper
    from horsies.model.recovery.answers import RecoveredWorkers as RecoveredWorkers
    from horsies.model.recovery.answers import Recovery as Recovery
    from horsies.model.recovery.answers import RecoveryContext as RecoveryContext
    from horsies.model.recovery.verdicts import RecoveryReason as RecoveryReason
    from horsies.model.result import Err as Err
    from horsies.model.result import JsonValue as JsonValue
    from horsies.model.result import Ok as Ok
    from horsies.model.result import Result as Result
    from horsies.model.result import UnwrapError as UnwrapError
    from horsies.model.result import is_err as is_err
    from horsies.model.result import is_ok as is_ok
    from horsies.model.retry import RetryPolicy as RetryPolicy
    from horsies.model.sending import TaskSendError as TaskSendError
    from horsies.model.sending import TaskSendErrorCode as TaskSendErrorCode
    from horsies.model.sending import TaskSendPayload as TaskSendPayload
    from horsies.model.sending import TaskSendResult as TaskSendResult
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
    from horsies.model.task import TASK_TERMINAL_STATES as TASK_TERMINAL_STATES
    from horsies.model.task import TaskAttemptOutcome as TaskAttemptOutcome
    from horsies.model.task import TaskStatus as TaskStatus
    from horsies.model.task_error import SubWorkflowError as SubWorkflowError
    from horsies.model.task_error import TaskError as TaskError
    from horsies.model.task_result import TaskResult as TaskResult
    from horsies.model.workflow.calls import HandleErrorCode as HandleErrorCode
    from horsies.model.workflow.calls import HandleOperationError as HandleOperationError
    from horsies.model.workflow.calls import HandleResult as HandleResult
    from horsies.model.workflow.calls import WorkflowStartError as WorkflowStartError
    from horsies.model.workflow.calls import WorkflowStartErrorCode as WorkflowStartErrorCode
    from horsies.model.workflow.calls import WorkflowStartResult as WorkflowStartResult
    from horsies.model.workflow.context import WorkflowContext as WorkflowContext
    from horsies.model.workflow.context import WorkflowMeta as WorkflowMeta
    from horsies.model.workflow.info import SubWorkflowSummary as SubWorkflowSummary
    from horsies.model.workflow.info import WorkflowTaskInfo as WorkflowTaskInfo
    from horsies.model.workflow.names import NodeKey as NodeKey
    from horsies.model.workflow.names import WorkflowContextMissingIdError as WorkflowContextMissingIdError
    from horsies.model.workflow.names import slugify as slugify
    from horsies.model.workflow.plan import OnError as OnError
    from horsies.model.workflow.status import WORKFLOW_TASK_TERMINAL_STATES as WORKFLOW_TASK_TERMINAL_STATES
    from horsies.model.workflow.status import WORKFLOW_TERMINAL_STATES as WORKFLOW_TERMINAL_STATES
    from horsies.model.workflow.status import WorkflowStatus as WorkflowStatus
    from horsies.model.workflow.status import WorkflowTaskStatus as WorkflowTaskStatus
    from horsies.registry.context import current_task as current_task
    from horsies.version import __version__ as __version__

_MODULES = {
    "horsies.app": (
        "ChildProcessStartHook",
        "Horsies",
    ),
    "horsies.client.broker": ("PostgresBroker",),
    "horsies.client.flows": (
        "cancel_workflow",
        "cancel_workflow_sync",
        "pause_workflow",
        "pause_workflow_sync",
        "resume_workflow",
        "resume_workflow_sync",
        "start_workflow",
        "start_workflow_async",
    ),
    "horsies.client.handle": ("TaskHandle",),
    "horsies.client.run_handle": ("WorkflowHandle",),
    "horsies.client.send_options": ("TaskSendOptions",),
    "horsies.client.task_function": ("TaskFunction",),
    "horsies.client.workflow.definition": ("WorkflowDefinition",),
    "horsies.client.workflow.nodes": (
        "AnyNode",
        "SubWorkflowNode",
        "TaskNode",
        "from_node",
    ),
    "horsies.client.workflow.policies": (
        "SuccessCase",
        "SuccessPolicy",
    ),
    "horsies.client.workflow.spec": ("WorkflowSpec",),
    "horsies.errors": (
        "BrokerError",
        "BrokerErrorCode",
        "ConfigurationError",
        "ErrorCode",
        "HorsiesError",
        "MultipleValidationErrors",
        "RegistryError",
        "SourceLocation",
        "TaskDefinitionError",
        "ValidationReport",
        "WorkflowValidationError",
    ),
    "horsies.model.broker": (
        "BrokerOperationError",
        "BrokerResult",
        "DatabasePing",
        "WorkerPong",
        "WorkerStateSnapshot",
    ),
    "horsies.model.codes": (
        "BUILTIN_CODE_REGISTRY",
        "BuiltInTaskCode",
        "ContractCode",
        "OperationalErrorCode",
        "OutcomeCode",
        "RetrievalCode",
    ),
    "horsies.model.info": (
        "TaskAttemptInfo",
        "TaskContext",
        "TaskInfo",
    ),
    "horsies.model.mapping": ("ExceptionMapper",),
    "horsies.model.recovery.answers": (
        "RecoveredWorkers",
        "Recovery",
        "RecoveryContext",
    ),
    "horsies.model.recovery.verdicts": ("RecoveryReason",),
    "horsies.model.result": (
        "Err",
        "JsonValue",
        "Ok",
        "Result",
        "UnwrapError",
        "is_err",
        "is_ok",
    ),
    "horsies.model.retry": ("RetryPolicy",),
    "horsies.model.sending": (
        "TaskSendError",
        "TaskSendErrorCode",
        "TaskSendPayload",
        "TaskSendResult",
    ),
    "horsies.model.settings": (
        "AppConfig",
        "CustomQueueConfig",
        "PayloadPolicy",
        "PostgresConfig",
        "QueueMode",
        "RecoveryConfig",
        "RetentionConfig",
        "ScheduleConfig",
        "TaskSchedule",
        "WorkerConfig",
        "WorkerResilienceConfig",
    ),
    "horsies.model.task": (
        "TASK_TERMINAL_STATES",
        "TaskAttemptOutcome",
        "TaskStatus",
    ),
    "horsies.model.task_error": (
        "SubWorkflowError",
        "TaskError",
    ),
    "horsies.model.task_result": ("TaskResult",),
    "horsies.model.workflow.calls": (
        "HandleErrorCode",
        "HandleOperationError",
        "HandleResult",
        "WorkflowStartError",
        "WorkflowStartErrorCode",
        "WorkflowStartResult",
    ),
    "horsies.model.workflow.context": (
        "WorkflowContext",
        "WorkflowMeta",
    ),
    "horsies.model.workflow.info": (
        "SubWorkflowSummary",
        "WorkflowTaskInfo",
    ),
    "horsies.model.workflow.names": (
        "NodeKey",
        "WorkflowContextMissingIdError",
        "slugify",
    ),
    "horsies.model.workflow.plan": ("OnError",),
    "horsies.model.workflow.status": (
        "WORKFLOW_TASK_TERMINAL_STATES",
        "WORKFLOW_TERMINAL_STATES",
        "WorkflowStatus",
        "WorkflowTaskStatus",
    ),
    "horsies.registry.context": ("current_task",),
    "horsies.version": ("__version__",),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


__all__ = [  # noqa: RUF022  # in the order of sorted(), which is what is promised
    "AnyNode",
    "AppConfig",
    "BUILTIN_CODE_REGISTRY",
    "BrokerError",
    "BrokerErrorCode",
    "BrokerOperationError",
    "BrokerResult",
    "BuiltInTaskCode",
    "ChildProcessStartHook",
    "ConfigurationError",
    "ContractCode",
    "CustomQueueConfig",
    "DatabasePing",
    "Err",
    "ErrorCode",
    "ExceptionMapper",
    "HandleErrorCode",
    "HandleOperationError",
    "HandleResult",
    "Horsies",
    "HorsiesError",
    "JsonValue",
    "MultipleValidationErrors",
    "NodeKey",
    "Ok",
    "OnError",
    "OperationalErrorCode",
    "OutcomeCode",
    "PayloadPolicy",
    "PostgresBroker",
    "PostgresConfig",
    "QueueMode",
    "RecoveredWorkers",
    "Recovery",
    "RecoveryConfig",
    "RecoveryContext",
    "RecoveryReason",
    "RegistryError",
    "Result",
    "RetentionConfig",
    "RetrievalCode",
    "RetryPolicy",
    "ScheduleConfig",
    "SourceLocation",
    "SubWorkflowError",
    "SubWorkflowNode",
    "SubWorkflowSummary",
    "SuccessCase",
    "SuccessPolicy",
    "TASK_TERMINAL_STATES",
    "TaskAttemptInfo",
    "TaskAttemptOutcome",
    "TaskContext",
    "TaskDefinitionError",
    "TaskError",
    "TaskFunction",
    "TaskHandle",
    "TaskInfo",
    "TaskNode",
    "TaskResult",
    "TaskSchedule",
    "TaskSendError",
    "TaskSendErrorCode",
    "TaskSendOptions",
    "TaskSendPayload",
    "TaskSendResult",
    "TaskStatus",
    "UnwrapError",
    "ValidationReport",
    "WORKFLOW_TASK_TERMINAL_STATES",
    "WORKFLOW_TERMINAL_STATES",
    "WorkerConfig",
    "WorkerPong",
    "WorkerResilienceConfig",
    "WorkerStateSnapshot",
    "WorkflowContext",
    "WorkflowContextMissingIdError",
    "WorkflowDefinition",
    "WorkflowHandle",
    "WorkflowMeta",
    "WorkflowSpec",
    "WorkflowStartError",
    "WorkflowStartErrorCode",
    "WorkflowStartResult",
    "WorkflowStatus",
    "WorkflowTaskInfo",
    "WorkflowTaskStatus",
    "WorkflowValidationError",
    "__version__",
    "cancel_workflow",
    "cancel_workflow_sync",
    "current_task",
    "from_node",
    "is_err",
    "is_ok",
    "pause_workflow",
    "pause_workflow_sync",
    "resume_workflow",
    "resume_workflow_sync",
    "slugify",
    "start_workflow",
    "start_workflow_async",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
