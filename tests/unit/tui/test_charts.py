from __future__ import annotations

import pytest

from horsies_tui.theme import area_chart, bar, downsample, sparkline


def test_sparkline_has_one_character_per_value() -> None:
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"


def test_sparkline_can_have_a_fixed_top() -> None:
    assert sparkline([0, 50, 100, 250], top=100) == "▁▅██"


def test_area_fills_each_column_up_to_its_value() -> None:
    assert area_chart([0, 1, 8, 16], 2) == ["   █", " ▁██"]


def test_small_values_stay_visible_in_an_area() -> None:
    assert area_chart([1, 1000], 2) == [" █", "▁█"]


@pytest.mark.parametrize(
    ("values", "width", "kept"),
    [([], 3, []), ([1, 2], 3, [1, 2]), ([1, 9, 2, 3, 4, 5], 3, [9, 3, 5]), ([1, 2, 3, 4, 7], 2, [2, 7])],
)
def test_downsampling_keeps_the_maximum_of_each_range(values: list[float], width: int, kept: list[float]) -> None:
    assert downsample(values, width) == kept


@pytest.mark.parametrize(("part", "whole", "drawn"), [(0, 4, "┄┄┄┄"), (3, 4, "━━━┄"), (9, 4, "━━━━"), (1, 0, "┄┄┄┄")])
def test_bar_shows_the_used_share(part: int, whole: int, drawn: str) -> None:
    assert bar(part, whole, 4) == drawn
