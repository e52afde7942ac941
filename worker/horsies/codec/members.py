"""What a value is made of, as its JSON form shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, RootModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def bare(value: object) -> object:
    """The value itself, or what a root model only wraps."""
    return bare(cast("RootModel[object]", value).root) if isinstance(value, RootModel) else value


def members(value: object) -> Mapping[Any, object] | None:
    """The items of a mapping, the elements of a sequence by position, the fields of an object; None without any.

    Private attributes and what a class computes or remembers are no part of its value.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("Sequence[object]", value)))
    if isinstance(value, BaseModel):
        return _present(value, type(value).model_fields) | (value.model_extra or {})
    if dataclasses.is_dataclass(value):
        return _present(value, [field.name for field in dataclasses.fields(value)])
    return None


def _present(value: object, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(value, name) for name in names if hasattr(value, name)}
