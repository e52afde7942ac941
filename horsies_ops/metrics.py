"""Figures for Prometheus: what there is now, and what has happened since the exporter began to look."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, format_one_line
from horsies.model.events import EventKind
from horsies_ops.reads.facade import OpsReads
from horsies_ops.reads.overview import CounterIncrements, Overview, read_increments
from horsies_ops.reads.queues import QueueRow

# Counters that are added up from what each look at the database finds.

BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)


class Totals:
    """What has happened since the beginning; only ever grows."""

    def __init__(self) -> None:
        self.finished: Counter[tuple[str, str]] = Counter()
        """By status and queue."""
        self.recovered: Counter[str] = Counter()
        """By decision."""
        self.late_results = 0
        self.total_s = 0.0
        self._parts: Counter[int] = Counter()

    def add(self, found: CounterIncrements) -> None:
        for each in found.finished:
            self.finished[each.status, each.queue] += each.tasks
        for part in found.durations:
            self._parts[part.part] += part.executions
            self.total_s += part.total_s
        for event in found.events:
            if event.kind == EventKind.TASK_RECOVERED:
                self.recovered[event.decision] += event.events
            else:
                self.late_results += event.events

    def buckets(self) -> Iterator[tuple[str, float]]:
        """How many executions took at most so many seconds, for each bound and for all."""
        sum_so_far = 0
        for part, bound in enumerate((*BOUNDS_S, float("inf"))):
            sum_so_far += self._parts[part]
            yield "+Inf" if bound == float("inf") else str(bound), sum_so_far


# The endpoint that Prometheus asks, and the figures that it is given.

SCRAPE_TIMEOUT_S: Final = 30.0
log = logging.getLogger("horsies.metrics")


@dataclass(slots=True)
class Exporter:
    """Looks at the database when it is asked, and keeps the totals in between.

    Counters begin at zero when the exporter starts, as Prometheus expects of a process; rows that retention deletes
    take nothing away from them.
    """

    reads: OpsReads
    totals: Totals = field(default_factory=Totals)
    _since: datetime | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def collect(self) -> list[Metric]:
        """Everything there is to tell now."""
        async with self._lock:
            found = await read_increments(self.reads.reader, since=self._since, bucket_bounds_s=BOUNDS_S)
            self.totals.add(found)
            self._since = found.until
        return [_up(1), *_gauges(await self.reads.overview()), *_counters(self.totals)]


@contextmanager
def serve_metrics(exporter: Exporter, *, host: str, port: int) -> Generator[int]:
    """Answer until the block is left, in threads that ask the present event loop; yields the port."""
    registry = CollectorRegistry()
    registry.register(_ThreadCollector(exporter, asyncio.get_running_loop()))  # pyright: ignore[reportArgumentType]
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="--host and --port choose another place",
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _ThreadCollector:
    """A collector as the client library calls it: from a thread, and without waiting for anything."""

    def __init__(self, exporter: Exporter, loop: asyncio.AbstractEventLoop) -> None:
        self._exporter = exporter
        self._loop = loop

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not need the database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        looking = asyncio.run_coroutine_threadsafe(self._exporter.collect(), self._loop)
        try:
            return looking.result(timeout=SCRAPE_TIMEOUT_S)
        except (HorsiesError, TimeoutError) as error:
            looking.cancel()
            log.warning("no figures for this scrape: %s", format_one_line(error) or "the database took too long")
            return [_up(0)]


def _up(value: int) -> Metric:
    return GaugeMetricFamily("horsies_up", "Whether the database could be read.", value=value)


def _gauges(overview: Overview) -> Iterable[Metric]:
    tasks = GaugeMetricFamily("horsies_tasks", "Tasks that have not ended.", labels=("status", "queue"))
    due = GaugeMetricFamily("horsies_oldest_due_seconds", "How long the oldest due task waits.", labels=("queue",))
    for queue in overview.queues:
        for status, count in _counts(queue).items():
            tasks.add_metric((status, queue.name), count)
        due.add_metric((queue.name,), queue.oldest_due_age.total_seconds() if queue.oldest_due_age else 0)
    workers = GaugeMetricFamily("horsies_workers", "Runs of workers by their state.", labels=("state",))
    for state, number in overview.workers.items():
        workers.add_metric((state,), number)
    stale = GaugeMetricFamily("horsies_stale_candidates", "Live tasks past their threshold.", value=overview.stale)
    return tasks, due, workers, stale


def _counts(queue: QueueRow) -> dict[str, int]:
    return {"PENDING": queue.pending + queue.delayed, "CLAIMED": queue.claimed, "RUNNING": queue.running}


def _counters(totals: Totals) -> Iterable[Metric]:
    finished = CounterMetricFamily("horsies_tasks_finished", "Tasks that ended.", labels=("status", "queue"))
    for labels, number in totals.finished.items():
        finished.add_metric(labels, number)
    recovered = CounterMetricFamily("horsies_recovered", "Tasks that recovery settled.", labels=("decision",))
    for decision, number in totals.recovered.items():
        recovered.add_metric((decision,), number)
    late = CounterMetricFamily("horsies_late_results", "Outcomes that came too late.", value=totals.late_results)
    seconds = HistogramMetricFamily("horsies_task_seconds", "How long executions took.")
    seconds.add_metric((), buckets=list(totals.buckets()), sum_value=totals.total_s)
    return finished, recovered, late, seconds
