"""From an exception that a task raised to the code it fails with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.codes import (
    BUILTIN_CODE_REGISTRY,
    BuiltInTaskCode,
    ContractCode,
    OperationalErrorCode,
    is_upper_snake,
    known_code,
)
from horsies.model.task_error import TaskError, record_of
from horsies.model.workflow.names import WorkflowContextMissingIdError

if TYPE_CHECKING:
    from collections.abc import Iterator

ExceptionMapper: TypeAlias = Mapping[type[BaseException], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionRules:
    """What a task, or the app, says about exceptions: by exact class, and for all others."""

    mapper: ExceptionMapper = field(default_factory=dict[type[BaseException], str])
    default: str | None = None


def code_for(kind: type[BaseException], *, task: ExceptionRules, app: ExceptionRules) -> BuiltInTaskCode | str:
    """The code of an exception: both mappers before both defaults, the task's before the app's.

    A mapper matches the very class it names; a subclass is another exception. An exception of ours that has a code of
    its own keeps it unless a mapper says otherwise.
    """
    own = ContractCode.WORKFLOW_CTX_MISSING_ID if kind is WorkflowContextMissingIdError else None
    for code in (task.mapper.get(kind), app.mapper.get(kind), own, task.default, app.default):
        if code is not None:
            return known_code(code)
    return OperationalErrorCode.UNHANDLED_EXCEPTION


def error_from(exception: BaseException, *, task: ExceptionRules, app: ExceptionRules) -> TaskError:
    """The failure that a raised exception stands for; the exception itself is kept in it."""
    return TaskError(
        error_code=code_for(type(exception), task=task, app=app),
        message=record_of(exception)["message"] or type(exception).__qualname__,
        exception=exception,
    )


def mapping_faults(rules: ExceptionRules) -> Iterator[ConfigurationError]:
    """Everything that keeps these rules from working."""
    if not isinstance(rules.mapper, Mapping):
        yield _fault("exception_mapper must be a dict")
        return
    for kind, code in rules.mapper.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            yield _fault(f"exception_mapper: {kind!r} is not an exception class")
        elif not _is_code(code):
            yield _fault(f"exception_mapper: the code for {kind.__qualname__} must be UPPER_SNAKE text")
    if rules.default is not None and not _is_code(rules.default):
        yield _fault("default_unhandled_error_code must be UPPER_SNAKE text")


def reserved_codes(rules: ExceptionRules) -> Iterator[ConfigurationError]:
    """Codes of ours that these rules would hand out as if they were the user's own."""
    for kind, code in rules.mapper.items():
        if code in BUILTIN_CODE_REGISTRY:
            yield _collision(f"exception_mapper maps {kind.__qualname__} to {code}")
    if rules.default in BUILTIN_CODE_REGISTRY and rules.default != OperationalErrorCode.UNHANDLED_EXCEPTION:
        yield _collision(f"default_unhandled_error_code is {rules.default}")


def _is_code(code: object) -> bool:
    return isinstance(code, str) and is_upper_snake(code)


def _fault(message: str) -> ConfigurationError:
    return ConfigurationError(
        message,
        code=ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER,
        hint="a mapper maps exception classes to codes such as CARD_DECLINED",
    )


def _collision(message: str) -> ConfigurationError:
    return ConfigurationError(
        f"{message}, which is reserved",
        code=ErrorCode.CHECK_RESERVED_CODE_COLLISION,
        hint="choose a code of your own",
    )
