from __future__ import annotations

import unicodedata
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from horsies_tui.format import fit, format_age, format_count, format_elapsed, format_short_age, safe, sanitize


@given(st.text(), st.integers(min_value=0, max_value=60), st.booleans())
def test_fit_returns_exact_width_without_control_characters(text: str, cells: int, right: bool) -> None:
    shown = fit(text, cells, right=right)
    assert cell_len(shown) == cells
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in shown)


@pytest.mark.parametrize("evil", ["\x1b]52;c;aGk=\x07", "\x1b[2J", "\x9b31m", "\x7f", "\u202eabc", "a\u200bb\ufeff"])
def test_escape_sequences_and_bidi_marks_are_replaced(evil: str) -> None:
    shown = sanitize(f"before {evil} after")
    assert not set(shown) & set("\x1b\x07\x9b\x7f\u202e\u200b\ufeff")
    assert shown.startswith("before ")
    assert shown.endswith(" after")


def test_line_breaks_and_tabs_become_visible() -> None:
    assert sanitize("a\r\nb\nc\td") == "a⏎b⏎c→d"


def test_brackets_are_not_markup() -> None:
    assert safe("ValueError: list[/foo] [bold]x").plain == "ValueError: list[/foo] [bold]x"


def test_truncated_text_ends_with_ellipsis() -> None:
    assert fit("mail.send_to_everyone", 10) == "mail.send…"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (41, "41s"),
        (680, "11m20s"),
        (7500, "2h05m"),
        (273_600, "3d04h"),
        (8_640_000, "100d"),
        (-5, "0s"),
    ],
)
def test_age_has_two_units(seconds: int, shown: str) -> None:
    assert format_age(timedelta(seconds=seconds)) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(59, "59s"), (680, "11m"), (7500, "2h"), (273_600, "3d")])
def test_short_age_has_one_unit(seconds: int, shown: str) -> None:
    assert format_short_age(timedelta(seconds=seconds)) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(0.012, "12ms"), (0.4, "0.4s"), (9.94, "9.9s"), (61, "1m01s")])
def test_short_durations_are_more_precise(seconds: float, shown: str) -> None:
    assert format_elapsed(timedelta(seconds=seconds)) == shown


def test_estimated_and_capped_counts_are_marked() -> None:
    assert format_count(1204) == "1,204"
    assert format_count(10_000, is_capped=True) == "10,000+"
    assert format_count(1_600_000, is_estimate=True) == "~1.6M"
