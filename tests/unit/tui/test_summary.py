"""The chart and the counters of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from horsies_ops.reads.overview import Throughput
from horsies_ops.reads.search import Count
from horsies_tui.fleet import BUCKET_COUNT
from horsies_tui.screens.summary import chart_lines, counter_line, load_activity
from tests.support.fake_system.source import FakeSource
from tests.support.tui import NOON, frozen_system

MINUTE = timedelta(minutes=1)


class _Source(FakeSource):
    """Tasks finished only in these minutes, counted back from now."""

    def __init__(self, *minutes_ago: int) -> None:
        super().__init__(frozen_system(20), read_only=True)
        self._minutes_ago = minutes_ago

    async def throughput(self, window: timedelta, buckets: int = 30) -> Throughput:
        made = await super().throughput(window, buckets)
        if window <= MINUTE:
            return made
        rows = [replace(bucket, done=0, failed=0) for bucket in made.buckets]
        for ago in self._minutes_ago:
            rows[-1 - ago] = replace(rows[-1 - ago], done=600, failed=2)
        return replace(made, buckets=tuple(rows))


@pytest.mark.parametrize(
    ("minutes_ago", "title"),
    [((0,), "Last 60 s "), ((2, 1), "Last 60 s "), ((9, 0), "Last 30 min "), ((), "Last 30 min ")],
)
async def test_chart_shows_seconds_in_the_first_minutes(minutes_ago: Sequence[int], title: str) -> None:
    activity = await load_activity(_Source(*minutes_ago))
    assert activity.title.startswith(title)


@pytest.mark.parametrize(("minutes_ago", "at_least"), [((0,), -1), ((5, 20), 4), ((), 29)])
async def test_idle_time_counts_from_the_last_finished_task(minutes_ago: Sequence[int], at_least: int) -> None:
    idle = (await load_activity(_Source(*minutes_ago))).idle_time(NOON)
    assert idle is not None
    assert at_least * MINUTE <= idle <= (at_least + 1) * MINUTE


async def test_chart_has_peak_axis_and_two_colours() -> None:
    source = _Source(9, 0)
    activity = await load_activity(source)
    drawn = chart_lines(activity, await source.overview(), (), rows=4, zoom=1, is_beside=False)
    assert activity.title == "Last 30 min   peak 600/min"
    assert drawn[0].plain.startswith("  600 ")
    assert "-30m" in drawn[5].plain
    done, failed = drawn[3], drawn[4]
    assert {str(span.style) for span in done.spans} >= {"$text-success"}
    assert {str(span.style) for span in failed.spans} == {"$text-error"}


async def test_chart_of_seconds_has_seconds_as_unit() -> None:
    source = _Source(0)
    activity = await load_activity(source)
    drawn = chart_lines(activity, await source.overview(), (), rows=3, zoom=2, is_beside=True)
    assert activity.title.endswith("/s")
    assert drawn[4].plain.index("now") == drawn[4].plain.index("-60s") + 2 * BUCKET_COUNT - len("now")


async def test_counters_are_coloured_and_zeroes_dim() -> None:
    overview = replace(await _Source().overview(), failed_last_day=Count(number=3), expired_last_day=Count(number=0))
    line = counter_line(overview, 200)
    styles = {line.plain[span.start : span.end]: str(span.style) for span in line.spans}
    assert styles["EXPIRED 24h 0"] == "dim"
    assert styles["3"] == "bold $text-error"


@pytest.mark.parametrize("width", [58, 78, 200])
async def test_counters_fit_on_one_line(width: int) -> None:
    line = counter_line(await _Source().overview(), width)
    assert line.cell_length <= width
    assert "FAILED 24h" in line.plain
