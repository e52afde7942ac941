"""Maintenance: what sweep and retention have to do, what the tables take up, and what operators did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Final

import humanize
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from horsies.errors import HorsiesError
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.retention import CleanupSummary, RetentionCategory
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.recovery.report import SweepReport, SweptTask
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.events import AuditRow
from horsies_ops.reads.filters import TaskFilter, format_duration
from horsies_ops.reads.server import Storage, TableStorage
from horsies_ops.reads.workers import MaintenanceStatus
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_age, format_count, format_short_age, format_time, safe, sanitize
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import ShowTasks
from horsies_tui.proposals.model import Proposal
from horsies_tui.proposals.sweep import propose_cleanup, propose_sweep
from horsies_tui.screens.base import TASK_TOPICS
from horsies_tui.screens.entries import action_text, entry_lines, log_line, target_text
from horsies_tui.screens.lists import ProposingScreen
from horsies_tui.system import save_rows
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

# What has to be done to keep the house in order: how much of it there is, who does it, and when it was last done.


class MaintenanceCommand(StrEnum):
    """By which command it is done."""

    SWEEP = "sweep"
    CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceItem:
    """One line. What is not known yet is None."""

    key: str
    command: MaintenanceCommand
    description: str
    matches: int | None = None
    oldest: timedelta | None = None
    last_at: datetime | None = None
    is_automatic: bool | None = None
    task_filter: TaskFilter | None = None
    """The rows it would take, where they are tasks that a filter can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceData:
    """What has been read so far."""

    sweep: SweepReport | None = None
    cleanup: CleanupSummary | None = None
    maintenance_status: MaintenanceStatus | None = None


_RETENTION_GROUPS: Final = {
    "terminal records": (RetentionCategory.TASKS, RetentionCategory.WORKFLOWS),
    "heartbeats": (RetentionCategory.HEARTBEATS,),
    "worker snapshots": (RetentionCategory.WORKER_STATES, RetentionCategory.WORKERS),
    "events": (RetentionCategory.EVENTS,),
    "operator log": (RetentionCategory.AUDIT,),
}


def maintenance_items(known: MaintenanceData, now: datetime) -> list[MaintenanceItem | Heading]:
    """Every line, in the order of the screen."""
    return [*_sweep_chores(known), Heading("Retention, as horsies cleanup"), *_retention_items(known, now)]


def _sweep_chores(known: MaintenanceData) -> Iterator[MaintenanceItem]:
    report, upkeep = known.sweep, known.maintenance_status
    config = upkeep.config if upkeep else None
    limits = report.thresholds if report else None
    last_at = upkeep.last_pass_at if upkeep else None
    lines = (
        (
            f"requeue stale CLAIMED  > {format_age(limits and limits.claimed)}",
            TaskStatus.CLAIMED,
            "auto_requeue_stale_claimed",
        ),
        (
            f"recover stale RUNNING  > {format_age(limits and limits.running)}",
            TaskStatus.RUNNING,
            "auto_fail_stale_running",
        ),
        ("expire PENDING past good_until", TaskStatus.PENDING, None),
    )
    for what, state, switch in lines:
        due = [task for task in report.tasks if task.changes_state and task.state is state] if report else None
        yield MaintenanceItem(
            key=f"sweep {state}",
            command=MaintenanceCommand.SWEEP,
            description=what,
            matches=None if due is None else len(due),
            oldest=max(map(_silence, due or ()), default=None),
            last_at=last_at,
            is_automatic=config is not None and (switch is None or getattr(config, switch)) if upkeep else None,
        )
    yield MaintenanceItem(
        key="sweep workflows",
        command=MaintenanceCommand.SWEEP,
        description="repair workflows out of step",
        matches=len(report.workflows) if report else None,
        last_at=last_at,
        is_automatic=config is not None if upkeep else None,
    )


def _silence(task: SweptTask) -> timedelta:
    return task.heartbeat_age or task.overdue_by or timedelta(0)


def _retention_items(known: MaintenanceData, now: datetime) -> Iterator[MaintenanceItem]:
    upkeep = known.maintenance_status
    for name, categories in _RETENTION_GROUPS.items():
        portions = [each for each in known.cleanup.categories if each.category in categories] if known.cleanup else []
        window = portions[0].window if portions else None
        oldest_at = min((each.oldest_at for each in portions if each.oldest_at is not None), default=None)
        # Beats go at each pass of a worker, the rest once an hour, and that only shows where something went.
        last_at = upkeep and (upkeep.last_pass_at if name == "heartbeats" else upkeep.last_retention_at)
        yield MaintenanceItem(
            key=f"cleanup {name}",
            command=MaintenanceCommand.CLEANUP,
            description=f"delete {name} older than {format_duration(window)}" if window else f"keep {name}",
            matches=sum(each.rows for each in portions) if window else None,
            oldest=None if oldest_at is None else now - oldest_at,
            last_at=last_at if window else None,
            is_automatic=upkeep.config is not None and window is not None if upkeep else None,
            task_filter=_finished_filter(window) if window and RetentionCategory.TASKS in categories else None,
        )


def _finished_filter(window: timedelta) -> TaskFilter:
    return TaskFilter(statuses=tuple(sorted(TASK_TERMINAL_STATES)), older_than=window)


def _matches(chore: MaintenanceItem) -> Cell:
    if chore.matches is None:
        return Cell("-", Tone.DIM)
    return Cell(
        format_count(chore.matches),
        Tone.WARN if chore.matches and chore.command is MaintenanceCommand.SWEEP else Tone.PLAIN,
    )


def _last(chore: MaintenanceItem, now: datetime) -> Cell:
    return Cell("-" if chore.last_at is None else f"{format_short_age(now - chore.last_at)} ago", Tone.DIM)


def _policy(chore: MaintenanceItem) -> Cell:
    if chore.is_automatic is None:
        return Cell("")
    return Cell("auto", Tone.GOOD) if chore.is_automatic else Cell("by hand", Tone.WARN)


MAINTENANCE_COLUMNS: Final[tuple[Column[MaintenanceItem], ...]] = (
    Column(title="SWEEP, as horsies sweep", width=38, grows=1, cell=lambda chore, _: Cell(chore.description)),
    Column(title="MATCHES", width=9, right=True, cell=lambda chore, _: _matches(chore)),
    Column(title="OLDEST", width=7, right=True, cell=lambda chore, _: Cell(format_age(chore.oldest))),
    Column(title="LAST RUN", width=8, right=True, ticks=True, cell=_last),
    Column(title="POLICY", width=8, cell=lambda chore, _: _policy(chore)),
)


# The few lines on what our tables take up, and what keeps the server from tidying them.

MAX_TABLES: Final = 4
"""Of the tables, so many of the largest."""


class StoragePane(Static):
    """Sizes on the first line, what holds up the vacuum on the second."""

    def on_mount(self) -> None:
        self.border_title = " Storage "

    def show(self, storage: Storage, now: datetime) -> None:
        tables = "   ".join(_table(table, now) for table in storage.tables[:MAX_TABLES])
        self.update(Content("\n").join([safe(tables), safe(_server(storage))]))


def _table(table: TableStorage, now: datetime) -> str:
    name = table.name.removeprefix("horsies_")
    vacuum = "" if table.last_vacuum_at is None else f", vacuumed {format_short_age(now - table.last_vacuum_at)}"
    return f"{name} {humanize.naturalsize(table.bytes, gnu=True)}, {table.dead_share:.0%} dead{vacuum}"


def _server(storage: Storage) -> str:
    open_one = storage.longest_transaction
    longest = (
        "none" if open_one is None else f"{format_age(open_one.age)} (pid {open_one.pid} {open_one.application_name})"
    )
    return f"notify queue {storage.notify_queue_usage:.1%} full   longest open transaction {longest}"


# The whole operator log, as far back as it is worth scrolling.

LOG_COLUMNS: Final = (
    Column[AuditRow](title="AT", width=11, cell=lambda row, _: Cell(f"{row.at:%m-%d %H:%M}", Tone.DIM)),
    Column[AuditRow](title="WHO", width=8, grows=1, cell=lambda row, _: Cell(row.actor)),
    Column[AuditRow](title="DID", width=8, grows=2, cell=lambda row, _: Cell(action_text(row))),
    Column[AuditRow](title="TO", width=12, grows=2, cell=lambda row, _: Cell(target_text(row))),
    Column[AuditRow](title="CHANGED", width=7, right=True, cell=lambda row, _: Cell(format_count(row.affected))),
    Column[AuditRow](
        title="SKIPPED", width=7, drop_rank=2, right=True, cell=lambda row, _: Cell(format_count(row.skipped))
    ),
    Column[AuditRow](title="VIA", width=7, drop_rank=3, cell=lambda row, _: Cell(row.via, Tone.DIM)),
    Column[AuditRow](title="WHY", width=12, grows=3, drop_rank=1, cell=lambda row, _: Cell(row.reason or "")),
)


class OperatorLogDialog(ModalScreen[None]):
    """The newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,l,enter", "leave", "close")]

    def __init__(self, context: AppContext, rows: Sequence[AuditRow]) -> None:
        super().__init__()
        self._rows = tuple(reversed(rows))
        self.list: RowList[AuditRow] = RowList(
            LOG_COLUMNS, key=lambda row: row.id, now=context.clock.now, glyphs=context.glyphs
        )

    def compose(self) -> ComposeResult:
        with Vertical(id="log-dialog"):
            yield self.list
            yield Static(id="log-entry")

    def on_mount(self) -> None:
        self.query_one("#log-dialog").border_title = f"Operator log, the last {len(self._rows):,}"
        self.list.show(self._rows)

    def on_row_list_cursor_moved(self) -> None:
        """Say all about the row under the cursor: the columns have no room for it."""
        row = self.list.current
        self.query_one("#log-entry", Static).update(
            Content("\n").join([safe(line) for line in entry_lines(row)] if row is not None else [])
        )

    def on_row_list_opened(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        self.dismiss(None)


LOG_ROWS: Final = 30
"""Actions of operators on this screen, where there is room for so many."""

FULL_LOG_ROWS: Final = 1_000
"""As many as the whole log shows and the file has."""

_NO_TOPICS: Final = frozenset[Topic]()


class MaintenanceScreen(ProposingScreen):
    """Numbers are those of dry runs: what a sweep and a cleanup would do now."""

    place = Place.MAINTENANCE
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.MAINTENANCE)]

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs)
        self.data = MaintenanceData()
        self.list: RowList[MaintenanceItem] = RowList(
            MAINTENANCE_COLUMNS, key=lambda chore: chore.key, now=context.clock.now, glyphs=context.glyphs
        )
        self._counted_at: datetime | None = None

    def body(self) -> ComposeResult:
        yield self.list
        yield StoragePane()
        yield Static("", id="operator-log")

    def on_mount(self) -> None:
        self.query_one("#operator-log").border_title = " Operator log "

    def live_queries(self) -> Sequence[LiveQuery]:
        return (
            LiveQuery(name="sweep", fetch=_fetch_sweep, invalidated_by=TASK_TOPICS, min_interval_s=5.0),
            LiveQuery(
                name="upkeep",
                fetch=_fetch_maintenance_status,
                invalidated_by=frozenset({Topic.EVENT}),
                min_interval_s=5.0,
            ),
            # Counting what is old takes long in a large table.
            LiveQuery(name="cleanup", fetch=_fetch_cleanup, invalidated_by=_NO_TOPICS, poll_s=60.0),
            LiveQuery(name="storage", fetch=_fetch_storage, invalidated_by=_NO_TOPICS, poll_s=30.0),
            LiveQuery(name="log", fetch=_fetch_log, invalidated_by=TASK_TOPICS | {Topic.EVENT}, min_interval_s=2.0),
        )

    def show_result(self, name: str, value: object) -> None:
        now = self.context.clock.now()
        match value:
            case SweepReport():
                self.data = replace(self.data, sweep=value)
            case CleanupSummary():
                self.data, self._counted_at = replace(self.data, cleanup=value), now
            case MaintenanceStatus():
                self.data = replace(self.data, maintenance_status=value)
            case Storage():
                self.query_one(StoragePane).show(value, now)
            case tuple() if name == "log":
                self._show_log(value)  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return
        self.list.show(maintenance_items(self.data, now))
        counted = "" if self._counted_at is None else f"those of retention as of {format_time(self._counted_at)}"
        self.set_status("numbers are those of dry runs", counted, *self._warnings())

    def _warnings(self) -> tuple[str, ...]:
        upkeep, sweep = self.data.maintenance_status, self.data.sweep
        alone = ("no worker lives to do this by itself",) if upkeep is not None and upkeep.config is None else ()
        return (*alone, *(sweep.warnings if sweep is not None else ()))

    def _show_log(self, rows: tuple[AuditRow, ...]) -> None:
        lines = [safe(log_line(row)) for row in reversed(rows)]
        self.query_one("#operator-log", Static).update(Content("\n").join(lines) if lines else "nothing yet")

    def tick(self) -> None:
        self.list.tick()

    @property
    def _selected_command(self) -> MaintenanceCommand:
        """Which of the two the cursor is in."""
        current = self.list.current
        return MaintenanceCommand.SWEEP if current is None else current.command

    def on_row_list_opened(self) -> None:
        """The rows that the line would take, where some screen lists them."""
        chore = self.list.current
        if chore is None:
            return
        if chore.task_filter is not None:
            self.post_message(ShowTasks(chore.task_filter))
        elif chore.key == "sweep workflows":
            self.app.call_later(self.app.run_action, f"go('{Place.WORKFLOWS}')")
        elif chore.command is MaintenanceCommand.SWEEP:
            self.app.call_later(self.app.run_action, f"go('{Place.STALE}')")
        else:
            self.notify("these rows have no list; d tells how many there are, and how large")

    def action_plan_dry(self) -> None:
        self.dry_run(self._propose_cleanup if self._selected_command is MaintenanceCommand.CLEANUP else self._sweeping)

    def action_op_sweep(self) -> None:
        self.propose(self._sweeping)

    def action_op_cleanup(self) -> None:
        self.propose(self._propose_cleanup)

    async def _sweeping(self, source: DataSource) -> Proposal:
        return await propose_sweep(source, SweepOptions())

    async def _propose_cleanup(self, source: DataSource) -> Proposal:
        return await propose_cleanup(source, database_name=self.context.database_name, now=self.context.clock.now())

    @work(group="log", exclusive=True, exit_on_error=False)
    async def action_nav_events(self) -> None:
        """The whole operator log."""
        if (rows := await self._fetch_full_log()) is not None:
            self.app.push_screen(OperatorLogDialog(self.context, rows))

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Write the operator log into a file."""
        if (rows := await self._fetch_full_log()) is not None:
            await save_rows(self, "log", rows, self.context.clock.now())

    async def _fetch_full_log(self) -> tuple[AuditRow, ...] | None:
        source = self.context.source
        try:
            return None if source is None else await source.audit(limit=FULL_LOG_ROWS)
        except HorsiesError as error:
            self.notify(sanitize(error.message), severity="error", markup=False)
            return None

    def action_copy_cli(self) -> None:
        self.copy_text(f"horsies {self._selected_command} --dry-run", "the command")


async def _fetch_sweep(source: DataSource) -> SweepReport:
    return await source.stale_candidates()


async def _fetch_maintenance_status(source: DataSource) -> MaintenanceStatus:
    return await source.maintenance_status()


async def _fetch_cleanup(source: DataSource) -> CleanupSummary:
    return await source.cleanup_candidates()


async def _fetch_storage(source: DataSource) -> Storage:
    return await source.storage()


async def _fetch_log(source: DataSource) -> tuple[AuditRow, ...]:
    return await source.audit(limit=LOG_ROWS)
