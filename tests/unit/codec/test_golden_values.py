"""The stored form of every documented type is pinned, because stored rows are read by later releases."""

from __future__ import annotations

import enum
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field
from typing_extensions import TypedDict

from horsies.codec.canonical_json import canonical_json, find_json_fault
from horsies.codec.values import codec_for


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sku: str
    price: Decimal
    tags: set[str] = set()

    @computed_field
    @property
    def label(self) -> str:
        return f"{self.sku}: {self.price}"


class Order(BaseModel):
    lines: list[Line]
    placed_at: datetime


class Account(BaseModel):
    user_name: str = Field(alias="userName")


@dataclass(frozen=True)
class Point:
    x: int
    y: float


@dataclass(frozen=True)
class Attachment:
    body: bytes


class Badge(BaseModel, frozen=True):
    label: str


class Person(TypedDict):
    name: str


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    barks: bool = True


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Documented(NamedTuple):
    """A value, its annotation, and the decoded value if it differs."""

    annotation: Any
    value: Any
    comes_out: Any = ...


LINE = Line(sku="X-1", price=Decimal("9.90"))

VALUES: dict[str, Documented] = {
    "none": Documented(None, None),
    "bool": Documented(bool, True),
    "int": Documented(int, 12345678901234567890),
    "float": Documented(float, 2.5),
    "text": Documented(str, 'Grüße, 世界 🐎 "quoted" \\ \x7f'),
    "list": Documented(list[Any], [1, [2, []]]),
    "dict": Documented(dict[str, Any], {"a": {"b": None}}),
    "dict with int keys": Documented(dict[int, str], {1: "one", 2: "two"}),
    "model": Documented(Line, Line(sku="X-1", price=Decimal("9.90"), tags={"b", "a"})),
    "model with an alias": Documented(Account, Account(userName="ada")),
    "nested model": Documented(Order, Order(lines=[LINE], placed_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))),
    "dataclass": Documented(Point, Point(1, -2.5)),
    "typed dict": Documented(Person, {"name": "ada"}),
    "aware datetime": Documented(datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2)))),
    "utc datetime": Documented(datetime, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    "naive datetime": Documented(datetime, datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001 - a naive datetime
    "date": Documented(date, date(2026, 1, 2)),
    "time": Documented(time, time(3, 4, 5, 6)),
    "timedelta": Documented(timedelta, timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
    "uuid": Documented(uuid.UUID, uuid.UUID("018f0000-0001-7004-8203-040506070809")),
    "decimal": Documented(Decimal, Decimal("3.140")),
    "enum": Documented(Colour, Colour.RED),
    "int enum": Documented(Level, Level.HIGH),
    "tuple": Documented(tuple[int, str], (1, "one")),
    "tuple of any length": Documented(tuple[int, ...], (1, 2, 3)),
    "set": Documented(set[str], {"c", "a", "b"}),
    "set of ints": Documented(set[int], {10, 2, 1}),
    "frozenset": Documented(frozenset[str], frozenset({"y", "x"})),
    "set in a list": Documented(list[set[str]], [{"b", "a"}, {"c"}]),
    "set of models": Documented(set[Badge], {Badge(label="b"), Badge(label="a")}),
    "set of dataclasses": Documented(set[Point], {Point(2, 0.5), Point(1, 0.5)}),
    "bytes in a dataclass": Documented(Attachment, Attachment(b"\x00\xff")),
    "large float": Documented(Any, 1e16),
    "bytes": Documented(bytes, b"\x00\xff\xfehello"),
    "literal": Documented(Literal["fast", "slow"], "fast"),
    "optional": Documented(int | None, None),
    "union": Documented(int | str, "text"),
    "discriminated union": Documented(Annotated[Dog | Cat, Field(discriminator="kind")], Dog()),
    "any": Documented(Any, {"when": date(2026, 1, 2)}, comes_out={"when": "2026-01-02"}),
}

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "values.json").read_text("utf-8"))


def test_every_documented_type_is_pinned() -> None:
    assert GOLDEN.keys() == VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_value_is_encoded_in_its_pinned_form(name: str) -> None:
    codec = codec_for(VALUES[name].annotation)

    stored = codec.dump(codec.validate(VALUES[name].value))

    assert canonical_json(stored) == canonical_json(GOLDEN[name])
    assert find_json_fault(stored) is None


@pytest.mark.parametrize("name", VALUES)
def test_pinned_form_is_decoded_to_the_typed_value(name: str) -> None:
    documented = VALUES[name]
    expected = documented.value if documented.comes_out is ... else documented.comes_out

    found = codec_for(documented.annotation).load(GOLDEN[name])

    assert found == expected
    assert type(found) is type(expected)
