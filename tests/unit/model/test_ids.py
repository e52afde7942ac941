"""Ids increase within a process and never repeat, even with threads and forks; parsing and short forms."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

import pytest
from uuid_utils.compat import uuid7

from horsies.model.task import parse_id, short_form


def test_ids_are_uuid7_and_increase() -> None:
    ids = [uuid7() for _ in range(10_000)]
    assert ids == sorted(set(ids))
    assert {(id_.version, id_.variant) for id_ in ids} == {(7, RFC_4122)}


def test_threads_share_one_increasing_sequence() -> None:
    def generate(_: int) -> list[UUID]:
        return [uuid7() for _ in range(2_000)]

    with ThreadPoolExecutor(4) as pool:
        series = list(pool.map(generate, range(4)))
    assert all(ids == sorted(ids) for ids in series)
    assert len({id_ for ids in series for id_ in ids}) == 8_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_generates_other_ids() -> None:
    uuid7()
    reading, writing = os.pipe()
    child = os.fork()
    ids = {uuid7().bytes for _ in range(50)}
    if child == 0:
        os.write(writing, b"".join(ids))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    child_ids = {data[start : start + 16] for start in range(0, len(data), 16)}
    assert len(child_ids) == len(ids) == 50
    assert not child_ids & ids


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
