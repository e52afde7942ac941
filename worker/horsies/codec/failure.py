"""Errors on their way into a row. They are always stored, whatever they carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horsies.codec.value import TypedValue
from horsies.codec.wire import MAX_PARSED_DEPTH, PayloadRefused, cleaned, fault_in
from horsies.model.task_error import record_of, said_by

if TYPE_CHECKING:
    from pydantic import JsonValue

    from horsies.model.task_error import TaskError

_ANYTHING = TypedValue(Any)
# The body of an error is itself one level around what it carries.
_MAX_DEPTH = MAX_PARSED_DEPTH - 1


def stored_error(error: TaskError) -> dict[str, JsonValue]:
    """The error as plain JSON: what has no JSON form is replaced by its repr, what no text may hold by U+FFFD."""
    return {name: _written(getattr(error, name)) for name in type(error).model_fields}


def _written(value: object) -> JsonValue:
    if isinstance(value, str):
        return cleaned(value)
    if isinstance(value, BaseException):
        return {name: cleaned(text) for name, text in record_of(value).items()}
    try:
        plain = _ANYTHING.dump(value)
    except PayloadRefused:
        return cleaned(said_by(repr, value))
    return plain if fault_in(plain, max_depth=_MAX_DEPTH) is None else cleaned(said_by(repr, value))
