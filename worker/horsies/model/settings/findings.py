"""Pydantic's findings, told as our faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.fault import Fault
from horsies.model.settings.wording import default_in_words, expectation, shown, unknown_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from horsies.model.settings.base import Settings
    from horsies.model.settings.fault import Path


def faults_in(model: type[Settings], invalid: ValidationError) -> list[Fault]:
    """One fault for each wrong setting, in the order in which pydantic met them."""
    # Pydantic reports a wrong value once for every member of a union, and every wrong item of a list.
    return list(dict.fromkeys(_fault(model, error) for error in invalid.errors(include_url=False)))


def unknown(model: type[Settings], path: Path) -> Fault:
    """A name that the model does not have, with the place it moved to or the nearest name it does have."""
    name = str(path[-1])
    if place := model.elsewhere.get(name):
        return moved(path, place, code=model.fault_code)
    text, hint = unknown_key(name, model.model_fields)
    return Fault(path=path, text=text, code=ErrorCode.CONFIG_UNKNOWN_KEY, hint=hint)


def moved(path: Path, place: str, *, code: ErrorCode | None = None) -> Fault:
    return Fault(path=path, text="is set elsewhere", code=code or ErrorCode.CONFIG_UNKNOWN_KEY, hint=f"use {place}")


def without(given: dict[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """A copy without the settings at `paths`, of which those inside a list take the whole list with them."""
    kept = dict(given)
    for name, *rest in paths:
        inner = kept.get(str(name))
        if rest and isinstance(inner, dict):
            kept[str(name)] = without(cast("dict[str, Any]", inner), [tuple(rest)])
        else:
            kept.pop(str(name), None)
    return kept


def _fault(model: type[Settings], error: ErrorDetails) -> Fault:
    path = error["loc"]
    context = error.get("ctx", {})
    if isinstance(carried := context.get("fault"), Fault):
        return carried.below(path[: len(path) - len(carried.path)])
    if not path:
        return Fault(path=(), text="must be a table of settings", code=model.fault_code)
    if error["type"] == "extra_forbidden":
        return unknown(model, path)
    field = model.model_fields[str(path[0])]
    text, hint = _complaint(error, field, context.get("error"))
    return Fault(path=path[:1], text=text, hint=hint, code=_code_of(field) or model.fault_code)


def _complaint(error: ErrorDetails, field: FieldInfo, cause: object) -> tuple[str, str | None]:
    if error["type"] == "missing":
        return f"must be given: {expectation(field)}", None
    if isinstance(cause, ConfigurationError):
        return cause.message, cause.help_text
    got = shown(error["input"]) if len(error["loc"]) == 1 else ""
    return f"must be {expectation(field)}{got}", default_in_words(field)


def _code_of(field: FieldInfo) -> ErrorCode | None:
    return next((item for item in field.metadata if isinstance(item, ErrorCode)), None)
