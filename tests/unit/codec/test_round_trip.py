"""Values are decoded equal to what was sent, or rejected before they are stored."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    TypeAdapter,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from horsies.codec.canonical_json import PayloadError, canonical_json, parse_json
from horsies.codec.values import codec_for

ZONE_WITH_SECONDS = timezone(timedelta(hours=5, seconds=7))
NOT_UTF8 = b"\xff\x00"


class Number(enum.Enum):
    ONE = 1
    TWO = "2"


class Word(enum.StrEnum):
    YES = "yes"


class Spot(BaseModel, frozen=True):
    x: int
    marks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pair:
    left: int
    right: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Named:
    name: str


@dataclass(frozen=True)
class Blob:
    body: bytes


class Parcel(TypedDict):
    body: bytes


class Utf8(BaseModel):
    body: bytes


class Base64(Utf8):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class HexOnly(Utf8):
    model_config = ConfigDict(ser_json_bytes="hex")


class AliasOfOtherField(BaseModel):
    name: str = Field(alias="title")
    title: str | None = None


class Swapped(BaseModel):
    a: int = Field(validation_alias="b", serialization_alias="b")
    b: int = Field(validation_alias=AliasChoices("other", "a"))


class Nested(BaseModel):
    first: int = Field(validation_alias=AliasPath("items", 0))
    items: list[int] = []


@pydantic_dataclass
class SwappedDataclass:
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class WithAlias(BaseModel):
    user_name: str = Field("unknown", alias="userName")


class WithExcludedField(BaseModel):
    shown: int
    hidden: int = Field(default=0, exclude=True)


class WithExtras(BaseModel):
    model_config = ConfigDict(extra="allow")


class WithPrivateAttribute(BaseModel):
    at: datetime
    _lock: object = PrivateAttr(default_factory=object)


class SchemaWords(BaseModel):
    """Fields with the names of keys in pydantic schemas."""

    metadata: dict[Any, int]
    default: set[str]
    type: int = Field(alias="expected")
    expected: int = 0
    fields: list[str] = []
    choices: str = ""
    keys_schema: str = ""


class Base(BaseModel):
    at: datetime


class Derived(Base):
    more: int = 0


@dataclass(eq=False)
class Identity:
    by_day: dict[date, int] = field(default_factory=dict[date, int])


class Roots(RootModel[set[int]]):
    pass


def encoded(annotation: Any, value: object) -> Any:
    codec = codec_for(annotation)
    return codec.dump(codec.validate(value))


def decoded(annotation: Any, value: object) -> Any:
    return codec_for(annotation).load(parse_json(canonical_json(encoded(annotation, value))))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (dict[int, str], {1: "a", -2: "b"}),
        (dict[int, Any], {1: [2.5]}),
        (dict[date, list[int]], {date(2026, 1, 2): [1]}),
        (dict[Decimal, int], {Decimal("1.50"): 1}),
        (dict[Word, int], {Word.YES: 1}),
        (dict[UUID, dict[str, int]], {UUID(int=7): {"a": 1}}),
        (set[Spot], {Spot(x=2), Spot(x=1, marks=frozenset({"b", "a"}))}),
        (frozenset[Pair], frozenset({Pair(2, frozenset({9, 1})), Pair(1)})),
        (Roots, Roots({3, 1, 2})),
        (Blob, Blob(NOT_UTF8)),
        (list[Blob], [Blob(NOT_UTF8)]),
        (Parcel, {"body": NOT_UTF8}),
        (Base64, Base64(body=NOT_UTF8)),
        (Utf8, Utf8(body=b"text")),
        (AliasOfOtherField, AliasOfOtherField.model_validate({"title": "T"})),
        (Nested, Nested.model_validate({"items": [1, 2]})),
        (WithExcludedField, WithExcludedField(shown=1)),
        (Any, 1e16),
        (list[int | float], [1e22, -1e300, 10**22, 1.0]),
        (Any, {"e+": ['"1e+16', 1e16]}),
        (datetime, datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
        (re.Pattern[str], re.compile("a+")),
        (int, 10**4299),
    ],
)
def test_accepted_values_round_trip(annotation: Any, value: object) -> None:
    found = decoded(annotation, value)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (dict, {1: "a"}, "key"),
        (dict[Any, Any], {1: "a", "1": "b"}, "key"),
        (dict[int | str, str], {1: "a", "1": "b"}, "key"),
        (dict[str | None, int], {None: 1}, "key"),
        (Any, [{"deep": {None: 1}}], "key"),
        (WithExtras, WithExtras.model_validate({"data": {2: 1}}), "key"),
        (dict[int, Any], {1: {2: 3}}, "key"),
        (dict[tuple[int, int], str], {(1, 2): "a"}, "could not be read back"),
        (dict[Number, int], {Number.ONE: 1}, "could not be read back"),
        (dict[datetime, int], {datetime(2026, 1, 1, tzinfo=ZONE_WITH_SECONDS): 1}, "key"),
        (Utf8, Utf8(body=NOT_UTF8), "base64"),
        (HexOnly, HexOnly(body=b"text"), "body: contains a value of type bytes"),
        (str | bytes, NOT_UTF8, "contains a value of type bytes that would be read back as str"),
        (datetime, datetime(2026, 1, 1, tzinfo=ZONE_WITH_SECONDS), "contains a value of type datetime"),
        (Base, Base(at=datetime(2026, 1, 1, tzinfo=ZONE_WITH_SECONDS)), "at: contains a value of type datetime"),
        (time, time(1, 2, tzinfo=ZONE_WITH_SECONDS), "contains a value of type time"),
        (WithExcludedField, WithExcludedField(shown=1, hidden=2), "hidden: contains a value of type int"),
        (Annotated[int, AfterValidator(lambda number: number + 1)], 1, "contains a value of type int"),
    ],
)
def test_values_that_would_change_are_rejected(annotation: Any, value: object, reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encoded(annotation, value)

    assert reason in caught.value.reason


def test_clashing_aliases_are_ignored_when_decoding() -> None:
    renamed = codec_for(AliasOfOtherField).load({"name": "N", "title": "T"})
    assert isinstance(renamed, AliasOfOtherField)
    assert (renamed.name, renamed.title) == ("N", "T")


def test_fields_with_swapped_aliases_round_trip() -> None:
    swapped = Swapped.model_validate({"b": 1, "a": 2})
    assert (swapped.a, swapped.b) == (1, 2)
    assert decoded(Swapped, swapped) == swapped
    assert decoded(list[SwappedDataclass], [SwappedDataclass(b=1, a=2)]) == [SwappedDataclass(b=1, a=2)]


def test_fields_may_be_named_like_schema_keys() -> None:
    value = SchemaWords.model_construct(metadata={"a": 1}, default=set("fedcba"), expected=5)

    assert encoded(SchemaWords, value)["default"] == list("abcdef")
    assert decoded(SchemaWords, value) == value
    with pytest.raises(PayloadError, match="metadata: has a key"):
        encoded(SchemaWords, {"metadata": {1: 1}, "default": [], "expected": 1})


def test_dataclasses_and_models_give_equal_errors() -> None:
    with pytest.raises(PayloadError, match="name: is missing"):
        encoded(Named, {})


def test_aliases_are_accepted_when_decoding() -> None:
    assert encoded(WithAlias, WithAlias.model_validate({"userName": "ada"})) == {"user_name": "ada"}
    assert codec_for(WithAlias).load({"user_name": "ada"}) == codec_for(WithAlias).load({"userName": "ada"})


def test_sender_may_use_declared_aliases() -> None:
    assert encoded(Swapped, {"b": 1, "a": 2}) == {"a": 1, "b": 2}


def test_values_typed_any_are_decoded_as_json() -> None:
    value = {"spot": Spot(x=1), "pair": (1, {2}), "day": date(2026, 1, 2), "bytes": NOT_UTF8}

    assert decoded(Any, value) == {
        "spot": {"x": 1, "marks": []},
        "pair": [1, [2]],
        "day": "2026-01-02",
        "bytes": "_wA=",
    }


def test_nested_sets_are_encoded_in_a_fixed_order() -> None:
    assert encoded(set[Pair], {Pair(2), Pair(1, frozenset({2, 1}))}) == [
        {"left": 1, "right": [1, 2]},
        {"left": 2, "right": []},
    ]
    assert encoded(WithExtras, WithExtras.model_validate({"tags": set("fedcba")})) == {"tags": list("abcdef")}
    assert encoded(Roots, {3, 1, 2}) == [1, 2, 3]


def test_private_and_computed_attributes_may_be_lost() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)

    assert encoded(WithPrivateAttribute, WithPrivateAttribute(at=at)) == {"at": "2026-01-02T00:00:00Z"}
    assert encoded(Base, Derived(at=at, more=3)) == {"at": "2026-01-02T00:00:00Z"}
    assert encoded(Identity, Identity({date(2026, 1, 2): 1})) == {"by_day": {"2026-01-02": 1}}
    assert encoded(list[Identity], [Identity({date(2026, 1, 2): 1})]) == [{"by_day": {"2026-01-02": 1}}]


def test_errors_never_show_keys_of_user_data() -> None:
    with pytest.raises(PayloadError) as caught:
        encoded(WithExtras, WithExtras.model_validate({"private": {2: 1}}))

    assert "private" not in caught.value.reason


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(
    value=json_values, annotation=st.sampled_from([Any, dict[str, Any], list[Any], dict[str, Any] | list[Any] | None])
)
def test_plain_json_is_stored_as_pydantic_would(value: Any, annotation: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    try:
        validated = adapter.validate_python(value)
    except ValueError:
        return
    assert codec_for(annotation).dump(validated) == adapter.dump_python(validated, mode="json")
