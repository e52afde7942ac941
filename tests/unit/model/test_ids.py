from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.ids import RANDOM_BYTES, mint, parse_id, series, short_form

milliseconds = st.integers(0, 2**48 - 2)
chance = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


@given(time_ms=milliseconds, random_bytes=chance)
def test_an_id_is_a_uuid_7_of_its_millisecond(time_ms: int, random_bytes: bytes) -> None:
    minted = mint(time_ms, random_bytes)

    assert (minted.version, minted.variant) == (7, RFC_4122)
    assert minted.int >> 80 == time_ms


@given(draws=st.lists(st.tuples(milliseconds, chance), min_size=2))
def test_ids_rise_whatever_the_clock_does(draws: list[tuple[int, bytes]]) -> None:
    ids: list[UUID] = []
    for time_ms, random_bytes in draws:
        ids.append(mint(time_ms, random_bytes, ids[-1] if ids else None))

    assert ids == sorted(set(ids))
    assert [str(each) for each in ids] == sorted(str(each) for each in ids)
    assert all((each.version, each.variant) == (7, RFC_4122) for each in ids)


def test_a_full_tail_borrows_the_next_millisecond() -> None:
    last_of_its_ms = mint(5, b"\xff" * RANDOM_BYTES)

    minted = mint(5, b"\0" * RANDOM_BYTES, last_of_its_ms)

    assert minted == mint(6, b"\0" * RANDOM_BYTES)


def test_the_known_layout() -> None:
    assert str(mint(0x018F00000001, bytes(range(10)))) == "018f0000-0001-7004-8203-040506070809"


@pytest.mark.parametrize("tail", [bytes(10), b"\xff" * 10, b"\x00" * 4 + b"\xff" * 6], ids=["low", "full", "carry"])
def test_a_series_is_what_minting_one_by_one_would_give(tail: bytes) -> None:
    minted = [mint(1000, tail)]
    for _ in range(4):
        minted.append(mint(1000, tail, minted[-1]))
    assert series(minted[0], 5) == [str(each) for each in minted]
    assert series(minted[0], 0) == []


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
    with pytest.raises(ValueError, match="is no id: expected a UUID such as") as caught:
        parse_id(text)

    assert len(str(caught.value)) < 150


def test_the_short_form_is_the_last_eight_digits() -> None:
    assert short_form("018f0000-0001-7004-8203-040506070809") == "06070809"
    assert short_form(UUID("018f0000-0001-7004-8203-040506070809")) == "06070809"
