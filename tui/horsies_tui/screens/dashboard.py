"""Dashboard: task counts and throughput, alerts, and recent operator actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from textual.app import ComposeResult
from textual.containers import Horizontal

from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.fleet import (
    BUCKET_COUNT,
    HOUR,
    THROUGHPUT_WINDOW,
    align_buckets,
    count_not_alive,
    load_workers,
)
from horsies_tui.format import fit, format_age, format_count, format_elapsed, format_time, plural
from horsies_tui.keys import ScreenId
from horsies_tui.screens.alerts import Alert, AlertInputs, Severity, find_alerts
from horsies_tui.screens.base import TASK_TOPICS, MainScreen, ShowTasks, ShowWorker
from horsies_tui.screens.entries import log_line
from horsies_tui.theme import Glyph, bar, sparkline
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, RowList, Tone

if TYPE_CHECKING:
    from horsies_ops.reads.events import AuditRow
    from horsies_ops.reads.overview import Overview, QueueBucket, Throughput
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.workers import WorkerRow


SLOT_BAR_WIDTH: Final = 16
MAX_QUEUES: Final = 7
MAX_ACTIONS: Final = 8
QUEUE_PANE_MIN_WIDTH: Final = 120


# Summary panes


def count_lines(overview: Overview, now: datetime) -> list[str]:
    """Number of tasks in each state, with the oldest age."""
    # Added to the ages in the overview, so that they keep growing between two queries.
    elapsed = now - overview.at
    counts = {status: _count_text(count) for status, count in overview.counts.items()}
    failed = overview.failed_last_hour
    is_estimate = overview.counts[TaskStatus.COMPLETED].is_estimate
    lines = (
        ("PENDING", counts[TaskStatus.PENDING], _age_text("oldest", overview.oldest_due, elapsed)),
        ("  due later", format_count(overview.delayed), _age_text("next in", overview.next_due, -elapsed)),
        ("CLAIMED", counts[TaskStatus.CLAIMED], _age_text("oldest", overview.oldest_claimed, elapsed)),
        ("RUNNING", counts[TaskStatus.RUNNING], _age_text("longest", overview.longest_running, elapsed)),
        (
            "FAILED 24h",
            _count_text(overview.failed_last_day),
            f"{Glyph.WARN} +{_count_text(failed)} in 1h" if failed.number else "",
        ),
        ("EXPIRED 24h", _count_text(overview.expired_last_day), ""),
        ("COMPLETED", counts[TaskStatus.COMPLETED], "(estimate)" if is_estimate else ""),
    )
    return [f"{fit(label, 11)} {fit(count, 8, right=True)}  {note}" for label, count, note in lines]


def throughput_lines(overview: Overview, throughput: Throughput, workers: Sequence[WorkerRow]) -> list[str]:
    """Tasks completed and failed per minute, wait and run times, and busy slots of the fleet."""
    done = [float(bucket.done) for bucket in throughput.buckets]
    failed = [float(bucket.failed) for bucket in throughput.buckets]
    times = throughput.times
    # Busy children, not running tasks: a child may run several tasks, and dead workers have no slots.
    alive = [worker for worker in workers if worker.is_responsive]
    busy, slots = sum(worker.children_busy for worker in alive), sum(worker.processes for worker in alive)
    share = f" {busy / slots:.0%}" if slots else ""
    is_estimate = any(queue.is_estimate for queue in overview.queues)
    done_last_minute = format_count(overview.done_last_minute, is_estimate=is_estimate)
    return [
        f"done {sparkline(done)} {done_last_minute:>6}",
        f"fail {sparkline(failed)} {overview.failed_last_minute:>6,}",
        f"wait p50 {format_elapsed(times.wait_p50)}  p95 {format_elapsed(times.wait_p95)}",
        f"run  p50 {format_elapsed(times.run_p50)}  p95 {format_elapsed(times.run_p95)}",
        "",
        f"slots {bar(busy, slots, SLOT_BAR_WIDTH)} {busy:,}/{slots:,}{share}",
    ]


def queue_lines(buckets: Sequence[QueueBucket], now: datetime) -> list[str]:
    """Completed tasks per minute of the busiest queues, one line each."""
    by_queue: dict[str, list[QueueBucket]] = {}
    for bucket in buckets:
        by_queue.setdefault(bucket.queue, []).append(bucket)
    busiest = sorted(by_queue.items(), key=lambda item: sum(bucket.done for bucket in item[1]), reverse=True)
    lines: list[str] = []
    for name, found in busiest[:MAX_QUEUES]:
        aligned = align_buckets(found, now)
        done = [0.0 if bucket is None else float(bucket.done) for bucket in aligned]
        # The last bucket is still filling; the one before is the last full minute.
        last = aligned[-2]
        number = "0" if last is None else format_count(last.done, is_estimate=last.is_estimate)
        lines.append(f"{fit(name, 10)} {sparkline(done[-20:])} {number:>6}")
    return lines


def _count_text(count: Count) -> str:
    return format_count(count.number, is_estimate=count.is_estimate, is_capped=count.is_capped)


def _age_text(label: str, age: timedelta | None, elapsed: timedelta) -> str:
    """Format an age that was queried `elapsed` ago; a time until something is passed with a negative `elapsed`."""
    return "" if age is None else f"{label} {format_age(age + elapsed)}"


_SIGNS: Final = {Severity.BAD: Cell("", Tone.BAD, glyph=Glyph.BAD), Severity.WARN: Cell("!", Tone.WARN)}
_TONES: Final = {Severity.BAD: Tone.BAD, Severity.WARN: Tone.PLAIN}

ALERT_COLUMNS: Final[tuple[Column[Alert], ...]] = (
    Column("", 1, lambda alert: _SIGNS[alert.severity]),
    Column(
        "NEEDS ATTENTION   Enter opens the rows behind a line",
        40,
        lambda alert: Cell(alert.text, _TONES[alert.severity]),
        grows=1,
    ),
)


class DashboardScreen(MainScreen, scope=ScreenId.DASHBOARD):
    """Summary panes at the top, alerts in the middle, recent operator actions at the bottom."""

    HORIZONTAL_BREAKPOINTS = [(0, "-too-narrow"), (60, "-narrow"), (80, "-medium"), (QUEUE_PANE_MIN_WIDTH, "-roomy")]  # noqa: RUF012  # declared like this by Textual
    # Refresh the counts often here; the other screens use the overview only for the number of stale tasks in the tabs.
    overview_min_interval_s = 1.0

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.list: RowList[Alert] = RowList(ALERT_COLUMNS, key=lambda alert: alert.key, context=context)
        self._alert_inputs = AlertInputs()
        self._missing_results = {"overview", "stale", "workers", "errors"}
        """Queries that the alerts need and that have not returned yet."""
        self._overview: Overview | None = None
        self._throughput: Throughput | None = None
        self._queue_throughput: tuple[QueueBucket, ...] = ()

    def body(self) -> ComposeResult:
        with Horizontal(id="summary"):
            yield Pane(" Tasks ", name="task-counts")
            yield Pane(" Last 30 min (per minute) ", name="throughput")
            yield Pane(" Done by queue ", name="queue-throughput")
        yield self.list
        yield Pane(" Recent operator actions ", name="operator-actions")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.HEARTBEATS, Topic.EVENT}
        return (
            LiveQuery(
                "stale",
                lambda source: source.stale_candidates(),
                lambda report: self._show_alerts("stale", replace(self._alert_inputs, stale=report)),
                topics,
                min_interval_s=5.0,
            ),
            LiveQuery(
                "workers",
                load_workers,
                lambda workers: self._show_alerts("workers", replace(self._alert_inputs, workers=workers)),
                topics,
                poll_s=5.0,
                min_interval_s=2.0,
            ),
            LiveQuery(
                "errors",
                lambda source: source.error_summary(HOUR),
                lambda errors: self._show_alerts("errors", replace(self._alert_inputs, errors=errors)),
                TASK_TOPICS,
                min_interval_s=10.0,
            ),
            LiveQuery(
                "throughput",
                lambda source: source.throughput(THROUGHPUT_WINDOW, BUCKET_COUNT),
                self._show_throughput,
                TASK_TOPICS,
                min_interval_s=3.0,
            ),
            LiveQuery(
                "queue throughput",
                self._fetch_queue_throughput,
                self._show_queue_throughput,
                TASK_TOPICS,
                min_interval_s=5.0,
            ),
            LiveQuery(
                "audit", lambda source: source.audit(limit=MAX_ACTIONS), self._show_actions, topics, min_interval_s=2.0
            ),
        )

    async def _fetch_queue_throughput(self, source: DataSource) -> tuple[QueueBucket, ...]:
        # Skip the query while the terminal is too narrow for its pane.
        if self.size.width < QUEUE_PANE_MIN_WIDTH:
            return ()
        return await source.queue_throughput(THROUGHPUT_WINDOW, BUCKET_COUNT)

    def show_overview(self, overview: Overview) -> None:
        super().show_overview(overview)
        self._overview = overview
        self._show_alerts("overview", replace(self._alert_inputs, queues=overview.queues))

    def _show_throughput(self, throughput: Throughput) -> None:
        self._throughput = throughput
        self._draw()

    def _show_queue_throughput(self, buckets: tuple[QueueBucket, ...]) -> None:
        self._queue_throughput = buckets
        self._draw()

    def _show_actions(self, rows: tuple[AuditRow, ...]) -> None:
        self.show_pane("operator-actions", lambda: [log_line(row) for row in reversed(rows)] or ["no actions yet"])

    def _show_alerts(self, query: str, inputs: AlertInputs) -> None:
        """Draw the alerts with the result of another query."""
        self._alert_inputs = inputs
        self._missing_results.discard(query)
        # Shown with partial results, the list would put the cursor on the first alert to arrive, not the top one.
        if not self._missing_results:
            self.list.show(find_alerts(self._alert_inputs))
        self._draw()

    def _draw(self) -> None:
        self.tick()
        self._update_status()

    def tick(self) -> None:
        now, overview, throughput = self.context.clock.now(), self._overview, self._throughput
        if overview is not None:
            self.show_pane("task-counts", partial(count_lines, overview, now))
        if overview is not None and throughput is not None:
            lines = partial(throughput_lines, overview, throughput, self._alert_inputs.workers)
            self.show_pane("throughput", lines)
        self.show_pane("queue-throughput", partial(queue_lines, self._queue_throughput, now))

    def _update_status(self) -> None:
        if (overview := self._overview) is None:
            return
        alive = sum(worker.is_responsive for worker in self._alert_inputs.workers)
        others = "".join(f" {count} {state}" for state, count in count_not_alive(self._alert_inputs.workers))
        runs = overview.workflows.get("RUNNING")
        self.set_status(
            "" if self.list.rows or self._missing_results else "no problems",
            plural(len(overview.queues), "queue"),
            f"workers {alive} up{others}",
            ""
            if runs is None or not runs.number
            else f"workflows {format_count(runs.number, is_capped=runs.is_capped)} running",
            f"data as of {format_time(overview.at)}",
        )

    def on_row_list_opened(self) -> None:
        """Show the tasks or the worker behind the alert."""
        match self.list.current:
            case Alert(target=TaskFilter() as task_filter):
                self.post_message(ShowTasks(task_filter))
            case Alert(target=UUID() as worker_id):
                self.post_message(ShowWorker(worker_id))
            case _:
                return
