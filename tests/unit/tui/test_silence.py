"""A sweep that finds nothing says what it may find soon."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from horsies.model.recovery.options import SweepOptions
from horsies_ops.reads.verdicts import Silent
from horsies_tui.format import clock
from horsies_tui.silence import sweep_or_silence
from tests.support.fleet_values import NOON, a_sweep, swept

if TYPE_CHECKING:
    from horsies.recovery.report import SweepReport
    from horsies_tui.source import Source

SILENT = Silent(count=2, longest=timedelta(minutes=2, seconds=19), stale_at=NOON)


@dataclass(frozen=True)
class Quiet:
    """A source in which a sweep finds this, and two tasks are silent."""

    found: SweepReport

    async def stale_candidates(self, options: SweepOptions) -> SweepReport:
        del options
        return self.found

    async def not_yet_stale(self, options: SweepOptions) -> Silent:
        del options
        return SILENT


async def _warnings(found: SweepReport) -> tuple[str, ...]:
    return (await sweep_or_silence(cast("Source", Quiet(found)), SweepOptions())).warnings


async def test_where_nothing_is_stale_the_silent_are_counted_and_it_is_said_from_when_they_will_be() -> None:
    assert await _warnings(a_sweep()) == (f"2 tasks silent for 2m19s, stale from {clock(NOON)}",)


async def test_where_something_is_stale_that_alone_is_told() -> None:
    assert not any("silent for" in each for each in await _warnings(a_sweep(swept())))
