from __future__ import annotations

from collections.abc import Callable
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.task import RANDOM_BYTES, format_id, format_ids, next_id_value, parse_id, short_form

milliseconds = st.integers(0, 2**48 - 2)
chance = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


def drawing(random_bytes: bytes) -> Callable[[int], bytes]:
    return lambda count: random_bytes[:count]


@given(time_ms=milliseconds, random_bytes=chance)
def test_an_id_is_a_uuid_7_of_its_millisecond(time_ms: int, random_bytes: bytes) -> None:
    minted = UUID(format_id(next_id_value(time_ms, drawing(random_bytes))))

    assert (minted.version, minted.variant) == (7, RFC_4122)
    assert minted.int >> 80 == time_ms


@given(time_ms=milliseconds, random_bytes=chance)
def test_all_of_the_chance_that_has_room_is_in_the_id(time_ms: int, random_bytes: bytes) -> None:
    minted = UUID(format_id(next_id_value(time_ms, drawing(random_bytes)))).int

    tail = (minted >> 64 & 0xFFF) << 62 | minted & ((1 << 62) - 1)
    assert tail == int.from_bytes(random_bytes, "big") & ((1 << 74) - 1)


@given(draws=st.lists(st.tuples(milliseconds, chance), min_size=2))
def test_ids_rise_whatever_the_clock_does(draws: list[tuple[int, bytes]]) -> None:
    last, ids = None, list[str]()
    for time_ms, random_bytes in draws:
        last = next_id_value(time_ms, drawing(random_bytes), last)
        ids.append(format_id(last))

    assert ids == sorted(set(ids))
    assert all((UUID(each).version, UUID(each).variant) == (7, RFC_4122) for each in ids)


def test_a_full_tail_borrows_the_next_millisecond() -> None:
    last_of_its_ms = next_id_value(5, drawing(b"\xff" * RANDOM_BYTES))

    assert next_id_value(5, drawing(b"\0" * RANDOM_BYTES), last_of_its_ms) == next_id_value(
        6, drawing(b"\0" * RANDOM_BYTES)
    )


def test_the_known_layout() -> None:
    assert format_id(next_id_value(0x018F00000001, drawing(bytes(range(10))))) == "018f0000-0001-7004-8203-040506070809"


@pytest.mark.parametrize("tail", [bytes(10), b"\xff" * 10, b"\x00" * 4 + b"\xff" * 6], ids=["low", "full", "carry"])
def test_ids_in_a_row_are_what_one_by_one_would_give(tail: bytes) -> None:
    orders = [next_id_value(1000, drawing(tail))]
    for _ in range(4):
        orders.append(next_id_value(1000, drawing(tail), orders[-1]))
    assert format_ids(orders[0], 5) == [format_id(each) for each in orders]
    assert format_ids(orders[0], 0) == []


def test_an_id_is_held_in_lower_case() -> None:
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
def test_a_string_that_is_no_uuid_is_refused_and_not_echoed_at_length(text: str) -> None:
    with pytest.raises(ValueError, match=r"^invalid id .*: expected a UUID such as") as caught:
        parse_id(text)

    assert len(str(caught.value)) < 150


def test_the_short_form_is_the_last_eight_digits() -> None:
    assert short_form("018f0000-0001-7004-8203-040506070809") == "06070809"
    assert short_form(UUID("018f0000-0001-7004-8203-040506070809")) == "06070809"
