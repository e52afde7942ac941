"""The first screen: how it goes, what needs attention, and what operators did last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast
from uuid import UUID

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from horsies.model.recovery.decision import DecisionKind
from horsies.model.task import TaskStatus
from horsies.recovery.report import SweepReport, SweptTask
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.queues import QueueRow
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.data.source import DataSource
from horsies_tui.format import fit, format_age, format_count, format_elapsed, format_time, plural, safe, short_id
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import ShowTasks, ShowWorker
from horsies_tui.screens.base import OVERVIEW, TASK_TOPICS, MainScreen
from horsies_tui.screens.entries import log_line
from horsies_tui.screens.fleet import (
    BUCKET_COUNT,
    HOUR,
    TARGET_WAIT,
    THROUGHPUT_WINDOW,
    QueueHealth,
    align_buckets,
    count_not_alive,
    load_workers,
    queue_health,
)
from horsies_tui.theme import Glyphs, bar, sparkline
from horsies_tui.widgets.row_list import Cell, Column, RowList, Tone

if TYPE_CHECKING:
    from horsies_ops.reads.events import AuditRow
    from horsies_ops.reads.overview import ErrorCount, Overview, QueueBucket, Throughput
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.workers import WorkerRow


# What needs an operator's attention, the worst first, each with the list that it is about.

LOST_WORKER_ALERT_AGE: Final = timedelta(hours=1)
"""A worker that is lost and holds nothing is news for so long."""

AlertTarget: TypeAlias = TaskFilter | UUID
"""Tasks, or a worker."""


class Severity(IntEnum):
    """The lower, the sooner it is shown."""

    BAD = 0
    WARN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing to look at."""

    key: str
    """The same for as long as it is about the same thing."""
    severity: Severity
    text: str
    target: AlertTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertInputs:
    """What is known of the system; parts that have not been read yet are empty."""

    queues: Sequence[QueueRow] = ()
    workers: Sequence[WorkerRow] = ()
    stale: SweepReport | None = None
    errors: Sequence[ErrorCount] = ()
    """Of the last hour."""


def find_alerts(inputs: AlertInputs) -> tuple[Alert, ...]:
    """Everything that needs attention: first what is broken, then what may become so, of each kind the worst first."""
    found = [
        *_stale_alerts(inputs.stale),
        *_queue_alerts(inputs.queues),
        *_worker_alerts(inputs.workers),
        *_failure_alerts(inputs.errors),
    ]
    return tuple(sorted(found, key=lambda concern: concern.severity))


def _stale_alerts(report: SweepReport | None) -> Iterator[Alert]:
    if report is None:
        return
    limits = {TaskStatus.RUNNING: report.thresholds.running, TaskStatus.CLAIMED: report.thresholds.claimed}
    for status, limit in limits.items():
        silent = [task for task in report.tasks if task.state is status and task.heartbeat_age is not None]
        if silent:
            yield Alert(
                key=f"stale {status}",
                severity=Severity.BAD if status is TaskStatus.RUNNING else Severity.WARN,
                text=f"{len(silent):,} {status} silent > {format_age(limit)}   {_worst_task_text(silent)}",
                target=TaskFilter(statuses=(status,), min_silence=limit),
            )


def _worst_task_text(silent: Sequence[SweptTask]) -> str:
    """The longest silence, or where all of them would do no harm, that."""
    if all(task.decision is DecisionKind.REQUEUE for task in silent):
        return "safe to requeue"
    worst = max(silent, key=lambda task: task.heartbeat_age or timedelta(0))
    where = "" if worst.owner_state in (None, "running") else f"  worker {worst.owner_state}"
    return f"worst {worst.task_name} {short_id(worst.task_id)} {format_age(worst.heartbeat_age)}{where}"


def _queue_alerts(queues: Sequence[QueueRow]) -> Iterator[Alert]:
    for queue in sorted(queues, key=lambda each: each.oldest_due_age or timedelta(0), reverse=True):
        if told := _queue_problem(queue):
            severity, text = told
            yield Alert(
                key=f"queue {queue.name}",
                severity=severity,
                text=f"queue {queue.name}: {text}",
                target=TaskFilter(queues=(queue.name,), statuses=(TaskStatus.PENDING,)),
            )


def _queue_problem(queue: QueueRow) -> tuple[Severity, str] | None:
    """What is wrong with a queue in which something is due."""
    match queue_health(queue):
        case QueueHealth.UNSERVED if queue.pending:
            waits = f"{queue.pending:,} waiting, the oldest for {format_age(queue.oldest_due_age)}"
            return Severity.BAD, f"nobody serves it, {waits}"
        case QueueHealth.PAUSED if queue.pending:
            by = f" by {queue.paused_by}" if queue.paused_by else ""
            why = f" ({queue.pause_reason})" if queue.pause_reason else ""
            return Severity.WARN, f"paused{by}{why}, {queue.pending:,} waiting for {format_age(queue.oldest_due_age)}"
        case QueueHealth.BACKLOG:
            waits = f"oldest wait {format_age(queue.oldest_due_age)} (target {format_age(TARGET_WAIT)})"
            return Severity.WARN, f"{waits}   {queue.pending:,} pending, {plural(queue.served_by, 'worker')}"
        case _:
            return None


def _worker_alerts(workers: Sequence[WorkerRow]) -> Iterator[Alert]:
    for worker in sorted(workers, key=lambda each: each.tasks_running + each.tasks_claimed, reverse=True):
        who = f"worker {short_id(worker.worker_id)} {worker.hostname}:{worker.pid}"
        held = worker.tasks_running + worker.tasks_claimed
        if worker.is_alive:
            yield from _worker_warnings(worker, who)
        elif held or worker.heartbeat_age < LOST_WORKER_ALERT_AGE:
            seen = f"{who} {worker.display_state}, last seen {format_age(worker.heartbeat_age)} ago"
            yield Alert(
                key=f"gone {worker.worker_id}",
                severity=Severity.BAD if held and worker.is_presumed_dead else Severity.WARN,
                text=f"{seen}, holds {plural(held, 'task')}" if held else f"{seen}, holds nothing",
                target=worker.worker_id,
            )


def _worker_warnings(worker: WorkerRow, who: str) -> Iterator[Alert]:
    """What a live worker says is wrong with it."""
    failing = [f"{operation} keeps failing, and is tried rarely" for operation in worker.disabled_operations]
    for text in (*failing, *worker.warnings):
        yield Alert(
            key=f"says {worker.worker_id} {text}",
            severity=Severity.WARN,
            text=f"{who}: {text}",
            target=worker.worker_id,
        )


def _failure_alerts(errors: Sequence[ErrorCount]) -> Iterator[Alert]:
    counts = Counter({(each.name, each.code): each.last_hour for each in errors if each.status == TaskStatus.FAILED})
    total = counts.total()
    if not total:
        return
    (name, code), most = counts.most_common(1)[0]
    # Where most of them are of one kind, that kind is the news.
    is_one_kind = 2 * most >= total
    share = "all" if most == total else f"{most:,} are" if is_one_kind else "the most frequent"
    wanted = TaskFilter(
        statuses=(TaskStatus.FAILED,),
        names=(name,) if is_one_kind else (),
        error_codes=(code,) if is_one_kind else (),
    )
    yield Alert(
        key="failures",
        severity=Severity.WARN,
        text=f"{plural(total, 'failure')} in 1h, {share} {code} in {name}",
        target=wanted,
    )


# The system at one glance: how many tasks are where, how fast they go, and which queue is behind that.

SLOT_BAR_WIDTH: Final = 16
MOST_QUEUES: Final = 7


class TaskCounts(Static):
    """How many there are of each state, and the age that matters in it."""

    def show(self, overview: Overview, *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = " Tasks "
        passed = now - overview.at
        counts = overview.counts
        completed = counts[TaskStatus.COMPLETED]
        rising = (
            f"{glyphs.warn} +{_count_text(overview.failed_last_hour)} in 1h" if overview.failed_last_hour.number else ""
        )
        lines = [
            _count_line(
                "PENDING", _count_text(counts[TaskStatus.PENDING]), _age_text("oldest", overview.oldest_due, passed)
            ),
            _count_line(
                "  due later", format_count(overview.delayed), _age_text("next in", overview.next_due, -passed)
            ),
            _count_line(
                "CLAIMED", _count_text(counts[TaskStatus.CLAIMED]), _age_text("oldest", overview.oldest_claimed, passed)
            ),
            _count_line(
                "RUNNING",
                _count_text(counts[TaskStatus.RUNNING]),
                _age_text("longest", overview.longest_running, passed),
            ),
            _count_line("FAILED 24h", _count_text(overview.failed_last_day), rising),
            _count_line("EXPIRED 24h", _count_text(overview.expired_last_day), ""),
            _count_line("COMPLETED", _count_text(completed), "(estimate)" if completed.is_estimate else ""),
        ]
        self.update(Content("\n").join([safe(line) for line in lines]))


class ThroughputPane(Static):
    """What was done and what failed in each minute, how long it took, and how much of the fleet is busy."""

    def show(
        self, overview: Overview | None, throughput: Throughput | None, workers: Sequence[WorkerRow], *, glyphs: Glyphs
    ) -> None:
        self.border_title = " Last 30 min (per minute) "
        if overview is None or throughput is None:
            return
        done = [float(bucket.done) for bucket in throughput.buckets]
        failed = [float(bucket.failed) for bucket in throughput.buckets]
        times = throughput.times
        # What a worker that is gone holds takes up no room, and one child may run several tasks.
        alive = [worker for worker in workers if worker.is_alive]
        busy, slots = sum(worker.children_busy for worker in alive), sum(worker.processes for worker in alive)
        share = f" {busy / slots:.0%}" if slots else ""
        lines = [
            Content(f"done {sparkline(done, glyphs)} {overview.done_last_minute:>6,}"),
            Content(f"fail {sparkline(failed, glyphs)} {overview.failed_last_minute:>6,}"),
            Content(f"wait p50 {format_elapsed(times.wait_p50)}  p95 {format_elapsed(times.wait_p95)}"),
            Content(f"run  p50 {format_elapsed(times.run_p50)}  p95 {format_elapsed(times.run_p95)}"),
            Content(""),
            Content(f"slots {bar(busy, slots, SLOT_BAR_WIDTH, glyphs)} {busy:,}/{slots:,}{share}"),
        ]
        self.update(Content("\n").join(lines))


class QueueThroughputPane(Static):
    """The same for each of the busiest queues, in a line."""

    def show(self, buckets: Sequence[QueueBucket], *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = " Done by queue "
        by_queue: dict[str, list[QueueBucket]] = {}
        for bucket in buckets:
            by_queue.setdefault(bucket.queue, []).append(bucket)
        busiest = sorted(by_queue.items(), key=lambda item: sum(bucket.done for bucket in item[1]), reverse=True)
        lines = [_queue_line(name, found, now, glyphs) for name, found in busiest[:MOST_QUEUES]]
        self.update(Content("\n").join(lines))


def _count_line(what: str, count: str, remark: str) -> str:
    return f"{fit(what, 11)} {fit(count, 8, right=True)}  {remark}"


def _count_text(count: Count) -> str:
    return format_count(count.number, is_estimate=count.is_estimate, is_capped=count.is_capped)


def _age_text(what: str, span: timedelta | None, passed: timedelta) -> str:
    """The age as it is now, `passed` after it was read."""
    return "" if span is None else f"{what} {format_age(span + passed)}"


def _queue_line(name: str, buckets: Sequence[QueueBucket], now: datetime, glyphs: Glyphs) -> Content:
    done = [0.0 if bucket is None else float(bucket.done) for bucket in align_buckets(buckets, now)]
    # The last bucket is still open; the one before is the last whole minute.
    return Content.assemble(safe(fit(name, 10)), f" {sparkline(done[-20:], glyphs)} {done[-2]:>6,.0f}")


ALERT_QUERIES: Final = ("stale", "workers", "errors")
"""What is wanted for `Seen`, by the names of its fields."""

MOST_ACTIONS: Final = 8
QUEUE_PANE_MIN_WIDTH: Final = 120


class DashboardScreen(MainScreen):
    """Numbers above, the list of what needs attention in the middle, the operator log below."""

    place = Place.DASHBOARD
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.DASHBOARD)]
    HORIZONTAL_BREAKPOINTS = [(0, "-too-narrow"), (60, "-narrow"), (80, "-medium"), (QUEUE_PANE_MIN_WIDTH, "-roomy")]  # noqa: RUF012  # Textual has it so
    overview_min_interval_s = 1.0

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs)
        self.list: RowList[Alert] = RowList(
            _columns(context.glyphs), key=lambda concern: concern.key, now=context.clock.now, glyphs=context.glyphs
        )
        self._alert_inputs = AlertInputs()
        self._missing_results = {OVERVIEW, *ALERT_QUERIES}
        self._overview: Overview | None = None
        self._throughput: Throughput | None = None
        self._queue_throughput: tuple[QueueBucket, ...] = ()

    def body(self) -> ComposeResult:
        with Horizontal(id="glance"):
            yield TaskCounts()
            yield ThroughputPane()
            yield QueueThroughputPane()
        yield self.list
        yield Static(id="recent")

    def on_mount(self) -> None:
        self.query_one("#recent").border_title = " Recent operator actions "

    def live_queries(self) -> Sequence[LiveQuery]:
        beats = TASK_TOPICS | {Topic.HEARTBEATS, Topic.EVENT}
        return (
            LiveQuery(
                name="stale", fetch=lambda source: source.stale_candidates(), invalidated_by=beats, min_interval_s=5.0
            ),
            LiveQuery(name="workers", fetch=load_workers, invalidated_by=beats, poll_s=5.0, min_interval_s=2.0),
            LiveQuery(
                name="errors",
                fetch=lambda source: source.error_summary(HOUR),
                invalidated_by=TASK_TOPICS,
                min_interval_s=10.0,
            ),
            LiveQuery(
                name="pace",
                fetch=lambda source: source.throughput(THROUGHPUT_WINDOW, BUCKET_COUNT),
                invalidated_by=TASK_TOPICS,
                min_interval_s=3.0,
            ),
            LiveQuery(
                name="queue pace", fetch=self._fetch_queue_throughput, invalidated_by=TASK_TOPICS, min_interval_s=5.0
            ),
            LiveQuery(
                name="audit",
                fetch=lambda source: source.audit(limit=MOST_ACTIONS),
                invalidated_by=beats,
                min_interval_s=2.0,
            ),
        )

    async def _fetch_queue_throughput(self, source: DataSource) -> tuple[QueueBucket, ...]:
        """Only where there is room to show it."""
        return (
            await source.queue_throughput(THROUGHPUT_WINDOW, BUCKET_COUNT)
            if self.size.width >= QUEUE_PANE_MIN_WIDTH
            else ()
        )

    def show_result(self, name: str, value: object) -> None:
        match name:
            case "overview":
                self._overview = overview = cast("Overview", value)
                self._alert_inputs = replace(self._alert_inputs, queues=overview.queues)
            case "pace":
                self._throughput = cast("Throughput", value)
            case "queue pace":
                self._queue_throughput = cast("tuple[QueueBucket, ...]", value)
            case "audit":
                self._show_log(cast("tuple[AuditRow, ...]", value))
            case _ if name in ALERT_QUERIES:
                part: dict[str, Any] = {name: value}
                self._alert_inputs = replace(self._alert_inputs, **part)
            case _:
                return
        self._missing_results.discard(name)
        # Before all is known the cursor would settle on whatever happened to come first.
        if not self._missing_results:
            self.list.show(find_alerts(self._alert_inputs))
        self.tick()
        self._update_status()

    def tick(self) -> None:
        now, glyphs = self.context.clock.now(), self.context.glyphs
        if self._overview is not None:
            self.query_one(TaskCounts).show(self._overview, now=now, glyphs=glyphs)
        self.query_one(ThroughputPane).show(self._overview, self._throughput, self._alert_inputs.workers, glyphs=glyphs)
        self.query_one(QueueThroughputPane).show(self._queue_throughput, now=now, glyphs=glyphs)

    def _show_log(self, rows: tuple[AuditRow, ...]) -> None:
        lines = [safe(log_line(row)) for row in reversed(rows)]
        self.query_one("#recent", Static).update(Content("\n").join(lines or [safe("none yet")]))

    def _update_status(self) -> None:
        if (seen := self._overview) is None:
            return
        alive = sum(worker.is_alive for worker in self._alert_inputs.workers)
        others = "".join(f" {count} {standing}" for standing, count in count_not_alive(self._alert_inputs.workers))
        flows = seen.workflows.get("RUNNING")
        self.set_status(
            "" if self.list.rows or self._missing_results else "all is well",
            plural(len(seen.queues), "queue"),
            f"workers {alive} up{others}",
            ""
            if flows is None or not flows.number
            else f"flows {format_count(flows.number, is_capped=flows.is_capped)} running",
            f"data as of {format_time(seen.at)}",
        )

    def on_row_list_opened(self) -> None:
        """Show the list behind the line."""
        match self.list.current:
            case Alert(target=TaskFilter() as wanted):
                self.post_message(ShowTasks(wanted))
            case Alert(target=UUID() as worker_id):
                self.post_message(ShowWorker(worker_id))
            case _:
                return


def _columns(glyphs: Glyphs) -> tuple[Column[Alert], ...]:
    signs = {Severity.BAD: Cell(glyphs.bad, Tone.BAD), Severity.WARN: Cell("!", Tone.WARN)}
    tones = {Severity.BAD: Tone.BAD, Severity.WARN: Tone.PLAIN}
    return (
        Column(title="", width=1, cell=lambda concern, _: signs[concern.severity]),
        Column(
            title="NEEDS ATTENTION   Enter opens the list behind a line",
            width=40,
            grows=1,
            cell=lambda concern, _: Cell(concern.text, tones[concern.severity]),
        ),
    )
