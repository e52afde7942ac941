"""All errors that horsies raises.

HorsiesError
├── ConfigurationError        HRS-2xx  invalid setting                (also ValueError)
├── TaskDefinitionError       HRS-1xx  invalid task definition        (also ValueError)
├── WorkflowValidationError   HRS-0xx  invalid workflow               (also ValueError)
├── RegistryError             HRS-3xx  unknown or duplicate name      (also ValueError)
├── BrokerError               a database operation failed; `retryable` if it may succeed later
│   ├── DatabaseUnreachable   no server answered, or it rejected the connection
│   └── BridgeUnavailable     blocking call during interpreter shutdown      (horsies.sync)
├── UsageError                invalid command line
├── NotFound                  the requested object does not exist
├── Refused                   no selected row is in a state that allows the action
├── Busy                      another process holds the lock
├── InsideEventLoop           blocking call inside a running event loop      (horsies.sync)
├── UnwrapError               unwrap() of an Err, or unwrap_err() of an Ok   (horsies.model.result)
└── WorkflowContextMissingIdError   lookup of a node without an id           (horsies.model.workflow.plan)

Several errors raised together are an instance of MultipleValidationErrors and of their common class.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from inspect import currentframe
from pathlib import Path
from types import FrameType
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the `horsies` command."""

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
    """Stable codes of configuration and definition errors."""

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
    """Stable codes of failed database operations."""

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
    """A position in a source or settings file."""

    file: str
    line: int
    column: int | None = None

    @classmethod
    def of_caller(cls) -> SourceLocation | None:
        """Return the first frame outside horsies; None if it is not in a file (a console script, `-c`)."""
        frame = _first_frame_outside()
        if frame is None or not Path(frame.f_code.co_filename).is_file():
            return None
        return cls(file=frame.f_code.co_filename, line=frame.f_lineno)

    @staticmethod
    def calling_module() -> str:
        """Return the name of the module that called the function that calls this; for a script, that of its file."""
        if (caller := _frame_of_callers_caller()) is None:
            return "horsies"
        name = str(caller.f_globals.get("__name__", "__main__"))
        return Path(caller.f_code.co_filename).stem if name == "__main__" else name

    @staticmethod
    def calling_file() -> Path | None:
        """Return the file that called the function that calls this; None if it is one of ours, or not a file."""
        if (caller := _frame_of_callers_caller()) is None:
            return None
        file = Path(caller.f_code.co_filename)
        return file.resolve() if file.is_file() and not str(file).startswith(_OUR_FOLDERS) else None

    @property
    def source(self) -> str:
        """The text of the line; empty if it may contain a password, for example in a database URL."""
        line = linecache.getline(self.file, self.line).strip()
        return "" if _MAY_CONTAIN_SECRET.search(line) else line

    def __str__(self) -> str:
        column = "" if self.column is None else f":{self.column}"
        return f"{self.file}:{self.line}{column}"


_MAY_CONTAIN_SECRET = re.compile("://|url|dsn|passw|secret|token", re.IGNORECASE)
# Both layouts: separate folders in a checkout, side by side in site-packages.
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


def _frame_of_callers_caller() -> FrameType | None:
    """Return the frame two levels above the function that calls this."""
    frame = currentframe()
    for _ in range(3):
        frame = frame and frame.f_back
    return frame


def _first_frame_outside() -> FrameType | None:
    # Not `inspect.stack`, which reads the source file of every frame and takes milliseconds.
    frame = currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OUR_FOLDERS):
        frame = frame.f_back
    return frame


class HorsiesError(Exception):
    """Base class of all errors: a stable code, what failed, and a hint how to fix it."""

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
        """The single errors: this one, unless several are raised together."""
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
    """Format an error as one log line: the message, then notes and hint as fields; may be empty."""
    if not isinstance(error, HorsiesError):
        return str(error)
    fields = [*(("note", note) for note in error.notes), ("hint", error.help_text)]
    return "  ".join([error.headline, *(f"{name}={text}" for name, text in fields if text)])


class ConfigurationError(HorsiesError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class TaskDefinitionError(HorsiesError, ValueError):
    """A task definition is invalid."""


class WorkflowValidationError(HorsiesError, ValueError):
    """A workflow is invalid."""


class RegistryError(HorsiesError, ValueError):
    """A name is not registered, or registered twice."""


class BrokerError(HorsiesError):
    """A database operation failed; `retryable` says whether the same call may succeed later."""

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
    """No server answered, or it rejected the connection."""

    exit_code = ExitCode.DATABASE_UNREACHABLE

    def __init__(self, message: str, *, retryable: bool = True, hint: str | None = None) -> None:
        super().__init__(message, code=BrokerErrorCode.DB_PING_FAILED, retryable=retryable, hint=hint)


def is_transient(error: BaseException) -> bool:
    """Whether the same operation may succeed later: the database is unavailable, or the error is marked as retryable.

    DatabaseUnreachable includes a refused login: work is kept until access is restored.
    """
    return isinstance(error, DatabaseUnreachable) or (isinstance(error, BrokerError) and error.retryable)


class UsageError(HorsiesError):
    """The command line is invalid."""

    exit_code = ExitCode.USAGE


class NotFound(HorsiesError):
    """The requested object does not exist."""

    exit_code = ExitCode.NOT_FOUND


class Refused(HorsiesError):
    """No selected row is in a state that allows the action."""

    exit_code = ExitCode.REFUSED


class Busy(HorsiesError):
    """Another process holds the lock."""

    exit_code = ExitCode.BUSY


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """All errors of one validation phase."""

    phase: str
    errors: tuple[HorsiesError, ...] = field(default=())

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


class MultipleValidationErrors(HorsiesError, ValueError):
    """Several errors of one phase, raised together; `report` has them all."""

    report: ValidationReport

    @property
    def faults(self) -> tuple[HorsiesError, ...]:
        return self.report.errors

    def __str__(self) -> str:
        return f"{self.message}\n\n{self.report}"


# So that `except ConfigurationError` and the like also catch several errors raised together.
_MULTIPLE: dict[type[HorsiesError], type[MultipleValidationErrors]] = {
    family: type(f"Multiple{family.__name__}s", (family, MultipleValidationErrors), {})
    for family in (ConfigurationError, TaskDefinitionError, WorkflowValidationError)
}


def raise_together(phase: str, errors: Iterable[HorsiesError], *, family: type[HorsiesError] | None = None) -> None:
    """Raise a single error unchanged, several as one error of their common class; return if there are none.

    `family` is the class for errors that have no common one.
    """
    report = ValidationReport(phase=phase, errors=tuple(errors))
    if not report.errors:
        return
    first = report.errors[0]
    if len(report.errors) == 1:
        raise first
    family = next((known for known in _MULTIPLE if all(isinstance(error, known) for error in report.errors)), family)
    combined = _MULTIPLE[family] if family else MultipleValidationErrors
    error = combined(f"{len(report.errors)} errors in {phase}", code=first.code, location=first.location)
    error.report = report
    raise error
