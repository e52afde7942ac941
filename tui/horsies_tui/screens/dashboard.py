"""The first screen: how it goes, what needs attention, and what operators did last."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast
from uuid import UUID

from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from horsies.model.recovery.decision import Decision
from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.data.queries import Want
from horsies_tui.format import age, clock, fit, number, plural, safe, short_id, took
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import TasksWanted, WorkerWanted
from horsies_tui.screens.base import ANY_TASK, OVERVIEW, MainScreen
from horsies_tui.screens.entries import log_line
from horsies_tui.screens.fleet import (
    BUCKETS,
    HOUR,
    TARGET_WAIT,
    WINDOW,
    QueueHealth,
    missing,
    placed,
    queue_health,
    workers_of,
)
from horsies_tui.theme import bar, spark
from horsies_tui.widgets.row_list import Cell, Column, RowList, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.reads.events import AuditRow
    from horsies_ops.reads.overview import ErrorCount, Overview, QueueBucket, Throughput
    from horsies_ops.reads.queues import QueueRow
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.workers import WorkerRow
    from horsies_tui.data.context import Desk
    from horsies_tui.data.source import Source
    from horsies_tui.theme import Glyphs


# What needs an operator's attention, the worst first, each with the list that it is about.

FORGOTTEN_AFTER: Final = timedelta(hours=1)
"""A worker that is lost and holds nothing is news for so long."""

Behind: TypeAlias = TaskFilter | UUID
"""Tasks, or a worker."""


class Severity(IntEnum):
    """The lower, the sooner it is shown."""

    BAD = 0
    WARN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """One thing to look at."""

    key: str
    """The same for as long as it is about the same thing."""
    severity: Severity
    text: str
    behind: Behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of the system; parts that have not been read yet are empty."""

    queues: Sequence[QueueRow] = ()
    workers: Sequence[WorkerRow] = ()
    stale: SweepReport | None = None
    errors: Sequence[ErrorCount] = ()
    """Of the last hour."""


def attention(seen: Seen) -> tuple[Concern, ...]:
    """Everything that needs attention: first what is broken, then what may become so, of each kind the worst first."""
    found = [*_stale(seen.stale), *_queues(seen.queues), *_workers(seen.workers), *_failures(seen.errors)]
    return tuple(sorted(found, key=lambda concern: concern.severity))


def _stale(report: SweepReport | None) -> Iterator[Concern]:
    if report is None:
        return
    limits = {TaskStatus.RUNNING: report.thresholds.running, TaskStatus.CLAIMED: report.thresholds.claimed}
    for status, limit in limits.items():
        silent = [task for task in report.tasks if task.state is status and task.last_beat_age is not None]
        if silent:
            yield Concern(
                key=f"stale {status}",
                severity=Severity.BAD if status is TaskStatus.RUNNING else Severity.WARN,
                text=f"{len(silent):,} {status} silent > {age(limit)}   {_about(silent)}",
                behind=TaskFilter(statuses=(status,), min_silence=limit),
            )


def _about(silent: Sequence[SweptTask]) -> str:
    """The longest silence, or where all of them would do no harm, that."""
    if all(task.decision is Decision.REQUEUE for task in silent):
        return "safe to requeue"
    worst = max(silent, key=lambda task: task.last_beat_age or timedelta(0))
    where = "" if worst.owner_state in (None, "running") else f"  worker {worst.owner_state}"
    return f"worst {worst.task_name} {short_id(worst.task_id)} {age(worst.last_beat_age)}{where}"


def _queues(queues: Sequence[QueueRow]) -> Iterator[Concern]:
    for queue in sorted(queues, key=lambda each: each.oldest_due_age or timedelta(0), reverse=True):
        if told := _told(queue):
            severity, text = told
            yield Concern(
                key=f"queue {queue.name}",
                severity=severity,
                text=f"queue {queue.name}: {text}",
                behind=TaskFilter(queues=(queue.name,), statuses=(TaskStatus.PENDING,)),
            )


def _told(queue: QueueRow) -> tuple[Severity, str] | None:
    """What is wrong with a queue in which something is due."""
    match queue_health(queue):
        case QueueHealth.NOBODY if queue.pending:
            waits = f"{queue.pending:,} waiting, the oldest for {age(queue.oldest_due_age)}"
            return Severity.BAD, f"nobody serves it, {waits}"
        case QueueHealth.PAUSED if queue.pending:
            by = f" by {queue.paused_by}" if queue.paused_by else ""
            why = f" ({queue.pause_reason})" if queue.pause_reason else ""
            return Severity.WARN, f"paused{by}{why}, {queue.pending:,} waiting for {age(queue.oldest_due_age)}"
        case QueueHealth.BACKLOG:
            waits = f"oldest wait {age(queue.oldest_due_age)} (target {age(TARGET_WAIT)})"
            return Severity.WARN, f"{waits}   {queue.pending:,} pending, {plural(queue.served_by, 'worker')}"
        case _:
            return None


def _workers(workers: Sequence[WorkerRow]) -> Iterator[Concern]:
    for worker in sorted(workers, key=lambda each: each.tasks_running + each.tasks_claimed, reverse=True):
        who = f"worker {short_id(worker.worker_id)} {worker.hostname}:{worker.pid}"
        held = worker.tasks_running + worker.tasks_claimed
        if worker.is_alive:
            yield from _complaints(worker, who)
        elif held or worker.heartbeat_age < FORGOTTEN_AFTER:
            seen = f"{who} {worker.standing}, last seen {age(worker.heartbeat_age)} ago"
            yield Concern(
                key=f"gone {worker.worker_id}",
                severity=Severity.BAD if held and worker.is_given_up else Severity.WARN,
                text=f"{seen}, holds {plural(held, 'task')}" if held else f"{seen}, holds nothing",
                behind=worker.worker_id,
            )


def _complaints(worker: WorkerRow, who: str) -> Iterator[Concern]:
    """What a live worker says is wrong with it."""
    failing = [f"{operation} keeps failing, and is tried rarely" for operation in worker.disabled_operations]
    for text in (*failing, *worker.warnings):
        yield Concern(
            key=f"says {worker.worker_id} {text}",
            severity=Severity.WARN,
            text=f"{who}: {text}",
            behind=worker.worker_id,
        )


def _failures(errors: Sequence[ErrorCount]) -> Iterator[Concern]:
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
    yield Concern(
        key="failures",
        severity=Severity.WARN,
        text=f"{plural(total, 'failure')} in 1h, {share} {code} in {name}",
        behind=wanted,
    )


# The system at one glance: how many tasks are where, how fast they go, and which queue is behind that.

SLOTS: Final = 16
MOST_QUEUES: Final = 7


class TaskCounts(Static):
    """How many there are of each state, and the age that matters in it."""

    def show(self, seen: Overview, *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = " Tasks "
        passed = now - seen.at
        counts = seen.counts
        completed = counts[TaskStatus.COMPLETED]
        rising = f"{glyphs.warn} +{_number(seen.failed_last_hour)} in 1h" if seen.failed_last_hour.number else ""
        lines = [
            _line("PENDING", _number(counts[TaskStatus.PENDING]), _aged("oldest", seen.oldest_due, passed)),
            _line("  due later", number(seen.delayed), _aged("next in", seen.next_due, -passed)),
            _line("CLAIMED", _number(counts[TaskStatus.CLAIMED]), _aged("oldest", seen.oldest_claimed, passed)),
            _line("RUNNING", _number(counts[TaskStatus.RUNNING]), _aged("longest", seen.longest_running, passed)),
            _line("FAILED 24h", _number(seen.failed_last_day), rising),
            _line("EXPIRED 24h", _number(seen.expired_last_day), ""),
            _line("COMPLETED", _number(completed), "(estimate)" if completed.is_estimate else ""),
        ]
        self.update(Content("\n").join([safe(line) for line in lines]))


class Pace(Static):
    """What was done and what failed in each minute, how long it took, and how much of the fleet is busy."""

    def show(
        self, seen: Overview | None, pace: Throughput | None, workers: Sequence[WorkerRow], *, glyphs: Glyphs
    ) -> None:
        self.border_title = " Last 30 min (per minute) "
        if seen is None or pace is None:
            return
        done = [float(bucket.done) for bucket in pace.buckets]
        failed = [float(bucket.failed) for bucket in pace.buckets]
        times = pace.times
        # What a worker that is gone holds takes up no room, and one child may run several tasks.
        alive = [worker for worker in workers if worker.is_alive]
        busy, slots = sum(worker.children_busy for worker in alive), sum(worker.processes for worker in alive)
        share = f" {busy / slots:.0%}" if slots else ""
        lines = [
            Content(f"done {spark(done, glyphs)} {seen.done_last_minute:>6,}"),
            Content(f"fail {spark(failed, glyphs)} {seen.failed_last_minute:>6,}"),
            Content(f"wait p50 {took(times.wait_p50)}  p95 {took(times.wait_p95)}"),
            Content(f"run  p50 {took(times.run_p50)}  p95 {took(times.run_p95)}"),
            Content(""),
            Content(f"slots {bar(busy, slots, SLOTS, glyphs)} {busy:,}/{slots:,}{share}"),
        ]
        self.update(Content("\n").join(lines))


class QueuePaces(Static):
    """The same for each of the busiest queues, in a line."""

    def show(self, buckets: Sequence[QueueBucket], *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = " Done by queue "
        by_queue: dict[str, list[QueueBucket]] = {}
        for bucket in buckets:
            by_queue.setdefault(bucket.queue, []).append(bucket)
        busiest = sorted(by_queue.items(), key=lambda item: sum(bucket.done for bucket in item[1]), reverse=True)
        lines = [_paced(name, found, now, glyphs) for name, found in busiest[:MOST_QUEUES]]
        self.update(Content("\n").join(lines))


def _line(what: str, count: str, remark: str) -> str:
    return f"{fit(what, 11)} {fit(count, 8, right=True)}  {remark}"


def _number(count: Count) -> str:
    return number(count.number, is_estimate=count.is_estimate, is_capped=count.is_capped)


def _aged(what: str, span: timedelta | None, passed: timedelta) -> str:
    """The age as it is now, `passed` after it was read."""
    return "" if span is None else f"{what} {age(span + passed)}"


def _paced(name: str, buckets: Sequence[QueueBucket], now: datetime, glyphs: Glyphs) -> Content:
    done = [0.0 if bucket is None else float(bucket.done) for bucket in placed(buckets, now)]
    # The last bucket is still open; the one before is the last whole minute.
    return Content.assemble(safe(fit(name, 10)), f" {spark(done[-20:], glyphs)} {done[-2]:>6,.0f}")


PARTS: Final = ("stale", "workers", "errors")
"""What is wanted for `Seen`, by the names of its fields."""

MOST_ACTIONS: Final = 8
ROOMY: Final = 120


class DashboardScreen(MainScreen):
    """Numbers above, the list of what needs attention in the middle, the operator log below."""

    place = Place.DASH
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.DASH)]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-small"), (80, "-usual"), (ROOMY, "-roomy")]  # noqa: RUF012  # Textual has it so
    overview_rest_s = 1.0

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.list: RowList[Concern] = RowList(
            _columns(desk.glyphs), key=lambda concern: concern.key, now=desk.clock.now, glyphs=desk.glyphs
        )
        self._seen = Seen()
        self._awaited = {OVERVIEW, *PARTS}
        self._overview: Overview | None = None
        self._pace: Throughput | None = None
        self._queue_pace: tuple[QueueBucket, ...] = ()

    def body(self) -> ComposeResult:
        with Horizontal(id="glance"):
            yield TaskCounts()
            yield Pace()
            yield QueuePaces()
        yield self.list
        yield Static(id="recent")

    def on_mount(self) -> None:
        self.query_one("#recent").border_title = " Recent operator actions "

    def wants(self) -> Sequence[Want]:
        beats = ANY_TASK | {Topic.BEATS, Topic.EVENT}
        return (
            Want(name="stale", fetch=lambda source: source.stale_candidates(), touched_by=beats, rest_s=5.0),
            Want(name="workers", fetch=workers_of, touched_by=beats, every_s=5.0, rest_s=2.0),
            Want(name="errors", fetch=lambda source: source.error_summary(HOUR), touched_by=ANY_TASK, rest_s=10.0),
            Want(name="pace", fetch=lambda source: source.throughput(WINDOW, BUCKETS), touched_by=ANY_TASK, rest_s=3.0),
            Want(name="queue pace", fetch=self._fetch_queue_pace, touched_by=ANY_TASK, rest_s=5.0),
            Want(name="audit", fetch=lambda source: source.audit(limit=MOST_ACTIONS), touched_by=beats, rest_s=2.0),
        )

    async def _fetch_queue_pace(self, source: Source) -> tuple[QueueBucket, ...]:
        """Only where there is room to show it."""
        return await source.queue_throughput(WINDOW, BUCKETS) if self.size.width >= ROOMY else ()

    def take(self, name: str, value: object) -> None:
        match name:
            case "overview":
                self._overview = overview = cast("Overview", value)
                self._seen = replace(self._seen, queues=overview.queues)
            case "pace":
                self._pace = cast("Throughput", value)
            case "queue pace":
                self._queue_pace = cast("tuple[QueueBucket, ...]", value)
            case "audit":
                self._show_log(cast("tuple[AuditRow, ...]", value))
            case _ if name in PARTS:
                part: dict[str, Any] = {name: value}
                self._seen = replace(self._seen, **part)
            case _:
                return
        self._awaited.discard(name)
        # Before all is known the cursor would settle on whatever happened to come first.
        if not self._awaited:
            self.list.show(attention(self._seen))
        self.tick()
        self._say()

    def tick(self) -> None:
        now, glyphs = self.desk.clock.now(), self.desk.glyphs
        if self._overview is not None:
            self.query_one(TaskCounts).show(self._overview, now=now, glyphs=glyphs)
        self.query_one(Pace).show(self._overview, self._pace, self._seen.workers, glyphs=glyphs)
        self.query_one(QueuePaces).show(self._queue_pace, now=now, glyphs=glyphs)

    def _show_log(self, rows: tuple[AuditRow, ...]) -> None:
        lines = [safe(log_line(row)) for row in reversed(rows)]
        self.query_one("#recent", Static).update(Content("\n").join(lines or [safe("none yet")]))

    def _say(self) -> None:
        if (seen := self._overview) is None:
            return
        alive = sum(worker.is_alive for worker in self._seen.workers)
        others = "".join(f" {count} {standing}" for standing, count in missing(self._seen.workers))
        flows = seen.workflows.get("RUNNING")
        self.say(
            "" if self.list.rows or self._awaited else "all is well",
            plural(len(seen.queues), "queue"),
            f"workers {alive} up{others}",
            ""
            if flows is None or not flows.number
            else f"flows {number(flows.number, is_capped=flows.is_capped)} running",
            f"data as of {clock(seen.at)}",
        )

    def on_row_list_opened(self) -> None:
        """Show the list behind the line."""
        match self.list.current:
            case Concern(behind=TaskFilter() as wanted):
                self.post_message(TasksWanted(wanted))
            case Concern(behind=UUID() as worker_id):
                self.post_message(WorkerWanted(worker_id))
            case _:
                return


def _columns(glyphs: Glyphs) -> tuple[Column[Concern], ...]:
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
