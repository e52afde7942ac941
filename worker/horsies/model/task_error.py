"""Why a task failed, as a value that is stored with the task and handed to whoever asks."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, PlainValidator, ValidationInfo, field_serializer

from horsies.model.codes import BUILTIN_CODE_REGISTRY, BuiltInTaskCode, is_upper_snake, known_code

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_BUILT_IN = tuple({type(member) for member in BUILTIN_CODE_REGISTRY.values()})


def _read_code(code: object, info: ValidationInfo) -> BuiltInTaskCode | str | None:
    if code is None or isinstance(code, _BUILT_IN):
        return code
    if not isinstance(code, str):
        raise ValueError("error_code is a text or a member of a built-in family")  # noqa: TRY004 - pydantic wants ValueError
    text = str(code)
    if info.mode == "json":  # from the database, where every code is plain text
        return known_code(text)
    if text in BUILTIN_CODE_REGISTRY:
        raise ValueError(f"{text} is reserved; pass {type(BUILTIN_CODE_REGISTRY[text]).__name__}.{text}")
    if not is_upper_snake(text):
        raise ValueError("a code of your own is written in UPPER_SNAKE")
    return text


class TaskError(BaseModel):
    """What went wrong: a code to decide by, a message to read, data to work with, the exception behind it.

    A code that horsies uses itself is given as its enum member; the same text as a plain `str` is refused, so that
    nobody mistakes a task's own code for one of ours. A live exception stays live in this process and is stored as
    an object of five texts: type, module, message, repr and traceback.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    error_code: Annotated[BuiltInTaskCode | str | None, PlainValidator(_read_code)] = None
    message: str | None = None
    data: Any = None
    exception: BaseException | dict[str, JsonValue] | str | None = None

    @field_serializer("exception")
    def _store_exception(self, exception: BaseException | dict[str, Any] | str | None) -> object:
        return record_of(exception) if isinstance(exception, BaseException) else exception


class SubWorkflowError(TaskError):
    """A sub-workflow failed; says which run it was and how far it came."""

    sub_workflow_id: str
    sub_workflow_summary: dict[str, JsonValue] | None = None


def record_of(exception: BaseException) -> dict[str, str]:
    """A live exception as text, also when its own `__str__` or `__repr__` raises."""
    kind = type(exception)
    return {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "message": said_by(str, exception),
        "repr": said_by(repr, exception),
        "traceback": said_by(_traceback_of, exception),
    }


def _traceback_of(exception: BaseException) -> str:
    return "".join(traceback.format_exception(exception))


def said_by(speak: Callable[[T], str], value: T) -> str:
    """What a value says about itself, or that it could not say it."""
    try:
        return speak(value)
    except BaseException as error:  # noqa: BLE001 - its own methods are user code, which may raise anything
        return f"<{type(value).__qualname__}: {speak.__name__} raised {type(error).__qualname__}>"
