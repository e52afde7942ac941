"""Maintenance: pending sweep and retention work, table sizes, and the operator log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Final

import humanize
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from horsies.model.recovery.fleet import SweepOptions
from horsies.model.retention import CleanupSummary, RetentionCategory
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.recovery.report import SweepReport
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.events import AuditRow
from horsies_ops.reads.filters import TaskFilter, format_duration
from horsies_ops.reads.server import Storage, TableStorage
from horsies_ops.reads.workers import MaintenanceStatus
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.format import format_age, format_count, format_short_age, format_time, plural
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.model import ProposalFactory
from horsies_tui.proposals.sweep import disabling_setting, propose_cleanup, propose_sweep
from horsies_tui.screens.base import TASK_TOPICS, MainScreen, ShowTasks
from horsies_tui.screens.entries import NO_ACTIONS, action_text, entry_lines, log_line, target_text
from horsies_tui.screens.lists import ProposalRunner
from horsies_tui.system import save_rows
from horsies_tui.widgets.dialogs import BACK_KEYS, Dialog
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

MAX_TABLES: Final = 6
"""The storage pane shows this many of the largest tables, if there is room for one line each."""

LOG_ROWS: Final = 30
"""Operator actions read for the log pane."""

FULL_LOG_ROWS: Final = 1_000
"""Operator actions in the log dialog and in an exported file."""

_NO_TOPICS: Final = frozenset[Topic]()


# Sweep and retention items


class MaintenanceCommand(StrEnum):
    """The `horsies` command that does the work of an item."""

    SWEEP = "sweep"
    CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceItem:
    """One kind of maintenance work; None means not known yet."""

    key: str
    command: MaintenanceCommand
    description: str
    matches: int | None = None
    oldest: timedelta | None = None
    last_at: datetime | None = None
    is_automatic: bool | None = None
    task_filter: TaskFilter | None = None
    """Matches the affected rows, if they are tasks that a filter can describe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceData:
    """Results of the live queries so far."""

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


def maintenance_items(data: MaintenanceData, now: datetime) -> list[MaintenanceItem | Heading]:
    """Return all lines of the list, in order."""
    return [*_sweep_items(data), Heading("Retention: D runs it now"), *_retention_items(data, now)]


def _sweep_items(data: MaintenanceData) -> Iterator[MaintenanceItem]:
    report, status = data.sweep, data.maintenance_status
    config = status.config if status else None
    thresholds = report.thresholds if report else None
    last_at = status.last_pass_at if status else None
    descriptions = {
        TaskStatus.CLAIMED: f"requeue stale CLAIMED  > {format_age(thresholds and thresholds.claimed)}",
        TaskStatus.RUNNING: f"recover stale RUNNING  > {format_age(thresholds and thresholds.running)}",
        TaskStatus.PENDING: "expire PENDING past good_until",
    }
    for state, description in descriptions.items():
        due = [task for task in report.tasks if task.changes_state and task.state is state] if report else None
        ages = [task.heartbeat_age or task.overdue_by or timedelta(0) for task in due or ()]
        yield MaintenanceItem(
            key=f"sweep {state}",
            command=MaintenanceCommand.SWEEP,
            description=description,
            matches=None if due is None else len(due),
            oldest=max(ages, default=None),
            last_at=last_at,
            is_automatic=config is not None and disabling_setting(state, config) is None if status else None,
        )
    yield MaintenanceItem(
        key="sweep workflows",
        command=MaintenanceCommand.SWEEP,
        description="repair stuck workflow runs",
        matches=len(report.workflows) if report else None,
        last_at=last_at,
        is_automatic=config is not None if status else None,
    )


def _retention_items(data: MaintenanceData, now: datetime) -> Iterator[MaintenanceItem]:
    status = data.maintenance_status
    for name, categories in _RETENTION_GROUPS.items():
        counts = [count for count in data.cleanup.categories if count.category in categories] if data.cleanup else []
        window = counts[0].window if counts else None
        oldest_at = min((count.oldest_at for count in counts if count.oldest_at is not None), default=None)
        # Heartbeats are deleted on every pass; the rest hourly, which is recorded only when rows were deleted.
        last_at = status and (status.last_pass_at if name == "heartbeats" else status.last_retention_at)
        task_filter = None
        if window and RetentionCategory.TASKS in categories:
            task_filter = TaskFilter(statuses=tuple(sorted(TASK_TERMINAL_STATES)), older_than=window)
        yield MaintenanceItem(
            key=f"cleanup {name}",
            command=MaintenanceCommand.CLEANUP,
            description=f"delete {name} older than {format_duration(window)}" if window else f"keep {name}",
            matches=sum(count.rows for count in counts) if window else None,
            oldest=None if oldest_at is None else now - oldest_at,
            last_at=last_at if window else None,
            is_automatic=status.config is not None and window is not None if status else None,
            task_filter=task_filter,
        )


def _matches_cell(item: MaintenanceItem) -> Cell:
    if item.matches is None:
        return Cell("-", Tone.DIM)
    is_overdue = bool(item.matches) and item.command is MaintenanceCommand.SWEEP
    return Cell(format_count(item.matches), Tone.WARN if is_overdue else Tone.PLAIN)


def _policy_cell(item: MaintenanceItem) -> Cell:
    if item.is_automatic is None:
        return Cell("")
    return Cell("auto", Tone.GOOD) if item.is_automatic else Cell("manual", Tone.WARN)


def _last_run_text(item: MaintenanceItem, now: datetime) -> str:
    return "-" if item.last_at is None else f"{format_short_age(now - item.last_at)} ago"


MAINTENANCE_COLUMNS: Final[tuple[Column[MaintenanceItem], ...]] = (
    Column("WHAT", 38, lambda item: item.description, grows=1),
    Column("MATCHES", 9, _matches_cell, right=True),
    Column("OLDEST", 7, lambda item: format_age(item.oldest), right=True),
    Column("LAST RUN", 8, value_at=_last_run_text, tone=Tone.DIM, right=True),
    Column("POLICY", 8, _policy_cell),
)


# Storage pane


def storage_lines(storage: Storage, now: datetime, height: int) -> list[str]:
    """The largest tables, one line each or all on one line, then what may delay vacuum."""
    tables = [_table_text(table, now) for table in storage.tables[:MAX_TABLES]]
    oldest = storage.longest_transaction
    longest = "none" if oldest is None else f"{format_age(oldest.age)} (pid {oldest.pid} {oldest.application_name})"
    notify = f"notify queue {storage.notify_queue_usage:.1%} full   longest open transaction {longest}"
    if height <= len(tables):
        return ["   ".join(" ".join(text.split()) for text in tables), notify]
    return [*tables, notify]


def _table_text(table: TableStorage, now: datetime) -> str:
    name = table.name.removeprefix("horsies_")
    vacuum = "" if table.last_vacuum_at is None else f", vacuumed {format_short_age(now - table.last_vacuum_at)} ago"
    size = humanize.naturalsize(table.bytes, gnu=True)
    return f"{name:<18} {size:>7}, {table.dead_share:>4.0%} dead{vacuum}"


# Operator log dialog

LOG_COLUMNS: Final[tuple[Column[AuditRow], ...]] = (
    Column("TIME", 11, lambda row: f"{row.at:%m-%d %H:%M}", tone=Tone.DIM),
    Column("ACTOR", 8, lambda row: row.actor, grows=1),
    Column("ACTION", 8, action_text, grows=2),
    Column("TARGET", 12, target_text, grows=2),
    Column("CHANGED", 7, lambda row: format_count(row.affected), right=True),
    Column("SKIPPED", 7, lambda row: format_count(row.skipped), right=True, drop_rank=2),
    Column("VIA", 7, lambda row: row.via, tone=Tone.DIM, drop_rank=3),
    Column("REASON", 12, lambda row: row.reason or "", grows=3, drop_rank=1),
)


class OperatorLogDialog(Dialog[None]):
    """The operator log, newest first, with the full entry under the cursor below it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,l,enter", "leave", "back")]

    def __init__(self, context: AppContext, rows: Sequence[AuditRow]) -> None:
        super().__init__()
        self._rows = tuple(reversed(rows))
        self.list: RowList[AuditRow] = RowList(LOG_COLUMNS, key=lambda row: row.id, context=context)

    def compose(self) -> ComposeResult:
        with Vertical(id="log-dialog"):
            yield self.list
            yield Pane(name="log-entry")

    def on_mount(self) -> None:
        box = self.query_one("#log-dialog")
        box.border_title = f"Operator log, last {plural(len(self._rows), 'action')}"
        box.border_subtitle = BACK_KEYS
        self.list.empty_text = NO_ACTIONS
        self.list.show(self._rows)

    def on_row_list_cursor_moved(self) -> None:
        """Show the full entry: the columns have no room for it."""
        row = self.list.current
        self.query_one("#log-entry", Pane).show([] if row is None else entry_lines(row))

    def on_row_list_opened(self) -> None:
        self.action_leave()


class MaintenanceScreen(MainScreen, scope=ScreenId.MAINTENANCE):
    """Sweep and retention work counted by dry runs, storage, and the operator log."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.data = MaintenanceData()
        self.list: RowList[MaintenanceItem] = RowList(
            MAINTENANCE_COLUMNS, key=lambda item: item.key, context=context, rule_title="Sweep: S runs it now"
        )
        self.proposals = ProposalRunner(self)
        self._counted_at: datetime | None = None

    def body(self) -> ComposeResult:
        yield self.list
        yield Pane("Storage", name="storage")
        yield Pane("Operator log", name="operator-log")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        return (
            LiveQuery(
                "sweep",
                lambda source: source.stale_candidates(),
                lambda report: self._show_items(replace(self.data, sweep=report)),
                TASK_TOPICS,
                min_interval_s=5.0,
            ),
            LiveQuery(
                "maintenance status",
                lambda source: source.maintenance_status(),
                lambda status: self._show_items(replace(self.data, maintenance_status=status)),
                frozenset({Topic.EVENT}),
                min_interval_s=5.0,
            ),
            # Polled rarely: counting old rows is slow in a large table.
            LiveQuery("cleanup", lambda source: source.cleanup_candidates(), self._show_cleanup, poll_s=60.0),
            LiveQuery("storage", lambda source: source.storage(), self._show_storage, poll_s=30.0),
            LiveQuery(
                "log",
                lambda source: source.audit(limit=LOG_ROWS),
                self._show_log,
                TASK_TOPICS | {Topic.EVENT},
                min_interval_s=2.0,
            ),
        )

    def _show_cleanup(self, summary: CleanupSummary) -> None:
        self._counted_at = self.context.clock.now()
        self._show_items(replace(self.data, cleanup=summary))

    def _show_storage(self, storage: Storage) -> None:
        height = self.query_one("#storage").content_size.height
        self.show_pane("storage", partial(storage_lines, storage, self.context.clock.now(), height))

    def _show_log(self, rows: tuple[AuditRow, ...]) -> None:
        self.show_pane("operator-log", lambda: [log_line(row) for row in reversed(rows)] or [NO_ACTIONS])

    def _show_items(self, data: MaintenanceData) -> None:
        self.data = data
        self.list.show(maintenance_items(self.data, self.context.clock.now()))
        counted = "" if self._counted_at is None else f"retention counted at {format_time(self._counted_at)}"
        status, sweep = self.data.maintenance_status, self.data.sweep
        # `config` is that of a live worker.
        no_worker = "no live worker runs maintenance" if status is not None and status.config is None else ""
        self.set_status("dry-run numbers", counted, no_worker, *(sweep.warnings if sweep is not None else ()))

    @property
    def _selected_command(self) -> MaintenanceCommand:
        """The command of the item under the cursor."""
        current = self.list.current
        return MaintenanceCommand.SWEEP if current is None else current.command

    def on_row_list_opened(self) -> None:
        """Go to the screen that lists the affected rows, if there is one."""
        item = self.list.current
        if item is None:
            return
        if item.task_filter is not None:
            self.post_message(ShowTasks(item.task_filter))
        elif item.key == "sweep workflows":
            # `call_later` also awaits: `run_action` is a coroutine function, this handler is not.
            self.app.call_later(self.app.run_action, f"go('{ScreenId.WORKFLOWS}')")
        elif item.command is MaintenanceCommand.SWEEP:
            self.app.call_later(self.app.run_action, f"go('{ScreenId.STALE}')")
        else:
            self.notify("no screen lists these rows; d shows their number and size")

    def action_plan_dry(self) -> None:
        self.proposals.dry_run(self.proposal(self._selected_command))

    def proposal(self, verb: str) -> ProposalFactory:
        if verb == MaintenanceCommand.SWEEP:
            return partial(propose_sweep, options=SweepOptions())
        return partial(propose_cleanup, database_name=self.context.database_name, now=self.context.clock.now())

    @work(group="log", exclusive=True, exit_on_error=False)
    async def action_nav_events(self) -> None:
        """Open the operator log."""
        if (rows := await self._fetch_full_log()) is not None:
            self.app.push_screen(OperatorLogDialog(self.context, rows))

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Save the operator log to a file."""
        if (rows := await self._fetch_full_log()) is not None:
            await save_rows(self, "log", rows, self.context.clock.now())

    async def _fetch_full_log(self) -> tuple[AuditRow, ...] | None:
        return await self.read(lambda source: source.audit(limit=FULL_LOG_ROWS))

    def action_copy_cli(self) -> None:
        self.copy_text(f"horsies {self._selected_command} --dry-run", "the command")
