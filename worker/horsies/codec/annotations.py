"""The annotations of a function, each resolved by itself so that a fault can be laid to one parameter."""

from __future__ import annotations

import inspect
import re
import typing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from pydantic import PydanticSchemaGenerationError, PydanticUserError

from horsies.codec.upstream import upstream_value
from horsies.codec.value import PlainValue, Value, value_of
from horsies.codec.wire import PayloadRefused
from horsies.errors import ErrorCode
from horsies.model.result import Err, Ok, Result
from horsies.model.task_error import TaskError
from horsies.model.task_result import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable

RETURN = "return"
RETURNS = "declare what it returns: -> TaskResult[int, TaskError]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureFault:
    """Why a function cannot be a task; `parameter` is None where its return type is meant."""

    code: ErrorCode
    reason: str
    hint: str
    parameter: str | None = None
    may_resolve_later: bool = False
    """True when a name is not defined yet, as for a class that stands further down in the module."""


def parameter_value(function: Callable[..., object], parameter: inspect.Parameter) -> Result[Value, SignatureFault]:
    """How arguments for this parameter are written and read."""
    if parameter.annotation is parameter.empty:
        return Ok(PlainValue())
    name = parameter.name
    return (
        _resolved(function, name, parameter.annotation)
        .and_then(lambda annotation: _adapted(annotation, name))
        .and_then(lambda value: _fitting_default(value, parameter))
    )


def return_value(function: Callable[..., object], annotation: object) -> Result[Value, SignatureFault]:
    """How the ok value of this function is written and read."""
    if annotation is inspect.Signature.empty:
        reason = "has no return annotation"
        return Err(SignatureFault(code=ErrorCode.TASK_NO_RETURN_TYPE, reason=reason, hint=RETURNS))
    return _resolved(function, RETURN, annotation).and_then(_ok_type).and_then(lambda found: _adapted(found, None))


def _ok_type(annotation: object) -> Result[object, SignatureFault]:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is TaskResult and len(arguments) == 2 and arguments[1] is TaskError:
        return Ok(arguments[0])
    reason = f"must return TaskResult[T, TaskError], but returns {_written(annotation)}"
    return Err(SignatureFault(code=ErrorCode.TASK_INVALID_RETURN_TYPE, reason=reason, hint=RETURNS))


def _fitting_default(value: Value, parameter: inspect.Parameter) -> Result[Value, SignatureFault]:
    """Defaults are not stored, and so never checked when a task is sent or run."""
    if parameter.default is parameter.empty:
        return Ok(value)
    try:
        value.check(parameter.default)
    except PayloadRefused as refused:
        reason = f"its default does not fit its annotation: {refused.reason}"
        hint = "change one of them, as in limit: int | None = None"
        code = ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION
        return Err(SignatureFault(code=code, reason=reason, hint=hint, parameter=parameter.name))
    return Ok(value)


def _resolved(function: Callable[..., object], name: str, annotation: object) -> Result[object, SignatureFault]:
    """The annotation with its forward references looked up in the function's module."""
    alone = SimpleNamespace(__annotations__={name: annotation})
    names = getattr(function, "__globals__", {})
    try:
        return Ok(typing.get_type_hints(alone, globalns=names, include_extras=True)[name])
    except Exception as error:  # noqa: BLE001 - evaluating an annotation runs whatever is written there
        return Err(_unusable(name, error))


def _adapted(annotation: object, name: str | None) -> Result[Value, SignatureFault]:
    try:
        upstream = None if name is None else upstream_value(name, annotation)
        return Ok(upstream or value_of(annotation))
    except Exception as error:  # noqa: BLE001 - a class may build its own schema, and raise anything in it
        return Err(_unusable(name, error))


def _is_unresolved(error: Exception) -> bool:
    if isinstance(error, PydanticUserError):
        return error.code == "class-not-fully-defined"
    return isinstance(error, NameError)


def _unusable(name: str | None, error: Exception) -> SignatureFault:
    may_resolve_later = _is_unresolved(error)
    return SignatureFault(
        code=ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION,
        parameter=None if name == RETURN else name,
        reason=_reason(error),
        may_resolve_later=may_resolve_later,
        hint="define the class above the task"
        if may_resolve_later
        else "use plain types, dataclasses or pydantic models",
    )


def _reason(error: Exception) -> str:
    first = str(error).partition("\n")[0]
    if isinstance(error, PydanticSchemaGenerationError):
        # Goes on with advice for models, which does not help a task.
        kind = first.partition(" schema for ")[2].partition(". ")[0]
        return f"{_short(kind)} cannot be stored as JSON"
    return first


def _written(annotation: object) -> str:
    """The annotation as people write it, without the modules of its names."""
    return _short(inspect.formatannotation(annotation)).replace("NoneType", "None")


def _short(written: str) -> str:
    return re.sub(r"\w+\.|<class '|'>|<locals>\.", "", written)
