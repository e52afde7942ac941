"""Descriptions of pydantic errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from horsies.model.text import describe_validation_error


class Order(BaseModel):
    cents: int


@dataclass
class Item:
    name: str


class Opaque: ...


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Order, "must be Order or a dict of its fields"),
        (Item, "must be Item or a dict of its fields"),
        (Opaque, "must be Opaque"),
    ],
)
def test_class_is_named_without_an_article(kind: Any, message: str) -> None:
    config = ConfigDict(arbitrary_types_allowed=True)
    adapter = TypeAdapter[Any](kind, config=config if kind is Opaque else None)
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python("tomorrow")

    assert [describe_validation_error(finding) for finding in caught.value.errors()] == [message]
