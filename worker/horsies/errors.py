"""Every error horsies raises, as one tree.

HorsiesError
├── ConfigurationError        HRS-2xx  a setting is wrong           (also ValueError)
├── TaskDefinitionError       HRS-1xx  a task is declared wrongly    (also ValueError)
├── WorkflowValidationError   HRS-0xx  a workflow spec is wrong      (also ValueError)
├── RegistryError             HRS-3xx  a name is unknown or doubled  (also ValueError)
├── BrokerError               the database said no; `retryable` tells whether asking again may help
│   ├── DatabaseUnreachable   no server answered, or it refused the connection
│   └── NoBridge              a blocking call at the interpreter's end         (horsies.sync)
├── UsageError                the command line is wrong
├── NotFound                  what was asked for does not exist
├── Refused                   nothing asked for was in a state that allows it
├── Busy                      another process holds the lock
├── InsideEventLoop           a blocking call where only `await` can work     (horsies.sync)
├── UnwrapError               the wrong side of an Ok or Err was asked for    (horsies.model.result)
└── WorkflowContextMissingIdError   a node without an id was looked up       (horsies.model.workflow.plan)

MultipleValidationErrors is mixed into the family's class when several faults are reported at once.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from types import FrameType
from typing import ClassVar


class ExitCode(IntEnum):
    """What the `horsies` executable ends with."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    WORK_FOUND = 3
    BUSY = 4
    NOT_FOUND = 5
    REFUSED = 6
    DATABASE_UNREACHABLE = 7
    INTERRUPTED = 130


class ErrorCode(StrEnum):
    """Stable codes of errors that are found before any task runs."""

    WORKFLOW_NO_NAME = "HRS-001"
    WORKFLOW_NO_NODES = "HRS-002"
    WORKFLOW_INVALID_NODE_ID = "HRS-003"
    WORKFLOW_DUPLICATE_NODE_ID = "HRS-004"
    WORKFLOW_NO_ROOT_TASKS = "HRS-005"
    WORKFLOW_INVALID_DEPENDENCY = "HRS-006"
    WORKFLOW_CYCLE_DETECTED = "HRS-007"
    WORKFLOW_INVALID_ARGS_FROM = "HRS-008"
    WORKFLOW_INVALID_CTX_FROM = "HRS-009"
    WORKFLOW_CTX_PARAM_MISSING = "HRS-010"
    WORKFLOW_INVALID_OUTPUT = "HRS-011"
    WORKFLOW_INVALID_SUCCESS_POLICY = "HRS-012"
    WORKFLOW_INVALID_JOIN = "HRS-013"
    WORKFLOW_UNRESOLVED_QUEUE = "HRS-014"
    WORKFLOW_UNRESOLVED_PRIORITY = "HRS-015"
    WORKFLOW_NO_DEFINITION_KEY = "HRS-016"
    WORKFLOW_DUPLICATE_DEFINITION_KEY = "HRS-017"
    WORKFLOW_SUBWORKFLOW_APP_MISSING = "HRS-018"
    WORKFLOW_INVALID_KWARG_KEY = "HRS-019"
    WORKFLOW_MISSING_REQUIRED_PARAMS = "HRS-020"
    WORKFLOW_KWARGS_ARGS_FROM_OVERLAP = "HRS-021"
    WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH = "HRS-022"
    WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING = "HRS-023"
    WORKFLOW_ARGS_FROM_TYPE_MISMATCH = "HRS-024"
    WORKFLOW_OUTPUT_TYPE_MISMATCH = "HRS-025"
    WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED = "HRS-026"
    WORKFLOW_CHECK_CASES_REQUIRED = "HRS-027"
    WORKFLOW_CHECK_CASE_INVALID = "HRS-028"
    WORKFLOW_CHECK_BUILDER_EXCEPTION = "HRS-029"
    WORKFLOW_CHECK_UNDECORATED_BUILDER = "HRS-030"
    WORKFLOW_KWARGS_NOT_SERIALIZABLE = "HRS-031"
    WORKFLOW_INVALID_ID = "HRS-032"
    TASK_NO_RETURN_TYPE = "HRS-100"
    TASK_INVALID_RETURN_TYPE = "HRS-101"
    TASK_INVALID_OPTIONS = "HRS-102"
    TASK_INVALID_QUEUE = "HRS-103"
    TASK_PREDECORATED_NOT_SUPPORTED = "HRS-104"
    TASK_STRICT_SIGNATURE_VIOLATION = "HRS-105"
    CONFIG_INVALID_QUEUE_MODE = "HRS-200"
    CONFIG_INVALID_CLUSTER_CAP = "HRS-201"
    CONFIG_INVALID_PREFETCH = "HRS-202"
    BROKER_INVALID_URL = "HRS-203"
    CONFIG_INVALID_RECOVERY = "HRS-204"
    CONFIG_INVALID_SCHEDULE = "HRS-205"
    CLI_INVALID_ARGS = "HRS-206"
    WORKER_INVALID_LOCATOR = "HRS-207"
    CONFIG_INVALID_RESILIENCE = "HRS-208"
    CONFIG_INVALID_EXCEPTION_MAPPER = "HRS-209"
    MODULE_EXEC_ERROR = "HRS-210"
    BROKER_INIT_FAILED = "HRS-211"
    CHECK_RESERVED_CODE_COLLISION = "HRS-212"
    CONFIG_INVALID_BROKER_POOL = "HRS-213"
    CONFIG_INVALID_CHILD_HOOK = "HRS-214"
    CONFIG_INVALID_KEEPALIVE = "HRS-215"
    CONFIG_INVALID_RETENTION = "HRS-216"
    CONFIG_UNKNOWN_KEY = "HRS-217"
    CONFIG_INVALID_WORKER = "HRS-218"
    SCHEMA_NOT_MIGRATED = "HRS-219"
    EMBEDDED_UNAVAILABLE = "HRS-220"
    TASK_NOT_REGISTERED = "HRS-300"
    TASK_DUPLICATE_NAME = "HRS-301"


class BrokerErrorCode(StrEnum):
    """Why an operation on the database failed."""

    SCHEMA_INIT_FAILED = "SCHEMA_INIT_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    IDEMPOTENCY_KEY_CONFLICT = "IDEMPOTENCY_KEY_CONFLICT"
    TASK_INFO_QUERY_FAILED = "TASK_INFO_QUERY_FAILED"
    MONITORING_QUERY_FAILED = "MONITORING_QUERY_FAILED"
    CLEANUP_FAILED = "CLEANUP_FAILED"
    CLOSE_FAILED = "CLOSE_FAILED"
    LISTENER_START_FAILED = "LISTENER_START_FAILED"
    LISTENER_SUBSCRIBE_FAILED = "LISTENER_SUBSCRIBE_FAILED"
    NO_BROKER = "NO_BROKER"
    DB_PING_FAILED = "DB_PING_FAILED"
    WORKER_PING_FAILED = "WORKER_PING_FAILED"
    INVALID_JSON_PAYLOAD = "INVALID_JSON_PAYLOAD"
    INVALID_TASK_OPTIONS = "INVALID_TASK_OPTIONS"
    ASYNC_CONTEXT = "ASYNC_CONTEXT"
    SWEEP_BUSY = "SWEEP_BUSY"
    RECOVERY_FAILED = "RECOVERY_FAILED"


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in a file that a person can open."""

    file: str
    line: int
    column: int | None = None

    @classmethod
    def of_caller(cls) -> SourceLocation | None:
        """The first frame outside horsies, or None when there is no such file (a console script, `-c`)."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        while frame is not None and _is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or not Path(frame.f_code.co_filename).is_file():
            return None
        return cls(file=frame.f_code.co_filename, line=frame.f_lineno)

    @property
    def source(self) -> str:
        """The line itself; empty where it may hold a password, as the line that names the database may."""
        line = linecache.getline(self.file, self.line).strip()
        return "" if _MAY_HOLD_A_SECRET.search(line) else line

    def __str__(self) -> str:
        column = "" if self.column is None else f":{self.column}"
        return f"{self.file}:{self.line}{column}"


_MAY_HOLD_A_SECRET = re.compile("://|url|dsn|passw|secret|token", re.IGNORECASE)
_OUR_FOLDERS = tuple(
    str(folder) + "/"
    for folder in (
        Path(__file__).parent,
        Path(__file__).parents[2] / "horsies_ops",
        Path(__file__).parent.with_name("horsies_ops"),
        Path(__file__).parents[2] / "tui" / "horsies_tui",
        Path(__file__).parent.with_name("horsies_tui"),
    )
)


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OUR_FOLDERS)


class HorsiesError(Exception):
    """Base of all errors of horsies: a stable code, what happened, and what to do about it."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | BrokerErrorCode | None = None,
        hint: str | None = None,
        notes: Sequence[str] = (),
        location: SourceLocation | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.help_text = hint
        self.notes = tuple(notes)
        self.location = location

    @property
    def faults(self) -> tuple[HorsiesError, ...]:
        """Every fault that this error stands for; itself, unless it reports several together."""
        return (self,)

    @property
    def headline(self) -> str:
        code = "" if self.code is None else f"[{self.code}]"
        return f"error{code}: {self.message}"

    def __str__(self) -> str:
        lines = [self.headline]
        if self.location is not None:
            lines.append(f"  --> {self.location}")
            if source := self.location.source:
                lines.append(f"   | {source}")
        lines += [f"   = note: {note}" for note in self.notes]
        if self.help_text:
            lines.append(f"   = help: {self.help_text}")
        return "\n".join(lines)


def format_one_line(error: BaseException) -> str:
    """An error for a log, whose lines are events: what happened, then notes and what to do as fields; may be empty."""
    if not isinstance(error, HorsiesError):
        return str(error)
    fields = [*(("note", note) for note in error.notes), ("hint", error.help_text)]
    return "  ".join([error.headline, *(f"{name}={text}" for name, text in fields if text)])


class ConfigurationError(HorsiesError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class TaskDefinitionError(HorsiesError, ValueError):
    """A task is declared in a way that cannot work."""


class WorkflowValidationError(HorsiesError, ValueError):
    """A workflow spec cannot be run as it is written."""


class RegistryError(HorsiesError, ValueError):
    """A name is not registered, or registered twice."""


class BrokerError(HorsiesError):
    """The database refused or could not be asked; `retryable` says whether the same call may succeed later."""

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | BrokerErrorCode,
        retryable: bool = False,
        hint: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(message, code=code, hint=hint, notes=notes)
        self.retryable = retryable


class DatabaseUnreachable(BrokerError):
    """No server answered, or it would not let us in."""

    exit_code = ExitCode.DATABASE_UNREACHABLE

    def __init__(self, message: str, *, retryable: bool = True, hint: str | None = None) -> None:
        super().__init__(message, code=BrokerErrorCode.DB_PING_FAILED, retryable=retryable, hint=hint)


class UsageError(HorsiesError):
    """The command line asks for something that makes no sense."""

    exit_code = ExitCode.USAGE


class NotFound(HorsiesError):
    """What was asked for does not exist."""

    exit_code = ExitCode.NOT_FOUND


class Refused(HorsiesError):
    """No matching row was in a state that allows the action."""

    exit_code = ExitCode.REFUSED


class Busy(HorsiesError):
    """Another process holds the lock."""

    exit_code = ExitCode.BUSY


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """All faults found in one phase of a validation."""

    phase: str
    errors: tuple[HorsiesError, ...] = field(default=())

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


class MultipleValidationErrors(HorsiesError, ValueError):
    """Several faults of one phase, reported together in `report`."""

    report: ValidationReport

    @property
    def faults(self) -> tuple[HorsiesError, ...]:
        return self.report.errors

    def __str__(self) -> str:
        return f"{self.message}\n\n{self.report}"


class _SeveralConfigurationErrors(ConfigurationError, MultipleValidationErrors):
    pass


class _SeveralTaskDefinitionErrors(TaskDefinitionError, MultipleValidationErrors):
    pass


class _SeveralWorkflowErrors(WorkflowValidationError, MultipleValidationErrors):
    pass


_SEVERAL: dict[type[HorsiesError], type[MultipleValidationErrors]] = {
    ConfigurationError: _SeveralConfigurationErrors,
    TaskDefinitionError: _SeveralTaskDefinitionErrors,
    WorkflowValidationError: _SeveralWorkflowErrors,
}


def raise_together(phase: str, errors: Iterable[HorsiesError], *, family: type[HorsiesError] | None = None) -> None:
    """Raise one error as itself, several as one object of their family; return when there is none.

    Errors of several families belong to `family`, where one is given.
    """
    found = tuple(errors)
    if not found:
        return
    if len(found) == 1:
        raise found[0]
    first = found[0]
    family = next((known for known in _SEVERAL if all(isinstance(error, known) for error in found)), family)
    together = _SEVERAL[family] if family else MultipleValidationErrors
    error = together(f"{len(found)} problems in {phase}", code=first.code, location=first.location)
    error.report = ValidationReport(phase=phase, errors=found)
    raise error
