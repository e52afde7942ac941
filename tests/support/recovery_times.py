"""Recovery times: fault tests record them, and `make chaos` prints a table and fails if a p99 exceeds its bound.

Times are appended as JSON lines to the file named by CHAOS_TIMES; without it nothing is recorded. The table and the
fault tests name these scenarios:

F1   a worker is killed while its children run tasks
F2   one of several workers is killed again and again under load
F3   a child is killed
F4   a child crashes in different ways
F5   a poison task kills its child every time
F6   a worker is suspended until another one has finished its task
F7   a worker is suspended until another one runs its task
F8   a child is stopped or holds the GIL
F11  a worker is disconnected for three thresholds
F14  a worker is stopped while it runs short and long tasks
F18  a worker dies at any write of a workflow run
F19  retention runs with very short windows and is killed
F20  the database is reached through PgBouncer
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
"""Promised time in which a worker recovers the claimed and running tasks of a silent one."""

RECOVERED = """
SELECT extract(epoch FROM e.at - $2)::float AS seconds
  FROM horsies_events AS e
  JOIN horsies_workers AS w ON w.id::text = e.evidence->>'owner'
 WHERE e.kind = 'task_recovered' AND w.pid = $1 AND e.at > $2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time something took after a fault, and its upper bound."""

    scenario: str
    what: str
    seconds: float
    bound_s: float


def record_times(scenario: str, what: str, *seconds: float, bound_s: float) -> None:
    """Record these times if CHAOS_TIMES is set."""
    if FILE in os.environ:
        timings = (Timing(scenario=scenario, what=what, seconds=time_s, bound_s=bound_s) for time_s in seconds)
        lines = "".join(json.dumps(asdict(timing)) + "\n" for timing in timings)
        # A single write, so that lines of parallel tests do not mix.
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(lines)


async def record_recovery_times(ledger: Ledger, scenario: str, *, pid: int, since: datetime) -> None:
    """Record when each task of the worker with this pid was recovered, counted from the fault."""
    rows = await ledger.fetch(RECOVERED, pid, since)
    record_times(scenario, "tasks of a silent worker recovered", *(row["seconds"] for row in rows), bound_s=BOUND_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """All times of one kind in one scenario, sorted."""

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
    """Group times by scenario and kind, sorted by scenario number."""
    grouped: defaultdict[tuple[str, str, float], list[float]] = defaultdict(list)
    for timing in timings:
        grouped[timing.scenario, timing.what, timing.bound_s].append(timing.seconds)
    return [
        Series(scenario=scenario, what=what, bound_s=bound_s, times=sorted(times))
        for (scenario, what, bound_s), times in sorted(grouped.items(), key=_by_number)
    ]


def print_series(series: Sequence[Series]) -> None:
    """Print a table with one line per series; `!` marks times above the bound."""
    columns = ("", "from the fault until", "times", "p50 s", "p99 s", "max s", "bound s")
    print_table(columns, [(row.scenario, row.what, *_figures(row)) for row in series], right=columns[2:])


def _figures(series: Series) -> tuple[str, ...]:
    measured = (_percentile(series.times, 50), series.p99_s, series.times[-1])
    marked = (f"{'!' if time_s > series.bound_s else ''}{time_s:.2f}" for time_s in measured)
    return str(len(series.times)), *marked, f"{series.bound_s:.2f}"


def _percentile(times: Sequence[float], percent: int) -> float:
    """Percentile by nearest rank, without interpolation."""
    return times[ceil(len(times) * percent / 100) - 1]


def _by_number(item: tuple[tuple[str, str, float], object]) -> tuple[int, str]:
    scenario, what, _ = item[0]
    return int(scenario[1:]), what


def main(times_file: Path) -> int:
    """Print the recorded times; returns 1 if a p99 exceeds its bound."""
    lines = times_file.read_text("utf-8").splitlines() if times_file.exists() else []
    series = series_of(Timing(**json.loads(line)) for line in lines)
    print_series(series)
    late = [row for row in series if not row.is_in_time]
    for row in late:
        print_warning(f"{row.scenario}, {row.what}: p99 is {row.p99_s:.2f} s, bound {row.bound_s:.2f} s")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
