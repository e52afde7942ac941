"""What a value loses on its way through JSON, found by reading it back before it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel

from horsies.codec.members import bare, members

if TYPE_CHECKING:
    from collections.abc import Collection

_JSON_SCALARS = (str, int, float, type(None))


def loss(given: object, back: object, *, is_loose: bool) -> str | None:
    """Why `back`, read from the stored form of `given`, is not the same value, or None when it is.

    Where parts of a value have no declared type (`is_loose`), an array may come back for any collection, an object for
    a model, and text for whatever is written as text; keys, numbers and text must still be what they were.
    """
    if _is_equal(given, back):
        return None
    given, back = bare(given), bare(back)
    before, after = members(given), members(back)
    if before is None or after is None:
        return _loss_of_scalar(given, back, is_loose=is_loose)
    is_object = not isinstance(given, Mapping | list | tuple)
    if not is_object and before.keys() != after.keys():
        return "has a key that would be read back as another"
    shown = _field_names(given) if is_object else ()
    # Of an object only what was read back counts: what a subclass adds is no part of the declared type.
    for name in after:
        if name in before and (lost := loss(before[name], after[name], is_loose=is_loose)):
            return f"{name}: {lost}" if name in shown else lost
    return None


def _loss_of_scalar(given: object, back: object, *, is_loose: bool) -> str | None:
    if not _is_comparable(given) or (is_loose and not isinstance(given, _JSON_SCALARS)):
        return None
    kind, other = type(given).__qualname__, type(back).__qualname__
    return f"holds a value of type {kind} that would be read back as {'another' if kind == other else other}"


def _field_names(given: object) -> Collection[str]:
    """Names that a message may show; those of extras are data."""
    return type(given).model_fields if isinstance(given, BaseModel) else members(given) or ()


def _is_equal(given: object, back: object) -> bool:
    try:
        return bool(given == back)
    except Exception:  # noqa: BLE001 - user code, and arrays of numbers have no one answer
        return False


def _is_comparable(given: object) -> bool:
    """Whether being unequal says anything: not of what reading uses up, nor of what equals nothing but itself."""
    has_equality = type(given).__eq__ is not object.__eq__
    return has_equality and not isinstance(given, Iterator) and _is_equal(given, given)
