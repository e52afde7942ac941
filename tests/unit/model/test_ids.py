from __future__ import annotations

from collections.abc import Callable
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.task import RANDOM_BYTES, format_id, format_ids, next_id_value, parse_id, short_form

milliseconds = st.integers(0, 2**48 - 2)
random_tails = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


def fixed_bytes(random_bytes: bytes) -> Callable[[int], bytes]:
    return lambda count: random_bytes[:count]


@given(time_ms=milliseconds, random_bytes=random_tails)
def test_id_is_a_uuid7_with_its_millisecond(time_ms: int, random_bytes: bytes) -> None:
    new_id = UUID(format_id(next_id_value(time_ms, fixed_bytes(random_bytes))))

    assert (new_id.version, new_id.variant) == (7, RFC_4122)
    assert new_id.int >> 80 == time_ms


@given(time_ms=milliseconds, random_bytes=random_tails)
def test_id_contains_all_74_random_bits(time_ms: int, random_bytes: bytes) -> None:
    new_id = UUID(format_id(next_id_value(time_ms, fixed_bytes(random_bytes)))).int

    tail = (new_id >> 64 & 0xFFF) << 62 | new_id & ((1 << 62) - 1)
    assert tail == int.from_bytes(random_bytes, "big") & ((1 << 74) - 1)


@given(draws=st.lists(st.tuples(milliseconds, random_tails), min_size=2))
def test_ids_increase_whatever_the_clock_does(draws: list[tuple[int, bytes]]) -> None:
    last, ids = None, list[str]()
    for time_ms, random_bytes in draws:
        last = next_id_value(time_ms, fixed_bytes(random_bytes), last)
        ids.append(format_id(last))

    assert ids == sorted(set(ids))
    assert all((UUID(text).version, UUID(text).variant) == (7, RFC_4122) for text in ids)


def test_overflow_carries_into_the_next_millisecond() -> None:
    last_in_ms = next_id_value(5, fixed_bytes(b"\xff" * RANDOM_BYTES))

    assert next_id_value(5, fixed_bytes(b"\0" * RANDOM_BYTES), last_in_ms) == next_id_value(
        6, fixed_bytes(b"\0" * RANDOM_BYTES)
    )


def test_layout_of_a_known_id() -> None:
    assert (
        format_id(next_id_value(0x018F00000001, fixed_bytes(bytes(range(10)))))
        == "018f0000-0001-7004-8203-040506070809"
    )


@pytest.mark.parametrize("tail", [bytes(10), b"\xff" * 10, b"\x00" * 4 + b"\xff" * 6], ids=["low", "full", "carry"])
def test_format_ids_equals_formatting_one_by_one(tail: bytes) -> None:
    values = [next_id_value(1000, fixed_bytes(tail))]
    for _ in range(4):
        values.append(next_id_value(1000, fixed_bytes(tail), values[-1]))
    assert format_ids(values[0], 5) == [format_id(value) for value in values]
    assert format_ids(values[0], 0) == []


def test_parse_id_returns_lower_case() -> None:
    assert parse_id("018F0000-0001-7004-8203-040506070809") == "018f0000-0001-7004-8203-040506070809"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no id",
        "018f0000000170048203040506070809",
        "{018f0000-0001-7004-8203-040506070809}",
        "018f0000-0001-7004-8203-040506070809\n",
        "018f0000-0001-7004-8203-04050607080g",
        "x" * 1_000_000,
    ],
)
def test_invalid_id_is_rejected_and_quoted_briefly(text: str) -> None:
    with pytest.raises(ValueError, match=r"^invalid id .*: expected a UUID such as") as caught:
        parse_id(text)

    assert len(str(caught.value)) < 150


def test_short_form_is_the_last_eight_digits() -> None:
    assert short_form("018f0000-0001-7004-8203-040506070809") == "06070809"
    assert short_form(UUID("018f0000-0001-7004-8203-040506070809")) == "06070809"
