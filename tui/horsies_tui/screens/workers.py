"""Workers: load, held tasks and state of each worker; recovering the tasks of lost ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from textual.app import ComposeResult

from horsies.model.recovery.fleet import MAX_GAP_INTERVALS, SweepOptions
from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import TaskOrder, TaskSummary
from horsies_ops.reads.workers import SnapshotRow, WorkerRow
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.fleet import (
    HOT_PERCENT,
    WorkerHealth,
    count_alive,
    count_without_heartbeat,
    load_workers,
    worker_health,
)
from horsies_tui.format import fit, format_age, format_day_time, format_short_age, format_time, plural, short_id
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.model import ProposalFactory
from horsies_tui.proposals.sweep import propose_sweep
from horsies_tui.screens.base import TASK_TOPICS, ShowTasks
from horsies_tui.screens.lists import ListScreen, ProposalRunner, Sorting
from horsies_tui.screens.tasks.table import silence
from horsies_tui.theme import Glyph, downsample, sparkline
from horsies_tui.widgets.dialogs import SortOrder
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, Tone

CHART_WIDTH: Final = 30
WIDE_CHART_WIDTH: Final = 90
"""From 140 columns on."""
MAX_HELD_TASKS: Final = 40
TASK_WIDTH: Final = 38
"""Width of one held task in the detail pane."""

CHART_WINDOWS: Final = tuple(timedelta(minutes=minutes) for minutes in (5, 15, 30, 60, 360, 1440))
"""The time windows of the charts, from which `[` and `]` choose."""

# Columns and sort orders

_STATES: Final = {
    WorkerHealth.RUNNING: Cell("running", Tone.DIM),
    WorkerHealth.STARTING: Cell("starting", Tone.BUSY),
    WorkerHealth.HOT: Cell("hot", Tone.WARN, glyph=Glyph.WARN),
    WorkerHealth.DEGRADED: Cell("degraded", Tone.WARN, glyph=Glyph.WARN),
    WorkerHealth.DRAINING: Cell("draining", Tone.DIM, glyph=Glyph.PAUSED),
    WorkerHealth.LATE: Cell("late", Tone.WARN, glyph=Glyph.WARN),
    WorkerHealth.SILENT: Cell("silent", Tone.WARN, glyph=Glyph.WARN),
    WorkerHealth.STALE: Cell("stale", Tone.BAD, glyph=Glyph.BAD),
    WorkerHealth.LOST: Cell("lost", Tone.BAD, glyph=Glyph.BAD),
    WorkerHealth.STOPPED: Cell("stopped", Tone.DIM),
}

WORKER_SORT_KEYS: Final[Mapping[str, Callable[[WorkerRow, datetime], Any]]] = {
    "HOST": lambda worker, _: (worker.hostname, worker.pid, worker.worker_id),
    "RUN": lambda worker, _: worker.tasks_running,
    "CPU": lambda worker, _: worker.cpu_percent or 0.0,
    "MEM": lambda worker, _: worker.memory_percent or 0.0,
    "BEAT": lambda worker, now: now - worker.last_heartbeat_at,
    "UP": lambda worker, now: now - worker.started_at,
    "STATE": lambda worker, _: list(WorkerHealth).index(worker_health(worker)),
}


def _percent_text(value: float) -> str:
    return f"{value:.1f}%" if value < 9.95 else f"{value:.0f}%"


def _percent(value: float | None) -> Cell:
    if value is None:
        return Cell("-", Tone.DIM)
    return Cell(_percent_text(value), Tone.WARN if value >= HOT_PERCENT else Tone.PLAIN)


def _heartbeat_cell(worker: WorkerRow, now: datetime) -> Cell:
    age = now - worker.last_heartbeat_at
    if not worker.is_responsive:
        return Cell(format_age(age), Tone.BAD)
    return Cell(format_age(age), Tone.WARN if age > MAX_GAP_INTERVALS * worker.heartbeat_interval else Tone.PLAIN)


WORKER_COLUMNS: Final[tuple[Column[WorkerRow], ...]] = (
    Column("WORKER", 8, lambda worker: short_id(worker.worker_id)),
    Column("HOST:PID", 12, lambda worker: f"{worker.hostname}:{worker.pid}", grows=2),
    Column("QUEUES", 9, lambda worker: ",".join(worker.queues), grows=3, drop_rank=3),
    # Not the same: a process that runs coroutines, or several short tasks at once, is one busy slot.
    Column("SLOTS", 5, lambda worker: f"{worker.children_busy}/{worker.processes}", right=True),
    Column("RUN", 4, lambda worker: str(worker.tasks_running), right=True, drop_rank=2),
    Column("CLM", 3, lambda worker: str(worker.tasks_claimed), right=True, drop_rank=2),
    Column("CPU", 4, lambda worker: _percent(worker.cpu_percent), right=True, drop_rank=1),
    Column("MEM", 4, lambda worker: _percent(worker.memory_percent), right=True, drop_rank=1),
    Column("BEAT", 6, value_at=_heartbeat_cell, right=True),
    Column("UP", 4, value_at=lambda worker, now: format_short_age(now - worker.started_at), right=True, drop_rank=4),
    Column("STATE", 10, lambda worker: _STATES[worker_health(worker)]),
)


# Detail pane


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDetail:
    """What the detail pane shows besides the row itself."""

    worker_id: UUID
    window: timedelta
    snapshots: tuple[SnapshotRow, ...]
    tasks: tuple[TaskSummary, ...]
    """Oldest first, at most MAX_HELD_TASKS."""


async def load_worker_detail(source: DataSource, worker_id: UUID, window: timedelta) -> WorkerDetail:
    held = TaskFilter(worker_id=str(worker_id), statuses=(TaskStatus.CLAIMED, TaskStatus.RUNNING))
    page = await source.list_tasks(held, order=TaskOrder.OLDEST_FIRST, limit=MAX_HELD_TASKS)
    snapshots = await source.worker_history(worker_id, window)
    return WorkerDetail(worker_id=worker_id, window=window, snapshots=snapshots, tasks=page.tasks)


def detail_lines(worker: WorkerRow, detail: WorkerDetail, now: datetime, *, width: int) -> list[str]:
    """Warnings, load charts and held tasks of one worker."""
    return [
        *_warning_lines(worker, now),
        *_chart_lines(detail, WIDE_CHART_WIDTH if width >= 140 else CHART_WIDTH),
        *_task_lines(worker, detail.tasks, now, width=width),
    ]


def _task_lines(worker: WorkerRow, tasks: Sequence[TaskSummary], now: datetime, *, width: int) -> list[str]:
    """List the held tasks, as many side by side as fit."""
    count = worker.tasks_running + worker.tasks_claimed
    per_line = max((width - 2) // TASK_WIDTH, 1)
    texts = [
        f"{short_id(task.id)} {fit(task.name, 12)} {fit(task.status, 7)} "
        f"{fit(format_age(silence(task, now)), 6, right=True)}"
        for task in tasks
    ]
    lines = ["  ".join(texts[start : start + per_line]) for start in range(0, len(texts), per_line)]
    return [f"holds {plural(count, 'task')}:" if count else "holds no tasks", *lines]


def _pane_title(worker: WorkerRow) -> str:
    who = f"{short_id(worker.worker_id)}  {worker.hostname}:{worker.pid}"
    started = format_day_time(worker.started_at)
    return f"{who}   horsies {worker.version}   started {started}   queues {', '.join(worker.queues)}"


def _warning_lines(worker: WorkerRow, now: datetime) -> list[str]:
    lines = [f"! {warning}" for warning in worker.problems]
    if worker.is_silent and not worker.is_presumed_dead:
        lines.append(f"! silent since {format_time(worker.last_heartbeat_at)}: it may be dead")
    if worker.outage_grace_until is not None and worker.outage_grace_until > now:
        lines.append(f"outage grace until {format_time(worker.outage_grace_until)}: no recovery decisions before then")
    return lines


def _chart_lines(detail: WorkerDetail, chart_width: int) -> list[str]:
    if not detail.snapshots:
        return [f"no snapshot in the last {format_age(detail.window)}"]
    newest = detail.snapshots[-1]
    running = [float(snapshot.tasks_running) for snapshot in detail.snapshots]
    cpu = [snapshot.cpu_percent or 0.0 for snapshot in detail.snapshots]
    memory = [snapshot.memory_percent or 0.0 for snapshot in detail.snapshots]
    slots = float(max(snapshot.processes for snapshot in detail.snapshots))
    last = f"{plural(newest.tasks_running, 'task')}   last snapshot {format_time(newest.at)}"
    megabytes = "" if newest.memory_mb is None else f"   {newest.memory_mb:,.0f} MB with its children"
    return [
        f"running  {sparkline(downsample(running, chart_width), top=slots)}  {last}",
        f"cpu      {sparkline(downsample(cpu, chart_width), top=100.0)}  {_percent_text(cpu[-1])}",
        f"mem      {sparkline(downsample(memory, chart_width), top=100.0)}  {_percent_text(memory[-1])}{megabytes}",
    ]


class WorkersScreen(ListScreen[WorkerRow], scope=ScreenId.WORKERS):
    """List of workers with a detail pane for the worker under the cursor."""

    no_rows_text = """No worker is running: tasks will wait.
Start one with: horsies worker
Healthy: STATE is running, and BEAT starts again every few seconds."""

    def __init__(self, context: AppContext) -> None:
        sorting = Sorting(WORKER_SORT_KEYS, SortOrder(column="HOST", is_descending=False))
        super().__init__(context, WORKER_COLUMNS, key=lambda worker: worker.worker_id, sorting=sorting)
        self.proposals = ProposalRunner(self)
        self.window = CHART_WINDOWS[2]
        self._detail: WorkerDetail | None = None
        self._pending_worker_id: UUID | None = None

    def body(self) -> ComposeResult:
        yield self.filter_bar
        yield self.list
        yield Pane(name="worker-detail", classes="detail")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.HEARTBEATS, Topic.EVENT}
        return (
            LiveQuery("workers", load_workers, self._show_workers, topics, poll_s=5.0, min_interval_s=1.0),
            LiveQuery("detail", self._fetch_detail, self._show_worker_detail, topics, poll_s=5.0, min_interval_s=1.0),
        )

    async def _fetch_detail(self, source: DataSource) -> WorkerDetail | None:
        worker = self.list.current
        return None if worker is None else await load_worker_detail(source, worker.worker_id, self.window)

    def _show_workers(self, workers: tuple[WorkerRow, ...]) -> None:
        self.show_rows(workers)
        self._move_to_pending()

    def _show_worker_detail(self, detail: WorkerDetail | None) -> None:
        self._detail = detail or self._detail
        self.show_detail()

    def is_excluded(self, row: WorkerRow) -> bool:
        return not row.is_responsive

    def show_worker(self, worker_id: UUID) -> None:
        """Move the cursor to this worker, as soon as it is loaded."""
        # The worker may be lost: those must not be hidden now.
        self._pending_worker_id, self.hides_excluded = worker_id, False
        self.show_rows(self.rows)
        self._move_to_pending()

    def _move_to_pending(self) -> None:
        index = None if self._pending_worker_id is None else self.list.selection.index_of(self._pending_worker_id)
        if index is not None:
            self._pending_worker_id = None
            self.list.move_to(index)

    def show_detail(self) -> None:
        worker, detail, now = self.list.current, self._detail, self.context.clock.now()
        lines = list[str]
        # The detail query follows the cursor: until it has run, the detail is that of the previous row.
        if worker is not None and detail is not None and detail.worker_id == worker.worker_id:
            lines = partial(detail_lines, worker, detail, now, width=self.size.width)
        self.show_pane("worker-detail", lines, title="" if worker is None else _pane_title(worker))

    def update_status(self) -> None:
        responsive = [worker for worker in self.rows if worker.is_responsive]
        busy, slots = sum(worker.children_busy for worker in responsive), sum(worker.processes for worker in responsive)
        self.set_status(
            f"{count_alive(self.rows)} up",
            *(
                f"{count} {state}" + (" (hidden)" if self.hides_excluded and state != WorkerHealth.LATE else "")
                for state, count in count_without_heartbeat(self.rows)
            ),
            f"{busy:,} of {slots:,} slots busy",
            f"[ ] window {format_short_age(self.window)}",
            self.order_text,
        )

    def on_row_list_opened(self) -> None:
        if (worker := self.list.current) is not None:
            self.post_message(ShowTasks(TaskFilter(worker_id=str(worker.worker_id))))

    def proposal(self, verb: str) -> ProposalFactory | None:
        """Recover the tasks of this worker: a sweep limited to them."""
        del verb  # `requeue`
        worker = self.list.current
        return worker and partial(propose_sweep, options=SweepOptions(worker_id=worker.worker_id))

    def action_nav_prev(self) -> None:
        self._set_window(max((window for window in CHART_WINDOWS if window < self.window), default=CHART_WINDOWS[0]))

    def action_nav_next(self) -> None:
        self._set_window(min((window for window in CHART_WINDOWS if window > self.window), default=CHART_WINDOWS[-1]))

    def _set_window(self, window: timedelta) -> None:
        self.window = window
        self.update_status()
        self.context.queries.refresh("detail")

    def action_copy_id(self) -> None:
        if (worker := self.list.current) is not None:
            self.copy_text(str(worker.worker_id), "the id")
