"""Canonical JSON and the values that cannot be stored."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.codec.canonical_json import (
    MAX_DEPTH,
    canonical_json,
    find_json_fault,
    needs_full_check,
    parse_json,
    replace_unstorable,
)

storable_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable_text, inner, max_size=4),
    max_leaves=10,
)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


@given(value=json_values)
def test_json_values_round_trip(value: Any) -> None:
    assert parse_json(canonical_json(value)) == value
    assert find_json_fault(value) is None


@given(value=st.dictionaries(storable_text, json_values, max_size=4))
def test_canonical_json_ignores_the_order_of_keys(value: dict[str, Any]) -> None:
    assert canonical_json(value) == canonical_json(dict(reversed(value.items())))


def test_canonical_json_is_compact_sorted_and_unescaped() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null]}'


@given(value=st.floats(min_value=1e15, allow_infinity=False))
def test_large_floats_have_no_exponent(value: float) -> None:
    text = canonical_json([value, -value, {"1e+16": '\\"1e+16'}])

    assert re.fullmatch(r'\[\d+\.\d+,-\d+\.\d+,\{"1e\+16":"\\\\\\"1e\+16"\}\]', text)
    assert parse_json(text) == [value, -value, {"1e+16": '\\"1e+16'}]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (math.nan, "NaN"),
        (10**4300, "4300 digits"),
        ([1, {"a": -math.inf}], "NaN or Infinity"),
        ("a\0b", "NUL"),
        ({"a\0b": 1}, "NUL"),
        (["\ud800"], "lone surrogate"),
        ({1: "a"}, "key that is not a string"),
        ({None: "a"}, "key that is not a string"),
        ((1, 2), "of type tuple"),
        ([{1}], "of type set"),
        (b"", "of type bytes"),
        (object(), "of type object"),
        (nested(MAX_DEPTH + 1), "more than 256 levels"),
        (nested(100_000), "more than 256 levels"),
        (cyclic(), "contains itself"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isprintable() else type(value).__name__,
)
def test_unstorable_values_are_found(value: object, fault: str) -> None:
    assert fault in str(find_json_fault(value))


def test_256_levels_are_allowed() -> None:
    assert find_json_fault(nested(MAX_DEPTH)) is None


@pytest.mark.parametrize("value", ["a\0b", {"a\0": 1}, ["\udfff"], nested(MAX_DEPTH + 1), [nested(5)] * 500])
def test_needs_full_check_covers_every_encodable_fault(value: Any) -> None:
    assert needs_full_check(canonical_json(value))


@given(value=st.lists(json_values, max_size=3))
def test_text_without_full_check_has_no_fault(value: list[Any]) -> None:
    text = canonical_json(value)
    assert needs_full_check(text) or find_json_fault(json.loads(text)) is None


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000])
def test_invalid_json_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the class is the promise
        parse_json(text)


def test_replacement_changes_only_unstorable_characters() -> None:
    assert replace_unstorable("a\0b\ud800c 🐎 ü") == "a\ufffdb\ufffdc 🐎 ü"


@given(text=st.text())
def test_replaced_text_is_always_storable(text: str) -> None:
    assert find_json_fault(replace_unstorable(text)) is None
