from __future__ import annotations

import pytest

from horsies_tui.theme import UNICODE, bar, downsample, sparkline


def test_a_chart_has_a_character_for_each_value_and_the_highest_is_full() -> None:
    assert sparkline([0, 1, 2, 4], UNICODE) == "▁▃▅█"


def test_a_chart_may_have_a_top_that_nothing_reaches() -> None:
    assert sparkline([0, 50, 100, 250], UNICODE, top=100) == "▁▅██"


@pytest.mark.parametrize(
    ("values", "most", "kept"),
    [([], 3, []), ([1, 2], 3, [1, 2]), ([1, 9, 2, 3, 4, 5], 3, [9, 3, 5]), ([1, 2, 3, 4, 7], 2, [2, 7])],
)
def test_of_many_values_the_highest_of_each_stretch_is_kept(values: list[float], most: int, kept: list[float]) -> None:
    assert downsample(values, most) == kept


@pytest.mark.parametrize(("part", "whole", "drawn"), [(0, 4, "▒▒▒▒"), (3, 4, "███▒"), (9, 4, "████"), (1, 0, "▒▒▒▒")])
def test_a_bar_shows_how_much_is_taken(part: int, whole: int, drawn: str) -> None:
    assert bar(part, whole, 4, UNICODE) == drawn
