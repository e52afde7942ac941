"""Maintenance: what sweep and retention have to do, what the tables take up, and what operators did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

import humanize
from textual import work
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from horsies.errors import HorsiesError
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.retention import Category, Cleaned
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.recovery.report import SweepReport
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.events import AuditRow
from horsies_ops.reads.filters import TaskFilter, duration_text
from horsies_ops.reads.server import Storage
from horsies_ops.reads.workers import Upkeep
from horsies_tui.data.queries import Want
from horsies_tui.format import age, clean, clock, number, safe, short_age
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import TasksWanted
from horsies_tui.proposals.sweep import for_cleanup, for_sweep
from horsies_tui.screens.base import ANY_TASK
from horsies_tui.screens.entries import about, did, log_line, whole
from horsies_tui.screens.lists import ProposingScreen
from horsies_tui.system import save_rows
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies.recovery.report import SweptTask
    from horsies_ops.reads.server import TableStorage
    from horsies_tui.data.context import Desk
    from horsies_tui.data.source import Source
    from horsies_tui.proposals.model import Proposal


# What has to be done to keep the house in order: how much of it there is, who does it, and when it was last done.


class Part(StrEnum):
    """By which command it is done."""

    SWEEP = "sweep"
    CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """One line. What is not known yet is None."""

    key: str
    part: Part
    what: str
    matches: int | None = None
    oldest: timedelta | None = None
    last_at: datetime | None = None
    is_automatic: bool | None = None
    behind: TaskFilter | None = None
    """The rows it would take, where they are tasks that a filter can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What has been read so far."""

    sweep: SweepReport | None = None
    cleanup: Cleaned | None = None
    upkeep: Upkeep | None = None


_KEPT: Final = {
    "terminal records": (Category.TASKS, Category.WORKFLOWS),
    "heartbeats": (Category.HEARTBEATS,),
    "worker snapshots": (Category.WORKER_STATES, Category.WORKERS),
    "events": (Category.EVENTS,),
    "operator log": (Category.AUDIT,),
}


def chores(known: Known, now: datetime) -> list[Chore | Heading]:
    """Every line, in the order of the screen."""
    return [*_sweep_chores(known), Heading("Retention, as horsies cleanup"), *_retention(known, now)]


def _sweep_chores(known: Known) -> Iterator[Chore]:
    report, upkeep = known.sweep, known.upkeep
    config = upkeep.config if upkeep else None
    limits = report.thresholds if report else None
    last_at = upkeep.last_pass_at if upkeep else None
    lines = (
        (
            f"requeue stale CLAIMED  > {age(limits and limits.claimed)}",
            TaskStatus.CLAIMED,
            "auto_requeue_stale_claimed",
        ),
        (f"recover stale RUNNING  > {age(limits and limits.running)}", TaskStatus.RUNNING, "auto_fail_stale_running"),
        ("expire PENDING past good_until", TaskStatus.PENDING, None),
    )
    for what, state, switch in lines:
        due = [task for task in report.tasks if task.is_due and task.state is state] if report else None
        yield Chore(
            key=f"sweep {state}",
            part=Part.SWEEP,
            what=what,
            matches=None if due is None else len(due),
            oldest=max(map(_quiet, due or ()), default=None),
            last_at=last_at,
            is_automatic=config is not None and (switch is None or getattr(config, switch)) if upkeep else None,
        )
    yield Chore(
        key="sweep workflows",
        part=Part.SWEEP,
        what="repair workflows out of step",
        matches=len(report.workflows) if report else None,
        last_at=last_at,
        is_automatic=config is not None if upkeep else None,
    )


def _quiet(task: SweptTask) -> timedelta:
    return task.last_beat_age or task.overdue_by or timedelta(0)


def _retention(known: Known, now: datetime) -> Iterator[Chore]:
    upkeep = known.upkeep
    for name, categories in _KEPT.items():
        portions = [each for each in known.cleanup.portions if each.category in categories] if known.cleanup else []
        window = portions[0].window if portions else None
        oldest_at = min((each.oldest_at for each in portions if each.oldest_at is not None), default=None)
        # Beats go at each pass of a worker, the rest once an hour, and that only shows where something went.
        last_at = upkeep and (upkeep.last_pass_at if name == "heartbeats" else upkeep.last_retention_at)
        yield Chore(
            key=f"cleanup {name}",
            part=Part.CLEANUP,
            what=f"delete {name} older than {duration_text(window)}" if window else f"keep {name}",
            matches=sum(each.rows for each in portions) if window else None,
            oldest=None if oldest_at is None else now - oldest_at,
            last_at=last_at if window else None,
            is_automatic=upkeep.config is not None and window is not None if upkeep else None,
            behind=_ended(window) if window and Category.TASKS in categories else None,
        )


def _ended(window: timedelta) -> TaskFilter:
    return TaskFilter(statuses=tuple(sorted(TASK_TERMINAL_STATES)), older_than=window)


def _matches(chore: Chore) -> Cell:
    if chore.matches is None:
        return Cell("-", Tone.DIM)
    return Cell(number(chore.matches), Tone.WARN if chore.matches and chore.part is Part.SWEEP else Tone.PLAIN)


def _last(chore: Chore, now: datetime) -> Cell:
    return Cell("-" if chore.last_at is None else f"{short_age(now - chore.last_at)} ago", Tone.DIM)


def _policy(chore: Chore) -> Cell:
    if chore.is_automatic is None:
        return Cell("")
    return Cell("auto", Tone.GOOD) if chore.is_automatic else Cell("by hand", Tone.WARN)


CHORE_COLUMNS: Final[tuple[Column[Chore], ...]] = (
    Column(title="SWEEP, as horsies sweep", width=38, grows=1, cell=lambda chore, _: Cell(chore.what)),
    Column(title="MATCHES", width=9, right=True, cell=lambda chore, _: _matches(chore)),
    Column(title="OLDEST", width=7, right=True, cell=lambda chore, _: Cell(age(chore.oldest))),
    Column(title="LAST RUN", width=8, right=True, ticks=True, cell=_last),
    Column(title="POLICY", width=8, cell=lambda chore, _: _policy(chore)),
)


# The few lines on what our tables take up, and what keeps the server from tidying them.

NAMED: Final = 4
"""Of the tables, so many of the largest."""


class StoragePane(Static):
    """Sizes on the first line, what holds up the vacuum on the second."""

    def on_mount(self) -> None:
        self.border_title = " Storage "

    def show(self, storage: Storage, now: datetime) -> None:
        tables = "   ".join(_table(table, now) for table in storage.tables[:NAMED])
        self.update(Content("\n").join([safe(tables), safe(_server(storage))]))


def _table(table: TableStorage, now: datetime) -> str:
    name = table.name.removeprefix("horsies_")
    vacuum = "" if table.last_vacuum_at is None else f", vacuumed {short_age(now - table.last_vacuum_at)}"
    return f"{name} {humanize.naturalsize(table.bytes, gnu=True)}, {table.dead_share:.0%} dead{vacuum}"


def _server(storage: Storage) -> str:
    open_one = storage.longest_transaction
    longest = "none" if open_one is None else f"{age(open_one.age)} (pid {open_one.pid} {open_one.application_name})"
    return f"notify queue {storage.notify_queue:.1%} full   longest open transaction {longest}"


# The whole operator log, as far back as it is worth scrolling.

COLUMNS: Final = (
    Column[AuditRow](title="AT", width=11, cell=lambda row, _: Cell(f"{row.at:%m-%d %H:%M}", Tone.DIM)),
    Column[AuditRow](title="WHO", width=8, grows=1, cell=lambda row, _: Cell(row.actor)),
    Column[AuditRow](title="DID", width=8, grows=2, cell=lambda row, _: Cell(did(row))),
    Column[AuditRow](title="TO", width=12, grows=2, cell=lambda row, _: Cell(about(row))),
    Column[AuditRow](title="CHANGED", width=7, right=True, cell=lambda row, _: Cell(number(row.affected))),
    Column[AuditRow](title="SKIPPED", width=7, rank=2, right=True, cell=lambda row, _: Cell(number(row.skipped))),
    Column[AuditRow](title="VIA", width=7, rank=3, cell=lambda row, _: Cell(row.via, Tone.DIM)),
    Column[AuditRow](title="WHY", width=12, grows=3, rank=1, cell=lambda row, _: Cell(row.reason or "")),
)


class LogDialog(ModalScreen[None]):
    """The newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,l,enter", "leave", "close")]

    def __init__(self, desk: Desk, rows: Sequence[AuditRow]) -> None:
        super().__init__()
        self._rows = tuple(reversed(rows))
        self.list: RowList[AuditRow] = RowList(COLUMNS, key=lambda row: row.id, now=desk.clock.now, glyphs=desk.glyphs)

    def compose(self) -> ComposeResult:
        with Vertical(id="log"):
            yield self.list
            yield Static(id="log-row")

    def on_mount(self) -> None:
        self.query_one("#log").border_title = f"Operator log, the last {len(self._rows):,}"
        self.list.show(self._rows)

    def on_row_list_cursor_moved(self) -> None:
        """Say all about the row under the cursor: the columns have no room for it."""
        row = self.list.current
        self.query_one("#log-row", Static).update(
            Content("\n").join([safe(line) for line in whole(row)] if row is not None else [])
        )

    def on_row_list_opened(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        self.dismiss(None)


SHOWN: Final = 30
"""Actions of operators on this screen, where there is room for so many."""

WHOLE: Final = 1_000
"""As many as the whole log shows and the file has."""

_NEVER: Final = frozenset[Topic]()


class MaintenanceScreen(ProposingScreen):
    """Numbers are those of dry runs: what a sweep and a cleanup would do now."""

    place = Place.MAINT
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.MAINT)]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.known = Known()
        self.list: RowList[Chore] = RowList(
            CHORE_COLUMNS, key=lambda chore: chore.key, now=desk.clock.now, glyphs=desk.glyphs
        )
        self._counted_at: datetime | None = None

    def body(self) -> ComposeResult:
        yield self.list
        yield StoragePane()
        yield Static("", id="operator-log")

    def on_mount(self) -> None:
        self.query_one("#operator-log").border_title = " Operator log "

    def wants(self) -> Sequence[Want]:
        return (
            Want(name="sweep", fetch=_sweep, touched_by=ANY_TASK, rest_s=5.0),
            Want(name="upkeep", fetch=_upkeep, touched_by=frozenset({Topic.EVENT}), rest_s=5.0),
            # Counting what is old takes long in a large table.
            Want(name="cleanup", fetch=_cleanup, touched_by=_NEVER, every_s=60.0),
            Want(name="storage", fetch=_storage, touched_by=_NEVER, every_s=30.0),
            Want(name="log", fetch=_log, touched_by=ANY_TASK | {Topic.EVENT}, rest_s=2.0),
        )

    def take(self, name: str, value: object) -> None:
        now = self.desk.clock.now()
        match value:
            case SweepReport():
                self.known = replace(self.known, sweep=value)
            case Cleaned():
                self.known, self._counted_at = replace(self.known, cleanup=value), now
            case Upkeep():
                self.known = replace(self.known, upkeep=value)
            case Storage():
                self.query_one(StoragePane).show(value, now)
            case tuple() if name == "log":
                self._show_log(value)  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return
        self.list.show(chores(self.known, now))
        counted = "" if self._counted_at is None else f"those of retention as of {clock(self._counted_at)}"
        self.say("numbers are those of dry runs", counted, *self._warnings())

    def _warnings(self) -> tuple[str, ...]:
        upkeep, sweep = self.known.upkeep, self.known.sweep
        alone = ("no worker lives to do this by itself",) if upkeep is not None and upkeep.config is None else ()
        return (*alone, *(sweep.warnings if sweep is not None else ()))

    def _show_log(self, rows: tuple[AuditRow, ...]) -> None:
        lines = [safe(log_line(row)) for row in reversed(rows)]
        self.query_one("#operator-log", Static).update(Content("\n").join(lines) if lines else "nothing yet")

    def tick(self) -> None:
        self.list.tick()

    @property
    def _part(self) -> Part:
        """Which of the two the cursor is in."""
        current = self.list.current
        return Part.SWEEP if current is None else current.part

    def on_row_list_opened(self) -> None:
        """The rows that the line would take, where some screen lists them."""
        chore = self.list.current
        if chore is None:
            return
        if chore.behind is not None:
            self.post_message(TasksWanted(chore.behind))
        elif chore.key == "sweep workflows":
            self.app.call_later(self.app.run_action, f"go('{Place.FLOWS}')")
        elif chore.part is Part.SWEEP:
            self.app.call_later(self.app.run_action, f"go('{Place.STALE}')")
        else:
            self.notify("these rows have no list; d tells how many there are, and how large")

    def action_plan_dry(self) -> None:
        self.dry_run(self._cleaning if self._part is Part.CLEANUP else self._sweeping)

    def action_op_sweep(self) -> None:
        self.propose(self._sweeping)

    def action_op_cleanup(self) -> None:
        self.propose(self._cleaning)

    async def _sweeping(self, source: Source) -> Proposal:
        return await for_sweep(source, SweepOptions())

    async def _cleaning(self, source: Source) -> Proposal:
        return await for_cleanup(source, where=self.desk.database, now=self.desk.clock.now())

    @work(group="log", exclusive=True, exit_on_error=False)
    async def action_nav_events(self) -> None:
        """The whole operator log."""
        if (rows := await self._whole_log()) is not None:
            self.app.push_screen(LogDialog(self.desk, rows))

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Write the operator log into a file."""
        if (rows := await self._whole_log()) is not None:
            await save_rows(self, "log", rows, self.desk.clock.now())

    async def _whole_log(self) -> tuple[AuditRow, ...] | None:
        source = self.desk.source
        try:
            return None if source is None else await source.audit(limit=WHOLE)
        except HorsiesError as error:
            self.notify(clean(error.message), severity="error", markup=False)
            return None

    def action_copy_cli(self) -> None:
        self.copy(f"horsies {self._part} --dry-run", "the command")


async def _sweep(source: Source) -> SweepReport:
    return await source.stale_candidates()


async def _upkeep(source: Source) -> Upkeep:
    return await source.upkeep()


async def _cleanup(source: Source) -> Cleaned:
    return await source.cleanup_candidates()


async def _storage(source: Source) -> Storage:
    return await source.storage()


async def _log(source: Source) -> tuple[AuditRow, ...]:
    return await source.audit(limit=SHOWN)
