"""The rule of a field in words, read off its annotation, so that no message repeats a range by hand."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic.fields import FieldInfo

LONGEST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Says:
    """States the rule of a field in our own words, for rules that the annotation cannot express."""

    text: str
    unset: str = "none"
    """What there is where the field is left out, if it has no default."""


def expectation(field: FieldInfo) -> str:
    """What the field must be, as the end of a sentence that starts with "must be"."""
    kinds = members(field.annotation)
    said = _said(field)
    text = said.text if said else _kind(kinds[0]) + _bounds(field)
    return f"{text}, or none" if type(None) in kinds else text


def default_in_words(field: FieldInfo) -> str | None:
    """What to fall back on, as a hint; None for a field that has no default."""
    if field.is_required():
        return None
    default = field.get_default(call_default_factory=True)
    if default is not None:
        return f"the default is {json.dumps(default, default=str)}"
    said = _said(field)
    return f"leave it out for {said.unset if said else 'none'}"


def _said(field: FieldInfo) -> Says | None:
    return next((item for item in field.metadata if isinstance(item, Says)), None)


def members(annotation: Any) -> tuple[Any, ...]:
    """The types a value may have, constraints left out; None comes as `NoneType`."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    found = get_args(annotation) if is_union else (annotation,)
    return tuple(get_args(member)[0] if get_origin(member) is Annotated else member for member in found)


def shown(value: object) -> str:
    """`, got …` for values that cannot hold a secret, else nothing."""
    if isinstance(value, bool | int | float | Enum) or value is None:
        return f", got {value}"
    if isinstance(value, str) and len(value) <= LONGEST_SHOWN and not set("@=:") & set(value):
        return f", got {value!r}"
    return ""


def unknown_key(name: str, known: Iterable[str]) -> tuple[str, str | None]:
    """What to say about a name nobody knows: the nearest known one, or, as a hint, all of them."""
    names = sorted(known)
    if near := difflib.get_close_matches(name, names, n=1):
        return f"unknown key, did you mean {near[0]}?", None
    return "unknown key", "known here: " + ", ".join(names)


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(annotation))
    if issubclass(origin, Enum):
        return "one of " + ", ".join(str(choice.value) for choice in origin)
    for known, words in _WORDS.items():
        if issubclass(origin, known):
            return words
    return "a table of settings"


# In this order: a bool is an int and a str is a Sequence.
_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Sequence: "a list",
    Mapping: "a table",
}


def _bounds(field: FieldInfo) -> str:
    low = next((item.ge for item in field.metadata if isinstance(item, Ge)), None)
    high = next((item.le for item in field.metadata if isinstance(item, Le)), None)
    if low is None:
        return ""
    return f" of at least {low}" if high is None else f" from {low} to {high}"
