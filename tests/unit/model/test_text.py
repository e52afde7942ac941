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
        ("left\u202eright\u2066\u200b", r"left\u202eright\u2066\u200b"),
        ("soft\xadtag\U000e0041", r"soft\xadtag\U000e0041"),
        ("half \ud800", "half \\ud800"),
        ("[bold]markup[/]", "[bold]markup[/]"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert sanitize_text(text) == shown


@pytest.mark.parametrize(("limit", "shown"), [(10, "abcdef"), (6, "abcdef"), (5, "abcd…"), (1, "…")])
def test_long_text_is_truncated(limit: int, shown: str) -> None:
    assert sanitize_text("abcdef", limit=limit) == shown


def test_very_long_text_is_truncated() -> None:
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
def test_first_line_skips_blank_lines(text: str, shown: str) -> None:
    assert first_line(text, limit=14) == shown


@given(st.text(st.characters()), st.integers(1, 40))
def test_output_is_printable_and_within_the_limit(text: str, limit: int) -> None:
    shown = sanitize_text(text, limit=limit)
    assert len(shown) <= limit
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)
    shown.encode()
