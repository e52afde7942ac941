"""The public names of `horsies` and their order."""

from __future__ import annotations

import subprocess
import sys

import pytest

import horsies

PROMISED = {
    # App
    "Horsies",
    "AppConfig",
    "PostgresConfig",
    "PayloadPolicy",
    "ChildProcessStartHook",
    "__version__",
    # Tasks
    "TaskResult",
    "TaskError",
    "SubWorkflowError",
    "TaskInfo",
    "TaskAttemptInfo",
    "RetryPolicy",
    "TaskContext",
    "current_task",
    "ExceptionMapper",
    # Codes
    "OperationalErrorCode",
    "ContractCode",
    "RetrievalCode",
    "OutcomeCode",
    "BuiltInTaskCode",
    "BUILTIN_CODE_REGISTRY",
    # Queues, status
    "QueueMode",
    "CustomQueueConfig",
    "TaskStatus",
    "TaskAttemptOutcome",
    "TASK_TERMINAL_STATES",
    # Sending
    "TaskFunction",
    "TaskHandle",
    "TaskSendOptions",
    "TaskSendErrorCode",
    "TaskSendPayload",
    "TaskSendError",
    "TaskSendResult",
    # Broker
    "PostgresBroker",
    "BrokerError",
    "BrokerErrorCode",
    "BrokerOperationError",
    "BrokerResult",
    "DatabasePing",
    "WorkerPong",
    "WorkerStateSnapshot",
    # Result values
    "Result",
    "Ok",
    "Err",
    "is_ok",
    "is_err",
    "UnwrapError",
    "JsonValue",
    # Errors
    "HorsiesError",
    "ConfigurationError",
    "TaskDefinitionError",
    "RegistryError",
    "WorkflowValidationError",
    "MultipleValidationErrors",
    "ValidationReport",
    "ErrorCode",
    "SourceLocation",
    # Recovery
    "RecoveryConfig",
    "WorkerResilienceConfig",
    "RetentionConfig",
    "WorkerConfig",
    "Recovery",
    "RecoveryContext",
    "RecoveryReason",
    "RecoveredWorkers",
    # Workflow spec
    "WorkflowSpec",
    "TaskNode",
    "SubWorkflowNode",
    "AnyNode",
    "NodeKey",
    "WorkflowDefinition",
    "OnError",
    "SuccessCase",
    "SuccessPolicy",
    "from_node",
    "chain",
    "group",
    "slugify",
    # Workflow run
    "WorkflowHandle",
    "WorkflowStatus",
    "WorkflowTaskStatus",
    "WorkflowTaskInfo",
    "WorkflowContext",
    "WorkflowMeta",
    "SubWorkflowSummary",
    "WorkflowContextMissingIdError",
    "WORKFLOW_TERMINAL_STATES",
    "WORKFLOW_TASK_TERMINAL_STATES",
    # Workflow calls
    "start_workflow",
    "start_workflow_async",
    "pause_workflow",
    "pause_workflow_sync",
    "resume_workflow",
    "resume_workflow_sync",
    "cancel_workflow",
    "cancel_workflow_sync",
    "WorkflowStartError",
    "WorkflowStartErrorCode",
    "WorkflowStartResult",
    "HandleErrorCode",
    "HandleOperationError",
    "HandleResult",
    # Schedules
    "Weekday",
    "Month",
    "IntervalSchedule",
    "HourlySchedule",
    "DailySchedule",
    "WeeklySchedule",
    "MonthlySchedule",
    "CronSchedule",
    "CronEvery",
    "CronStep",
    "CronValues",
    "CronRange",
    "CronEnumValues",
    "CronEnumRange",
    "CronEnumStep",
    "EveryDay",
    "ByMonthDay",
    "ByWeekday",
    "EitherDay",
    "BothDays",
    "DaySelector",
    "SchedulePattern",
    "TaskSchedule",
    "ScheduleConfig",
}


def test_public_names_are_the_documented_ones() -> None:
    assert set(horsies.__all__) == PROMISED


def test_names_are_sorted_and_unique() -> None:
    assert list(horsies.__all__) == sorted(set(horsies.__all__)) == dir(horsies)


@pytest.mark.parametrize("name", horsies.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(horsies, name) is not None


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Horse"):
        horsies.Horse  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def test_importing_horsies_loads_neither_asyncpg_nor_models() -> None:
    code = "import sys, horsies; print([name for name in ('asyncpg', 'pydantic', 'asyncio') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_star_import_has_every_name() -> None:
    code = "from horsies import *; print(Horsies.__name__, __version__ != '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("Horsies True\n", "")
