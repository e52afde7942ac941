"""Workers: how loaded they are, what they hold, and which of them are no more."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from textual.content import Content
from textual.widgets import Static

from horsies.model.recovery.fleet import SweepOptions
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.workers import WorkerRow
from horsies_tui.data.queries import Want
from horsies_tui.format import age, clock, day_and_time, fit, safe, short_age, short_id
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import TasksWanted
from horsies_tui.proposals.sweep import for_sweep
from horsies_tui.screens.base import ANY_TASK
from horsies_tui.screens.fleet import HOT_PERCENT, WorkerHealth, missing, worker_health, workers_of
from horsies_tui.screens.fleet_details import WorkerDetail, worker_detail
from horsies_tui.screens.lists import SortedScreen
from horsies_tui.screens.tasks.table import silence
from horsies_tui.theme import sampled, spark
from horsies_tui.widgets.row_list import Cell, Column, Tone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.tasks import TaskSummary
    from horsies_tui.data.context import Desk
    from horsies_tui.data.source import Source
    from horsies_tui.proposals.model import Proposal
    from horsies_tui.theme import Glyphs


# Workers in columns, and the orders that they can be put in.

_TONES = {
    WorkerHealth.RUNNING: Tone.GOOD,
    WorkerHealth.STARTING: Tone.BUSY,
    WorkerHealth.HOT: Tone.WARN,
    WorkerHealth.DRAINING: Tone.DIM,
    WorkerHealth.SILENT: Tone.WARN,
    WorkerHealth.STALE: Tone.BAD,
    WorkerHealth.LOST: Tone.BAD,
    WorkerHealth.STOPPED: Tone.DIM,
}

WORKER_SORTS: Final[Mapping[str, Callable[[WorkerRow], Any]]] = {
    "HOST": lambda worker: (worker.hostname, worker.pid, worker.worker_id),
    "RUN": lambda worker: worker.tasks_running,
    "CPU": lambda worker: worker.cpu_percent or 0.0,
    "MEM": lambda worker: worker.memory_percent or 0.0,
    "BEAT": lambda worker: -worker.last_heartbeat_at.timestamp(),
    "UP": lambda worker: -worker.started_at.timestamp(),
    "STATE": lambda worker: list(WorkerHealth).index(worker_health(worker)),
}


def worker_columns(glyphs: Glyphs) -> tuple[Column[WorkerRow], ...]:
    signs = {
        WorkerHealth.HOT: glyphs.warn,
        WorkerHealth.DRAINING: glyphs.paused,
        WorkerHealth.SILENT: glyphs.warn,
        WorkerHealth.STALE: glyphs.bad,
        WorkerHealth.LOST: glyphs.bad,
    }

    def state(worker: WorkerRow, _: datetime) -> Cell:
        health = worker_health(worker)
        return Cell(f"{signs[health]} {health}" if health in signs else health, _TONES[health])

    return (
        Column(title="WORKER", width=8, cell=lambda worker, _: Cell(short_id(worker.worker_id))),
        Column(title="HOST:PID", width=12, grows=2, cell=lambda worker, _: Cell(f"{worker.hostname}:{worker.pid}")),
        Column(title="QUEUES", width=9, grows=3, rank=3, cell=lambda worker, _: Cell(",".join(worker.queues))),
        Column(
            # Tasks and processes: one that runs coroutines has several tasks.
            title="RUN/PROC", width=8, right=True,
            cell=lambda worker, _: Cell(f"{worker.tasks_running}/{worker.processes}"),
        ),
        Column(title="CLM", width=3, right=True, rank=2, cell=lambda worker, _: Cell(str(worker.tasks_claimed))),
        Column(title="CPU", width=4, right=True, rank=1, cell=lambda worker, _: _percent(worker.cpu_percent)),
        Column(title="MEM", width=4, right=True, rank=1, cell=lambda worker, _: _percent(worker.memory_percent)),
        Column(title="BEAT", width=6, right=True, ticks=True, cell=_silent),
        Column(
            title="UP", width=4, right=True, rank=4, ticks=True,
            cell=lambda worker, now: Cell(short_age(now - worker.started_at)),
        ),
        Column(title="STATE", width=10, cell=state),
    )  # fmt: skip


def _percent(value: float | None) -> Cell:
    if value is None:
        return Cell("-", Tone.DIM)
    return Cell(f"{value:.0f}%", Tone.WARN if value >= HOT_PERCENT else Tone.PLAIN)


def _silent(worker: WorkerRow, now: datetime) -> Cell:
    return Cell(age(now - worker.last_heartbeat_at), Tone.PLAIN if worker.is_alive else Tone.BAD)


# The lines below the list that say more about the worker under the cursor.

CHART: Final = 30
NARROW: Final = 38
"""A task that is held takes so many columns."""


class WorkerView(Static):
    """Charts of its load, and the tasks that it holds."""

    def show(self, worker: WorkerRow | None, detail: WorkerDetail | None, *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = safe("" if worker is None else _title(worker), cells=max(self.size.width - 4, 20))
        if worker is None or detail is None or detail.worker_id != worker.worker_id:
            self.update("")
            return
        lines = [*_said(worker, now), *_charts(detail, glyphs), *self._held(worker, detail.held, now)]
        self.update(Content("\n").join([safe(line) for line in lines]))

    def _held(self, worker: WorkerRow, held: Sequence[TaskSummary], now: datetime) -> list[str]:
        """As many tasks side by side as there is room for."""
        count = worker.tasks_running + worker.tasks_claimed
        beside = max((self.size.width - 2) // NARROW, 1)
        tasks = [_task(task, now) for task in held]
        rows = ["  ".join(tasks[start : start + beside]) for start in range(0, len(tasks), beside)]
        return [f"holds {count:,}" + (" tasks:" if count != 1 else " task:") if count else "holds nothing", *rows]


def _title(worker: WorkerRow) -> str:
    who = f"{short_id(worker.worker_id)}  {worker.hostname}:{worker.pid}"
    started = day_and_time(worker.started_at)
    return f" {who}   horsies {worker.version}   started {started}   queues {', '.join(worker.queues)} "


def _said(worker: WorkerRow, now: datetime) -> list[str]:
    """What it says about itself, or no longer says, where that is worth a line."""
    lines = [f"! {operation} keeps failing, and is tried rarely" for operation in worker.disabled_operations]
    lines += [f"! {warning}" for warning in worker.warnings]
    if worker.is_silent and not worker.is_given_up:
        lines.append(f"! silent since {clock(worker.last_heartbeat_at)}: it may be dead")
    if worker.amnesty_until is not None and worker.amnesty_until > now:
        lines.append(f"amnesty until {clock(worker.amnesty_until)}: it has not listened long enough to condemn anyone")
    return lines


def _charts(detail: WorkerDetail, glyphs: Glyphs) -> list[str]:
    if not detail.history:
        return [f"no snapshot in the last {age(detail.window)}"]
    newest = detail.history[-1]
    running = [float(each.tasks_running) for each in detail.history]
    cpu = [each.cpu_percent or 0.0 for each in detail.history]
    memory = [each.memory_percent or 0.0 for each in detail.history]
    slots = float(max(each.processes for each in detail.history))
    last = f"{newest.tasks_running}/{newest.processes}   last snapshot {clock(newest.at)}"
    megabytes = "" if newest.memory_mb is None else f"   {newest.memory_mb:,.0f} MB in all"
    return [
        f"running  {spark(sampled(running, CHART), glyphs, top=slots)}  {last}",
        f"cpu      {spark(sampled(cpu, CHART), glyphs, top=100.0)}  {cpu[-1]:.0f}%",
        f"mem      {spark(sampled(memory, CHART), glyphs, top=100.0)}  {memory[-1]:.0f}%{megabytes}",
    ]


def _task(task: TaskSummary, now: datetime) -> str:
    silent = age(silence(task, now))
    return f"{short_id(task.id)} {fit(task.name, 12)} {fit(task.status, 7)} {fit(silent, 6, right=True)}"


WINDOWS: Final = tuple(timedelta(minutes=minutes) for minutes in (5, 15, 30, 60, 360, 1440))
"""The stretches of time that the charts can show."""


class WorkersScreen(SortedScreen[WorkerRow]):
    """The list, and below it the load of the worker under the cursor and the tasks that it holds."""

    place = Place.WORKERS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.WORKERS)]
    sorts = WORKER_SORTS

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs, worker_columns(desk.glyphs), key=lambda worker: worker.worker_id)
        self.order = self.order.picked(self.order.by)  # hosts by their names
        self.window = WINDOWS[2]
        self._detail: WorkerDetail | None = None
        self._hides_gone = False
        self._wanted: UUID | None = None

    def body(self) -> ComposeResult:
        yield self.narrowing
        yield self.list
        yield WorkerView(classes="detail")

    def wants(self) -> Sequence[Want]:
        moves = ANY_TASK | {Topic.BEATS, Topic.EVENT}
        return (
            Want(name="workers", fetch=workers_of, touched_by=moves, every_s=5.0, rest_s=1.0),
            Want(name="detail", fetch=self._fetch_detail, touched_by=moves, every_s=5.0, rest_s=1.0),
        )

    async def _fetch_detail(self, source: Source) -> WorkerDetail | None:
        worker = self.list.current
        return None if worker is None else await worker_detail(source, worker.worker_id, self.window)

    def take(self, name: str, value: object) -> None:
        if name == "workers":
            self.show_rows(cast("tuple[WorkerRow, ...]", value))
            self._go_to_wanted()
            self._say()
        elif isinstance(value, WorkerDetail):
            self._detail = value
        self.show_detail()

    def shown(self, rows: Sequence[WorkerRow]) -> Sequence[WorkerRow]:
        return [worker for worker in rows if worker.is_alive] if self._hides_gone else rows

    def show_worker(self, worker_id: UUID) -> None:
        """Put the cursor on this worker, as soon as it is there."""
        self._wanted, self._hides_gone = worker_id, False
        self.show_rows(self._rows)
        self._go_to_wanted()

    def _go_to_wanted(self) -> None:
        line = None if self._wanted is None else self.list.selection.position(self._wanted)
        if line is not None:
            self._wanted = None
            self.list.move_to(line)

    def show_detail(self) -> None:
        self.query_one(WorkerView).show(
            self.list.current, self._detail, now=self.desk.clock.now(), glyphs=self.desk.glyphs
        )

    def _say(self) -> None:
        alive = [worker for worker in self._rows if worker.is_alive]
        busy, slots = sum(each.children_busy for each in alive), sum(each.processes for each in alive)
        hidden = " (hidden)" if self._hides_gone else ""
        self.say(
            f"{len(alive)} up",
            *(f"{count} {standing}{hidden}" for standing, count in missing(self._rows)),
            f"{busy:,} of {slots:,} slots busy",
            f"[ ] window {short_age(self.window)}",
            str(self.order),
        )

    def on_row_list_opened(self) -> None:
        if (worker := self.list.current) is not None:
            self.post_message(TasksWanted(TaskFilter(worker_id=str(worker.worker_id))))

    def action_op_requeue(self) -> None:
        """The sweep, limited to what this worker holds."""
        if (worker := self.list.current) is None:
            self.notify("no worker to sweep after")
            return
        options = SweepOptions(worker_id=worker.worker_id)

        def proposal(source: Source) -> Awaitable[Proposal]:
            return for_sweep(source, options)

        self.propose(proposal)

    def action_view_exclude(self) -> None:
        self._hides_gone = not self._hides_gone
        self.show_rows(self._rows)
        self._say()

    def action_nav_prev(self) -> None:
        self._look_back(max((each for each in WINDOWS if each < self.window), default=WINDOWS[0]))

    def action_nav_next(self) -> None:
        self._look_back(min((each for each in WINDOWS if each > self.window), default=WINDOWS[-1]))

    def _look_back(self, window: timedelta) -> None:
        self.window = window
        self._say()
        self.desk.store.refresh("detail")

    def action_copy_id(self) -> None:
        if (worker := self.list.current) is not None:
            self.copy(str(worker.worker_id), "the id")
