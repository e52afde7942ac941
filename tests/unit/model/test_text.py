from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.text import first_line, sanitize_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢字 🐎", "plain é 漢字 🐎"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("line\nbreak\ttab\r", "line\\nbreak\\ttab\\r"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("left\u202eright\u2066\u200b", "leftright"),
        ("half \ud800", "half \\ud800"),
        ("[bold]markup[/]", "[bold]markup[/]"),
    ],
)
def test_text_is_shown_harmless(text: str, shown: str) -> None:
    assert sanitize_text(text) == shown


@pytest.mark.parametrize(("limit", "shown"), [(10, "abcdef"), (6, "abcdef"), (5, "abcd…"), (1, "…")])
def test_long_text_is_cut_to_its_limit(limit: int, shown: str) -> None:
    assert sanitize_text("abcdef", limit=limit) == shown


def test_text_hidden_behind_invisible_characters_is_said_to_be_cut() -> None:
    assert sanitize_text("\u200b" * 100 + "abc", limit=5) == "…"


def test_a_megabyte_is_cut_without_being_read_whole() -> None:
    assert len(sanitize_text("x" * 1_000_000, limit=80)) == 80


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\n  no such order\nat 5", "no such order"),
        ("a\x1bb\r\nc", "a\\x1bb"),
        (" \n ", ""),
        ("abcdefghijklmnop", "abcdefghijklm…"),
    ],
)
def test_of_many_lines_the_first_with_anything_in_it_is_shown(text: str, shown: str) -> None:
    assert first_line(text, limit=14) == shown


@given(st.text(st.characters()), st.integers(1, 40))
def test_nothing_unprintable_passes_and_the_limit_holds(text: str, limit: int) -> None:
    shown = sanitize_text(text, limit=limit)
    assert len(shown) <= limit
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)
    shown.encode()
