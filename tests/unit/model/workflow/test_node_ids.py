"""Node ids, node keys and cycle detection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.workflow.plan import LONGEST_NODE_ID, NodeKey, default_node_id, find_cycle, is_node_id, slugify


def test_slugify_replaces_spaces_and_drops_invalid_characters() -> None:
    assert slugify("Send mail (twice): ü.v1-a_b") == "Send_mail_twice:_.v1-a_b"


@pytest.mark.parametrize("name", ["日本", "", "ü"])
def test_slug_is_never_empty(name: str) -> None:
    assert slugify(name) == "node"
    assert default_node_id(name, 2) == "node:2"


@given(st.text(max_size=300), st.integers(0, 10_000))
def test_default_node_id_is_valid_for_every_name(name: str, index: int) -> None:
    assert is_node_id(default_node_id(name, index))


@pytest.mark.parametrize("wrong", ["", "a b", "ä", "a/b", "x" * (LONGEST_NODE_ID + 1), "a\n", None, 1])
def test_invalid_node_ids(wrong: object) -> None:
    assert not is_node_id(wrong)


def test_node_keys_are_equal_by_id() -> None:
    assert NodeKey("a") == NodeKey("a").key() != NodeKey("b")


def test_cycle_starts_and_ends_with_the_same_node() -> None:
    edges = {1: [2], 2: [3], 3: [4, 2], 4: list[int]()}
    assert find_cycle(edges, edges.__getitem__) == [2, 3, 2]


def test_diamond_is_not_a_cycle() -> None:
    edges = {1: [2, 3], 2: [4], 3: [4], 4: list[int]()}
    assert find_cycle(edges, edges.__getitem__) is None


def test_cycle_in_a_long_chain_is_found() -> None:
    assert find_cycle(range(5000), lambda node: [node + 1] if node < 4999 else [0]) == [*range(5000), 0]
