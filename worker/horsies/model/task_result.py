"""`TaskResult`, `TaskError` and the built-in error codes; mapping of exceptions to codes."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Never, TypeAlias, overload

from pydantic import BaseModel, ConfigDict, JsonValue, PlainValidator, ValidationInfo, field_serializer
from typing_extensions import TypeVar

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.result import cause_of, summarize_error
from horsies.model.workflow.plan import WorkflowContextMissingIdError

# Built-in error codes, by family


class OperationalErrorCode(StrEnum):
    """Something broke: the task's code, its process or the infrastructure."""

    UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    POISON_TASK = "POISON_TASK"
    SHUTDOWN = "SHUTDOWN"
    BROKER_ERROR = "BROKER_ERROR"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    WORKFLOW_ENQUEUE_FAILED = "WORKFLOW_ENQUEUE_FAILED"
    SUBWORKFLOW_LOAD_FAILED = "SUBWORKFLOW_LOAD_FAILED"


class ContractCode(StrEnum):
    """A value does not match its declared type."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    PYDANTIC_HYDRATION_ERROR = "PYDANTIC_HYDRATION_ERROR"
    WORKFLOW_CTX_MISSING_ID = "WORKFLOW_CTX_MISSING_ID"


class RetrievalCode(StrEnum):
    """A result could not be retrieved; the task itself is not affected."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """A task or run was ended from outside: by an operator, a deadline or its workflow."""

    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    OPERATOR_FAILED = "OPERATOR_FAILED"
    OPERATOR_REQUEUED = "OPERATOR_REQUEUED"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    WORKFLOW_EXPIRED = "WORKFLOW_EXPIRED"
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"


BuiltInTaskCode: TypeAlias = OperationalErrorCode | ContractCode | RetrievalCode | OutcomeCode

BUILTIN_CODE_REGISTRY: dict[str, BuiltInTaskCode] = {
    member.value: member
    for family in (OperationalErrorCode, ContractCode, RetrievalCode, OutcomeCode)
    for member in family
}

NEVER_RETRIED: frozenset[BuiltInTaskCode] = frozenset(
    {
        OperationalErrorCode.POISON_TASK,
        *RetrievalCode,
        OutcomeCode.TASK_CANCELLED,
        OutcomeCode.TASK_EXPIRED,
        OutcomeCode.WORKFLOW_CANCELLED,
        OutcomeCode.WORKFLOW_EXPIRED,
    }
)
"""Codes that a retry policy may not list: a retry could not succeed, or the task was ended on purpose."""

UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
"""The form of an error code: `CARD_DECLINED`, `HTTP_503`."""


def parse_code(text: str) -> BuiltInTaskCode | str:
    """Return the member of a built-in family, or the text itself if it is a user's own code."""
    return BUILTIN_CODE_REGISTRY.get(text, text)


# TaskError

T = TypeVar("T")


class _NewError:
    """The validation context of an error that is created in code, not read."""


_BUILTIN_CODE_TYPES = tuple({type(member) for member in BUILTIN_CODE_REGISTRY.values()})


def _validate_code(code: object, info: ValidationInfo) -> BuiltInTaskCode | str | None:
    if code is None or isinstance(code, _BUILTIN_CODE_TYPES):
        return code
    if not isinstance(code, str):
        raise ValueError("error_code must be a string or a member of a built-in family")  # noqa: TRY004 - pydantic wants ValueError
    text = str(code)
    # Stored and dumped codes are plain text; only a new error must name a built-in code by its member.
    is_new = isinstance(info.context, _NewError)
    if info.mode == "json" or (not is_new and text in BUILTIN_CODE_REGISTRY):
        return parse_code(text)
    if text in BUILTIN_CODE_REGISTRY:
        raise ValueError(f"{text} is reserved; pass {type(BUILTIN_CODE_REGISTRY[text]).__name__}.{text}")
    if not UPPER_SNAKE.fullmatch(text):
        raise ValueError(f"a custom error_code must be in UPPER_SNAKE, such as CARD_DECLINED, got {text!r}")
    return text


class TaskError(BaseModel):
    """Why a task failed: an error code for programs, a message for people, optional data, and the exception.

    Pass built-in codes as enum members; a plain `str` with the same text is rejected, so that a custom code cannot be
    mistaken for a built-in one. An exception is kept as it is in this process and stored as an object with `type`,
    `module`, `message`, `repr` and `traceback`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    error_code: Annotated[BuiltInTaskCode | str | None, PlainValidator(_validate_code)] = None
    message: str | None = None
    data: Any = None
    exception: BaseException | dict[str, JsonValue] | str | None = None

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __init__(self, /, **given: Any) -> None:
            self.__pydantic_validator__.validate_python(given, self_instance=self, context=_NewError())

        # Pydantic then does not call it to validate data, such as the dump of an error.
        __init__.__pydantic_base_init__ = True

    def __str__(self) -> str:
        return summarize_error(self)

    @field_serializer("exception")
    def _store_exception(self, exception: BaseException | dict[str, Any] | str | None) -> object:
        return exception_to_record(exception) if isinstance(exception, BaseException) else exception


class SubWorkflowError(TaskError):
    """A sub-workflow failed; identifies the run and summarizes its nodes."""

    sub_workflow_id: str
    sub_workflow_summary: dict[str, JsonValue] | None = None


def exception_to_record(exception: BaseException) -> dict[str, str]:
    """Convert an exception to strings, even if its `__str__` or `__repr__` raises."""
    kind = type(exception)
    return {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "message": safe_stringify(str, exception),
        "repr": safe_stringify(repr, exception),
        "traceback": safe_stringify(lambda raised: "".join(traceback.format_exception(raised)), exception),
    }


MAX_TEXT_CHARS: Final = 64 * 1024
"""Longer texts of exceptions, and of values without a JSON form, are cut: a report to the worker has a limit."""


def safe_stringify(to_text: Callable[[T], str], value: T) -> str:
    """Return `to_text(value)`, cut after `MAX_TEXT_CHARS`, or a placeholder that names the exception it raised."""
    try:
        return cut_text(to_text(value))
    except BaseException as error:  # noqa: BLE001 - __str__ and __repr__ are user code, which may raise anything
        return f"<{type(value).__qualname__}: {to_text.__name__} raised {type(error).__qualname__}>"


def cut_text(text: str) -> str:
    """Cut a text after `MAX_TEXT_CHARS` and say how much is missing."""
    missing = len(text) - MAX_TEXT_CHARS
    return text if missing <= 0 else f"{text[:MAX_TEXT_CHARS]}… ({missing:,} more characters)"


# TaskResult

# The defaults let type checkers infer both parameters of a result created without an annotation.
T_co = TypeVar("T_co", covariant=True, default=Never)
E_co = TypeVar("E_co", covariant=True, default=TaskError)


class _Missing(Enum):
    """Marks an argument that was not given; None is a valid value."""

    MISSING = "missing"


_MISSING = _Missing.MISSING


class TaskResult(Generic[T_co, E_co]):
    """The result of a task: either `ok` or `err`; `TaskResult(ok=None)` is a success.

    Reading `ok` of a failure or `err` of a success gives None; `ok_value`, `err_value` and the `unwrap` methods raise
    `ValueError`.
    """

    __slots__ = ("_err", "_ok")
    __match_args__ = ("ok", "err")

    @overload
    def __init__(self, *, ok: T_co) -> None: ...
    @overload
    def __init__(self, *, err: E_co) -> None: ...
    def __init__(self, *, ok: T_co | _Missing = _MISSING, err: E_co | _Missing = _MISSING) -> None:
        if (ok is _MISSING) == (err is _MISSING):
            raise ValueError("TaskResult needs exactly one of ok and err")
        if err is None:
            raise ValueError("err must be a TaskError, not None")
        self._ok = ok
        self._err = err

    def is_ok(self) -> bool:
        return self._err is _MISSING

    def is_err(self) -> bool:
        return self._err is not _MISSING

    @property
    def ok(self) -> T_co | None:
        return None if isinstance(self._ok, _Missing) else self._ok

    @property
    def err(self) -> E_co | None:
        return None if isinstance(self._err, _Missing) else self._err

    @property
    def ok_value(self) -> T_co:
        if isinstance(self._ok, _Missing):
            is_missing = isinstance(getattr(self._err, "error_code", None), RetrievalCode)
            message = f"{'no result' if is_missing else 'the task failed'}: {summarize_error(self._err)}"
            raise ValueError(message) from cause_of(self._err)  # noqa: TRY004 - the documented class
        return self._ok

    @property
    def err_value(self) -> E_co:
        if isinstance(self._err, _Missing):
            raise ValueError("the task succeeded and has no error")  # noqa: TRY004 - the documented class
        return self._err

    def unwrap(self) -> T_co:
        return self.ok_value

    def unwrap_err(self) -> E_co:
        return self.err_value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        return self._sides() == other._sides()

    def __hash__(self) -> int:
        return hash(self._sides())

    def __repr__(self) -> str:
        return f"TaskResult(ok={self._ok!r})" if self.is_ok() else f"TaskResult(err={self._err!r})"

    def __str__(self) -> str:
        return f"ok: {self._ok!r}" if self.is_ok() else f"failed: {summarize_error(self._err)}"

    def _sides(self) -> tuple[object, object]:
        return self._ok, self._err


# Mapping exceptions to error codes

ExceptionMapper: TypeAlias = Mapping[type[BaseException], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionRules:
    """Error codes for exceptions, set on a task or on the app: by exact class, and a default for all others."""

    mapper: ExceptionMapper = field(default_factory=dict[type[BaseException], str])
    default: str | None = None


def error_code_for(kind: type[BaseException], *, task: ExceptionRules, app: ExceptionRules) -> BuiltInTaskCode | str:
    """Return the error code of an exception class: mappers before defaults, the task's before the app's.

    Mappers match exact classes, not subclasses. A horsies exception with its own code keeps it unless it is mapped.
    """
    own_code = ContractCode.WORKFLOW_CTX_MISSING_ID if kind is WorkflowContextMissingIdError else None
    for code in (task.mapper.get(kind), app.mapper.get(kind), own_code, task.default, app.default):
        if code is not None:
            return parse_code(code)
    return OperationalErrorCode.UNHANDLED_EXCEPTION


def task_error_from(exception: BaseException, *, task: ExceptionRules, app: ExceptionRules) -> TaskError:
    """Build the error of a task that raised; it keeps the exception."""
    kind, text = type(exception).__qualname__, safe_stringify(str, exception)
    return TaskError(
        error_code=error_code_for(type(exception), task=task, app=app),
        # With its class: the text alone may say nothing, as that of KeyError('user_id').
        message=f"{kind}: {text}" if text else kind,
        exception=exception,
    )


def mapping_faults(rules: ExceptionRules) -> Iterator[ConfigurationError]:
    """Yield every fault in these rules."""
    if not isinstance(rules.mapper, Mapping):
        yield _mapper_error("exception_mapper must be a dict")
        return
    for kind, code in rules.mapper.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            yield _mapper_error(f"exception_mapper: {kind!r} is not an exception class")
        elif not _is_code(code):
            yield _mapper_error(f"exception_mapper: the code for {kind.__qualname__} must be in UPPER_SNAKE")
    if rules.default is not None and not _is_code(rules.default):
        yield _mapper_error("default_unhandled_error_code must be in UPPER_SNAKE")


def reserved_code_faults(rules: ExceptionRules) -> Iterator[ConfigurationError]:
    """Yield a fault for every rule that maps to a built-in code."""
    for kind, code in rules.mapper.items():
        if code in BUILTIN_CODE_REGISTRY:
            yield _reserved_code_error(f"exception_mapper maps {kind.__qualname__} to {code}")
    if rules.default in BUILTIN_CODE_REGISTRY and rules.default != OperationalErrorCode.UNHANDLED_EXCEPTION:
        yield _reserved_code_error(f"default_unhandled_error_code is {rules.default}")


def _is_code(code: object) -> bool:
    return isinstance(code, str) and UPPER_SNAKE.fullmatch(code) is not None


def _mapper_error(message: str) -> ConfigurationError:
    return ConfigurationError(
        message,
        code=ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER,
        hint="map exception classes to codes such as CARD_DECLINED",
    )


def _reserved_code_error(message: str) -> ConfigurationError:
    return ConfigurationError(
        f"{message}, which is a built-in code",
        code=ErrorCode.CHECK_RESERVED_CODE_COLLISION,
        hint="use a custom code",
    )
