"""How long recoveries took: fault tests note their times, and `make chaos` has them printed as a table.

It fails where a p99 is above its bound, for that is what is promised.

Notes are kept where CHAOS_TIMES names a file, a line of JSON each; without one, tests only hold to their bounds.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from math import ceil
from pathlib import Path

from horsies_ops.cli.output import print_table, print_warning
from tests.support.ledger import Ledger
from tests.support.ledger_app import QUICK_RECOVERY

FILE = "CHAOS_TIMES"
BOUND_S = (QUICK_RECOVERY["running_stale_threshold_ms"] + QUICK_RECOVERY["check_interval_ms"]) / 1000
"""In which a worker promises to settle the work of one that fell silent; claimed and running tasks have the same."""

RECOVERED = """
SELECT extract(epoch FROM e.at - $2)::float AS seconds
  FROM horsies_events AS e
  JOIN horsies_workers AS w ON w.id::text = e.evidence->>'owner'
 WHERE e.kind = 'task_recovered' AND w.pid = $1 AND e.at > $2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long something took after a fault, and how long it may."""

    scenario: str
    what: str
    seconds: float
    bound_s: float


def note(scenario: str, what: str, *seconds: float, bound_s: float) -> None:
    """Keep these times for the table, where one is wanted."""
    if FILE in os.environ:
        timings = (Timing(scenario=scenario, what=what, seconds=each, bound_s=bound_s) for each in seconds)
        lines = "".join(json.dumps(asdict(each)) + "\n" for each in timings)
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:  # one write, which others' do not cut
            file.write(lines)


async def note_recoveries(ledger: Ledger, scenario: str, *, pid: int, since: datetime) -> None:
    """Note when each task of the worker with this pid was settled, counted from the moment of the fault."""
    rows = await ledger.fetch(RECOVERED, pid, since)
    note(scenario, "work of a silent worker settled", *(row["seconds"] for row in rows), bound_s=BOUND_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """All times of one kind in one scenario, the shortest first."""

    scenario: str
    what: str
    bound_s: float
    times: Sequence[float]

    @property
    def p99_s(self) -> float:
        return _percentile(self.times, 99)

    @property
    def is_in_time(self) -> bool:
        return self.p99_s <= self.bound_s


def series_of(timings: Iterable[Timing]) -> list[Series]:
    """Sorted by the number of the scenario."""
    grouped: defaultdict[tuple[str, str, float], list[float]] = defaultdict(list)
    for each in timings:
        grouped[each.scenario, each.what, each.bound_s].append(each.seconds)
    return [
        Series(scenario=scenario, what=what, bound_s=bound_s, times=sorted(times))
        for (scenario, what, bound_s), times in sorted(grouped.items(), key=_by_number)
    ]


def print_series(series: Sequence[Series]) -> None:
    """A line for each; `!` marks what took longer than it may."""
    columns = ("", "from the fault until", "times", "p50 s", "p99 s", "max s", "bound s")
    print_table(columns, [(each.scenario, each.what, *_figures(each)) for each in series], right=columns[2:])


def _figures(series: Series) -> tuple[str, ...]:
    measured = (_percentile(series.times, 50), series.p99_s, series.times[-1])
    marked = (f"{'!' if each > series.bound_s else ''}{each:.2f}" for each in measured)
    return str(len(series.times)), *marked, f"{series.bound_s:.2f}"


def _percentile(times: Sequence[float], percent: int) -> float:
    """By nearest rank: a time that was measured, not one between two."""
    return times[ceil(len(times) * percent / 100) - 1]


def _by_number(item: tuple[tuple[str, str, float], object]) -> tuple[int, str]:
    scenario, what, _ = item[0]
    return int(scenario[1:]), what


def main(kept: Path) -> int:
    """Print what was noted there; returns 1 where a p99 is above its bound."""
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    series = series_of(Timing(**json.loads(line)) for line in lines)
    print_series(series)
    late = [each for each in series if not each.is_in_time]
    for each in late:
        print_warning(f"{each.scenario}, {each.what}: p99 is {each.p99_s:.2f} s, the bound {each.bound_s:.2f} s")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
