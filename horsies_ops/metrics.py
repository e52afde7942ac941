"""Prometheus exporter: gauges for the current state, counters and a histogram since the exporter started."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, format_one_line
from horsies.model.events import EventKind
from horsies.model.text import sanitize_text
from horsies_ops.reads.overview import CounterIncrements, Overview, read_increments
from horsies_ops.reads.schedules import SCHEDULE_READS, ScheduleRow, list_schedules

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

BUCKET_BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
LAG_BOUNDS_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0)
SCRAPE_TIMEOUT_S: Final = 30.0
MAX_NAMES: Final = 200
OTHER_NAMES: Final = "(other)"
"""Label of all queues, or schedules, above MAX_NAMES."""

log = logging.getLogger("horsies.metrics")


class MetricTotals:
    """Counter values since the exporter started."""

    def __init__(self) -> None:
        self.finished: Counter[tuple[str, str]] = Counter()
        """By status and queue."""
        self.recovered: Counter[str] = Counter()
        """By decision."""
        self.late_results = 0
        self.duration_sum_s = 0.0
        self._duration_counts: Counter[int] = Counter()
        """By index of the bucket."""

    def add(self, increments: CounterIncrements) -> None:
        for row in increments.finished:
            self.finished[row.status, row.queue] += row.tasks
        for bucket in increments.durations:
            self._duration_counts[bucket.index] += bucket.attempts
            self.duration_sum_s += bucket.total_s
        for event in increments.events:
            if event.kind == EventKind.TASK_RECOVERED:
                self.recovered[event.decision] += event.events
            else:
                self.late_results += event.events

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Yield each upper bound with the number of attempts that took at most that long."""
        cumulative = 0
        for index, bound in enumerate((*BUCKET_BOUNDS_S, float("inf"))):
            cumulative += self._duration_counts[index]
            yield "+Inf" if bound == float("inf") else str(bound), cumulative


@dataclass(slots=True)
class ScheduleTotals:
    """Slots by outcome and the lags of those that fired, since the exporter started."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    lags: list[int] = field(default_factory=lambda: [0] * (len(LAG_BOUNDS_S) + 1))
    """Slots by index of the bucket."""
    lag_sum_s: float = 0.0
    _last_run: int | None = None

    async def update(self, ops: Ops) -> None:
        newest = await ops.reader.fetch_single(SCHEDULE_READS.newest_run)
        after, self._last_run = self._last_run, newest
        for row in [] if after is None else await ops.reader.fetch(SCHEDULE_READS.totals, after, newest):
            self.outcomes[row.outcome] += row.count
            for lag in row.lags or ():
                self.lag_sum_s += lag
                self.lags[bisect_left(LAG_BOUNDS_S, lag)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        bounds = (*map(str, LAG_BOUNDS_S), "+Inf")
        return list(zip(bounds, map(float, accumulate(self.lags)), strict=True))


@dataclass(slots=True)
class Exporter:
    """Reads the database on every scrape and keeps the running totals in between.

    Counters start at zero when the exporter starts, as Prometheus expects of a process. Rows deleted by retention do
    not decrease them.
    """

    ops: Ops
    totals: MetricTotals = field(default_factory=MetricTotals)
    schedules: ScheduleTotals = field(default_factory=ScheduleTotals)
    _since: datetime | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def collect(self) -> list[Metric]:
        """Return all metrics as of now."""
        # Concurrent scrapes must not count the same interval twice.
        async with self._lock:
            increments = await read_increments(self.ops.reader, since=self._since, bucket_bounds_s=BUCKET_BOUNDS_S)
            self.totals.add(increments)
            self._since = increments.until
            await self.schedules.update(self.ops)
        schedules = schedule_metrics(self.schedules, await list_schedules(self.ops))
        return [_up(1), *_gauges(await self.ops.overview()), *_counters(self.totals), *schedules]


@contextmanager
def serve_metrics(exporter: Exporter, *, host: str, port: int) -> Generator[int]:
    """Serve scrapes in threads until the block exits; yields the port. Queries run on the current event loop."""
    registry = CollectorRegistry()
    registry.register(_ThreadCollector(exporter, asyncio.get_running_loop()))  # pyright: ignore[reportArgumentType]
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="choose another address with --host and --port",
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _ThreadCollector:
    """Adapts the async exporter to prometheus_client, which calls collectors from its own threads."""

    def __init__(self, exporter: Exporter, loop: asyncio.AbstractEventLoop) -> None:
        self._exporter = exporter
        self._loop = loop

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not query the database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        future = asyncio.run_coroutine_threadsafe(self._exporter.collect(), self._loop)
        try:
            return future.result(timeout=SCRAPE_TIMEOUT_S)
        except (HorsiesError, TimeoutError) as error:
            future.cancel()
            log.warning("scrape failed: %s", format_one_line(error) or "database timeout")
            # An answer all the same, so that alerts can tell a database outage from an exporter that is down.
            return [_up(0)]


def name_labels(names: Iterable[str]) -> dict[str, str]:
    """Label values for queues or schedules: printable, short, and one for all names above MAX_NAMES.

    Names come from rows that any producer may write, and each label value is a time series that Prometheus keeps.
    """
    known = sorted(set(names))
    shown = {name: sanitize_text(name, limit=100) for name in known[:MAX_NAMES]}
    return shown | dict.fromkeys(known[MAX_NAMES:], OTHER_NAMES)


def _up(value: int) -> Metric:
    return GaugeMetricFamily("horsies_up", "Whether the database could be read.", value=value)


def _gauges(overview: Overview) -> Iterable[Metric]:
    tasks = GaugeMetricFamily("horsies_tasks", "Unfinished tasks.", labels=("status", "queue"))
    due = GaugeMetricFamily("horsies_oldest_due_seconds", "Time the oldest due task has waited.", labels=("queue",))
    counts, waits = Counter[tuple[str, str]](), dict[str, float]()
    labels = name_labels(queue.name for queue in overview.queues)
    for queue in overview.queues:
        label = labels[queue.name]
        counts["PENDING", label] += queue.pending + queue.delayed
        counts["CLAIMED", label] += queue.claimed
        counts["RUNNING", label] += queue.running
        age = queue.oldest_due_age.total_seconds() if queue.oldest_due_age else 0
        waits[label] = max(waits.get(label, 0), age)
    for key, number in counts.items():
        tasks.add_metric(key, number)
    for label, age in waits.items():
        due.add_metric((label,), age)
    workers = GaugeMetricFamily("horsies_workers", "Workers by state.", labels=("state",))
    for state, number in overview.workers.items():
        workers.add_metric((state,), number)
    stale = GaugeMetricFamily("horsies_stale_candidates", "Stale tasks.", value=overview.stale)
    return tasks, due, workers, stale


def _counters(totals: MetricTotals) -> Iterable[Metric]:
    finished = CounterMetricFamily("horsies_tasks_finished", "Finished tasks.", labels=("status", "queue"))
    labels = name_labels(queue for _, queue in totals.finished)
    counts = Counter[tuple[str, str]]()
    for (status, queue), number in totals.finished.items():
        counts[status, labels[queue]] += number
    for key, number in counts.items():
        finished.add_metric(key, number)
    recovered = CounterMetricFamily("horsies_recovered", "Tasks handled by recovery.", labels=("decision",))
    for decision, number in totals.recovered.items():
        recovered.add_metric((decision,), number)
    late = CounterMetricFamily("horsies_late_results", "Outcomes refused as too late.", value=totals.late_results)
    seconds = HistogramMetricFamily("horsies_task_seconds", "Execution time of attempts.")
    seconds.add_metric((), buckets=list(totals.buckets()), sum_value=totals.duration_sum_s)
    return finished, recovered, late, seconds


def schedule_metrics(totals: ScheduleTotals, rows: Iterable[ScheduleRow]) -> Iterable[Metric]:
    late = GaugeMetricFamily("horsies_schedule_overdue_seconds", "Lateness of the next slot.", labels=("schedule",))
    due_in = {row.name: row.due_in for row in rows if row.fires and row.due_in is not None}
    longest_s = dict[str, float]()
    for name, label in name_labels(due_in).items():
        longest_s[label] = max(longest_s.get(label, 0.0), -due_in[name].total_seconds())
    for label, seconds in longest_s.items():
        late.add_metric((label,), seconds)
    runs = CounterMetricFamily("horsies_schedule_runs", "Slots of schedules.", labels=("outcome",))
    for outcome, number in totals.outcomes.items():
        runs.add_metric((outcome,), number)
    lag = HistogramMetricFamily("horsies_schedule_lag_seconds", "Time from a slot to its firing.")
    lag.add_metric((), buckets=totals.buckets(), sum_value=totals.lag_sum_s)
    return late, runs, lag
