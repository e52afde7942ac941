"""Texts of the dashboard: counters, the chart of finished tasks, and small tables of queues and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from textual.content import Content

from horsies.model.task import TaskStatus
from horsies_ops.source import DataSource
from horsies_tui.fleet import (
    BUCKET_COUNT,
    THROUGHPUT_WINDOW,
    QueueHealth,
    WorkerHealth,
    align_buckets,
    queue_health,
    worker_health,
)
from horsies_tui.format import fit, format_age, format_count, format_elapsed, format_short_age, safe
from horsies_tui.theme import Glyph, area_chart, bar, downsample, sparkline
from horsies_tui.widgets.row_list import Tone

if TYPE_CHECKING:
    from horsies_ops.reads.overview import Overview, QueueBucket, QueueRow, Throughput
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.workers import WorkerRow

STYLES: Final = {
    Tone.PLAIN: "",
    Tone.DIM: "dim",
    Tone.GOOD: "$text-success",
    Tone.BUSY: "$text-primary",
    Tone.WARN: "$text-warning",
    Tone.BAD: "$text-error",
}

# Counters


def counter_line(overview: Overview, width: int) -> Content:
    """Number of tasks in each state on one line; where there is no room, less important ones are dropped."""
    counts = overview.counts
    # The first number is the rank: the highest is dropped first.
    counters = [
        (0, "PENDING", _count_text(counts[TaskStatus.PENDING]), Tone.WARN),
        (3, "due later", format_count(overview.delayed), Tone.PLAIN),
        (1, "CLAIMED", _count_text(counts[TaskStatus.CLAIMED]), Tone.BUSY),
        (0, "RUNNING", _count_text(counts[TaskStatus.RUNNING]), Tone.BUSY),
        (0, "FAILED 24h", _count_text(overview.failed_last_day), Tone.BAD),
        (2, "EXPIRED 24h", _count_text(overview.expired_last_day), Tone.WARN),
        (0, "COMPLETED", _count_text(counts[TaskStatus.COMPLETED]), Tone.GOOD),
    ]
    while sum(len(label) + len(text) + 3 for _, label, text, _ in counters) > width and any(
        rank for rank, *_ in counters
    ):
        counters.remove(max(counters, key=lambda counter: counter[0]))
    return Content("  ").join([_counter(label, text, tone) for _, label, text, tone in counters])


def _counter(label: str, text: str, tone: Tone) -> Content:
    if text == "0":
        return Content.styled(f"{label} {text}", "dim")
    return Content.assemble((f"{label} ", "dim"), (text, f"bold {STYLES[tone]}"))


def _count_text(count: Count) -> str:
    return format_count(count.number, is_estimate=count.is_estimate, is_capped=count.is_capped)


# Chart of finished tasks

FIRST_MINUTES: Final = 3
"""While tasks have finished only in the last minutes, the chart shows seconds."""
SECONDS_SHOWN: Final = 60
_AXIS_WIDTH: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Finished tasks per minute and, in the first minutes, per second."""

    minutes: Throughput
    seconds: Throughput | None = None

    @property
    def title(self) -> str:
        period, unit = ("30 min", "min") if self.seconds is None else (f"{SECONDS_SHOWN} s", "s")
        return f"Last {period}   peak {self.peak}/{unit}"

    @property
    def shown(self) -> Throughput:
        return self.seconds or self.minutes

    @property
    def peak(self) -> str:
        most = max(self.shown.buckets, key=lambda bucket: bucket.done, default=None)
        return "0" if most is None else format_count(most.done, is_estimate=most.is_estimate)

    def idle_time(self, now: datetime) -> timedelta | None:
        """Time since the end of the last minute in which a task finished, at most the whole window."""
        buckets = self.minutes.buckets
        if not buckets:
            return None
        finished = [bucket.at for bucket in buckets if bucket.done or bucket.failed]
        return now - (finished[-1] + THROUGHPUT_WINDOW / BUCKET_COUNT if finished else buckets[0].at)


async def load_activity(source: DataSource) -> Activity:
    minutes = await source.throughput(THROUGHPUT_WINDOW, BUCKET_COUNT)
    busy = [index for index, bucket in enumerate(minutes.buckets) if bucket.done or bucket.failed]
    if not busy or busy[0] < len(minutes.buckets) - FIRST_MINUTES:
        return Activity(minutes=minutes)
    seconds = await source.throughput(timedelta(seconds=SECONDS_SHOWN), SECONDS_SHOWN)
    has_finished = any(bucket.done or bucket.failed for bucket in seconds.buckets)
    return Activity(minutes=minutes, seconds=seconds if has_finished else None)


def chart_lines(
    activity: Activity, overview: Overview, workers: Sequence[WorkerRow], *, rows: int, zoom: int, is_beside: bool
) -> list[Content]:
    """An area of `rows` lines (at least 3) for done, a line for failed, the axis, and figures below or beside it.

    A bucket is `zoom` columns wide.
    """
    shown = activity.shown
    done = downsample([float(bucket.done) for bucket in shown.buckets], BUCKET_COUNT)
    failed = downsample([float(bucket.failed) for bucket in shown.buckets], BUCKET_COUNT)
    labels = [(activity.peak, "dim"), ("done", STYLES[Tone.GOOD]), *[("", "")] * (rows - 3), ("0", "dim")]
    lines = [
        Content.assemble((f"{label:>{_AXIS_WIDTH}} ", style), (_widened(area, zoom), STYLES[Tone.GOOD]))
        for (label, style), area in zip(labels, area_chart(done, rows), strict=True)
    ]
    (failures,) = area_chart(failed, 1)
    lines.append(Content.styled(f"{'fail':>{_AXIS_WIDTH}} {_widened(failures, zoom)}", STYLES[Tone.BAD]))
    ends = ("-30m", "-15m", "now") if activity.seconds is None else ("-60s", "-30s", "now")
    half = BUCKET_COUNT * zoom // 2
    axis = f"{ends[0]:<{half - 2}}{ends[1]:<{half - 1}}{ends[2]}"
    lines.append(Content.styled(" " * (_AXIS_WIDTH + 1) + axis, "dim"))
    figures = _figures(shown, overview, workers)
    if not is_beside:
        return [*lines, *figures]
    width = _AXIS_WIDTH + 1 + BUCKET_COUNT * zoom + 3
    padded = [line.pad_right(max(width - line.cell_length, 0)) for line in lines]
    return [line + figure for line, figure in zip(padded, figures, strict=False)] + padded[len(figures) :]


def _widened(cells: str, zoom: int) -> str:
    return "".join(cell * zoom for cell in cells)


def _figures(shown: Throughput, overview: Overview, workers: Sequence[WorkerRow]) -> list[Content]:
    times, failed = shown.times, overview.failed_last_minute
    done = format_count(overview.done_last_minute, is_estimate=any(queue.is_estimate for queue in overview.queues))
    # Busy children, not running tasks: a child may run several tasks, and dead workers have no slots.
    alive = [worker for worker in workers if worker.is_responsive]
    busy, slots = sum(worker.children_busy for worker in alive), sum(worker.processes for worker in alive)
    failures = (f"{failed:,} failed", STYLES[Tone.BAD] if failed else "dim")
    return [
        Content.assemble("last min  ", (f"{done} done", STYLES[Tone.GOOD] if done != "0" else "dim"), "  ", failures),
        Content(f"wait p50 {format_elapsed(times.wait_p50)}  p95 {format_elapsed(times.wait_p95)}"),
        Content(f"run  p50 {format_elapsed(times.run_p50)}  p95 {format_elapsed(times.run_p95)}"),
        Content(f"slots {bar(busy, slots, 10)} {busy:,}/{slots:,}"),
    ]


# Small tables

_QUEUE_TONES: Final = {
    QueueHealth.OK: Tone.PLAIN,
    QueueHealth.BACKLOG: Tone.WARN,
    QueueHealth.PAUSED: Tone.WARN,
    QueueHealth.UNSERVED: Tone.BAD,
}
_WORKER_STATES: Final = {
    WorkerHealth.HOT: (Glyph.WARN, Tone.WARN),
    WorkerHealth.DEGRADED: (Glyph.WARN, Tone.WARN),
    WorkerHealth.DRAINING: (Glyph.PAUSED, Tone.WARN),
    WorkerHealth.LATE: (Glyph.WARN, Tone.WARN),
    WorkerHealth.SILENT: (Glyph.WARN, Tone.WARN),
    WorkerHealth.STALE: (Glyph.BAD, Tone.BAD),
    WorkerHealth.LOST: (Glyph.BAD, Tone.BAD),
}
"""Glyph and tone; all others are fine and dim."""


QUEUE_CHART_COLUMN: Final = 44
"""Columns before the chart in each of the `queue_lines`."""


def queue_lines(
    overview: Overview, buckets: Sequence[QueueBucket], now: datetime, *, rows: int, points: int
) -> Iterator[Content]:
    """One line per queue, those with a problem first, and a heading; the chart has `points` points."""
    yield Content.styled(f"{fit('QUEUE', 14)}   WAIT  OLDEST   RUN  DONE/m 30 min", "bold dim")
    elapsed = now - overview.at
    ordered = sorted(overview.queues, key=lambda queue: queue_health(queue) is QueueHealth.OK)
    for queue in ordered[:rows]:
        of_queue = align_buckets([bucket for bucket in buckets if bucket.queue == queue.name], now)
        done = [0.0 if bucket is None else float(bucket.done) for bucket in of_queue]
        yield _queue_line(queue, downsample(done, points), elapsed)


def _queue_line(queue: QueueRow, finished: Sequence[float], elapsed: timedelta) -> Content:
    health = queue_health(queue)
    style = STYLES[_QUEUE_TONES[health]]
    oldest = None if queue.oldest_due_age is None else queue.oldest_due_age + elapsed
    done = queue.finished_last_minute - queue.failed_last_minute
    chart = (sparkline(finished), STYLES[Tone.BUSY] if any(finished) else "dim")
    if health in (QueueHealth.PAUSED, QueueHealth.UNSERVED):
        chart = (f"{Glyph.PAUSED if health is QueueHealth.PAUSED else Glyph.BAD} {health}", style)
    return Content.assemble(
        (fit(queue.name, 14), style),
        (f" {queue.pending:>6,}", style if queue.pending else "dim"),
        (f" {format_age(oldest):>7}", style if oldest else "dim"),
        (f" {queue.running:>5,}", "" if queue.running else "dim"),
        (f" {format_count(done, is_estimate=queue.is_estimate):>7}", "" if done else "dim"),
        " ",
        chart,
    )


def worker_lines(workers: Sequence[WorkerRow], now: datetime, rows: int) -> Iterator[Content]:
    """One line per worker, those with a problem first, and a heading. Full slots are not a problem.

    A lost worker that holds no tasks any more comes last.
    """

    def rank(worker: WorkerRow) -> int:
        if worker_health(worker) is WorkerHealth.LOST and not worker.tasks_running + worker.tasks_claimed:
            return 2
        return 0 if worker_health(worker) in _WORKER_STATES else 1

    yield Content.styled(f"{fit('HOST:PID', 14)} {fit('LOAD', 16)} STATE", "bold dim")
    for worker in sorted(workers, key=rank)[:rows]:
        health = worker_health(worker)
        glyph, tone = _WORKER_STATES.get(health, ("", Tone.DIM))
        # Without an age while heartbeats arrive: it would be redrawn every second.
        is_alive = worker.is_responsive and not worker.is_late
        age = "" if is_alive else f" {format_short_age(now - worker.last_heartbeat_at)}"
        load = f"{bar(worker.children_busy, worker.processes, 10)} {worker.children_busy}/{worker.processes}"
        yield Content.assemble(
            safe(fit(f"{worker.hostname}:{worker.pid}", 14), STYLES[tone] if glyph else ""),
            (f" {fit(load, 16)} ", STYLES[Tone.BUSY] if worker.children_busy else "dim"),
            (f"{glyph} {health}{age}".strip(), STYLES[tone]),
        )
