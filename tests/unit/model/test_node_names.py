"""What a node may be called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.workflow.plan import LONGEST_NODE_ID, NodeKey, default_node_id, find_cycle, is_node_id, slugify


def test_a_slug_has_underscores_for_spaces_and_nothing_that_no_id_may_hold() -> None:
    assert slugify("Send mail (twice): ü.v1-a_b") == "Send_mail_twice:_.v1-a_b"


@given(st.text(max_size=300), st.integers(0, 10_000))
def test_every_name_makes_an_id(name: str, index: int) -> None:
    assert is_node_id(default_node_id(name, index))


@pytest.mark.parametrize("wrong", ["", "a b", "ä", "a/b", "x" * (LONGEST_NODE_ID + 1), "a\n", None, 1])
def test_not_everything_is_an_id(wrong: object) -> None:
    assert not is_node_id(wrong)


def test_keys_are_equal_by_their_id() -> None:
    assert NodeKey("a") == NodeKey("a").key() != NodeKey("b")


def test_a_cycle_is_shown_from_where_it_begins() -> None:
    edges = {1: [2], 2: [3], 3: [4, 2], 4: list[int]()}
    assert find_cycle(edges, edges.__getitem__) == [2, 3, 2]


def test_what_meets_again_without_leading_back_is_no_cycle() -> None:
    edges = {1: [2, 3], 2: [4], 3: [4], 4: list[int]()}
    assert find_cycle(edges, edges.__getitem__) is None


def test_a_long_chain_is_walked_to_its_end() -> None:
    assert find_cycle(range(5000), lambda each: [each + 1] if each < 4999 else [0]) == [*range(5000), 0]
