"""Schedules: next and last runs of each schedule. View only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from textual.app import ComposeResult
from textual.widgets import Static

from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.queues import ScheduleRow
from horsies_ops.reads.tasks import TaskPage, TaskSummary
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.format import format_age, format_short_age, format_time, plural, short_id
from horsies_tui.keys import ScreenId
from horsies_tui.screens.base import TASK_TOPICS, ShowTasks
from horsies_tui.screens.lists import ListScreen
from horsies_tui.screens.tasks.table import status_tone
from horsies_tui.theme import Glyph
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, Tone

RECENT_LIMIT: Final = 20
NOT_CONFIGURED: Final = "not in local settings"
NO_SCHEDULES_TEXT: Final = """There are no schedules.

Define them in horsies.toml under [[schedule.entries]] or in the app.
This screen lists them with the runs recorded in the database.
No command runs them yet."""


# Columns


def schedule_text(schedule: ScheduleRow) -> str:
    """Return the pattern, with the time zone unless it is UTC."""
    if schedule.pattern is None:
        return NOT_CONFIGURED
    zone = "" if schedule.timezone in (None, "UTC") else f" {schedule.timezone}"
    return f"{schedule.pattern}{zone}"


def _next_run_cell(schedule: ScheduleRow, now: datetime) -> Cell:
    if schedule.is_enabled is False:
        return Cell("disabled", Tone.DIM)
    if schedule.next_run_at is None:
        return Cell("-", Tone.DIM)
    due_in = schedule.next_run_at - now
    is_late = due_in.total_seconds() < 0
    return Cell(f"late {format_age(-due_in)}", Tone.WARN) if is_late else Cell(f"in {format_age(due_in)}")


def _result_cell(schedule: ScheduleRow) -> Cell:
    if schedule.last_status is None:
        return Cell("-", Tone.DIM)
    return Cell(schedule.last_error_code or schedule.last_status, status_tone(schedule.last_status))


def status_glyphs(tasks: Sequence[TaskSummary]) -> str:
    """Return one glyph per task, oldest first; `tasks` are sorted newest first."""
    by_status = {
        TaskStatus.COMPLETED: Glyph.DONE,
        TaskStatus.FAILED: Glyph.FAILED,
        TaskStatus.RUNNING: Glyph.RUNNING,
        TaskStatus.CANCELLED: Glyph.SKIPPED,
        TaskStatus.EXPIRED: Glyph.SKIPPED,
    }
    return "".join(by_status.get(TaskStatus(task.status), Glyph.WAITING) for task in reversed(tasks))


def _last_run_text(schedule: ScheduleRow, now: datetime) -> str:
    return "never" if schedule.last_run_at is None else f"{format_short_age(now - schedule.last_run_at)} ago"


SCHEDULE_COLUMNS: Final[tuple[Column[ScheduleRow], ...]] = (
    Column("SCHEDULE", 14, lambda row: row.name, grows=2),
    Column("WHEN", 20, schedule_text, grows=2, drop_rank=1),
    Column("NEXT RUN", 11, value_at=_next_run_cell),
    Column("LAST RUN", 8, value_at=_last_run_text, drop_rank=2),
    Column("RESULT", 11, _result_cell, grows=1),
    Column("RUNS", 6, lambda row: f"{row.run_count:,}", right=True, drop_rank=3),
)


def detail_lines(schedule: ScheduleRow, recent: str) -> list[str]:
    """What a schedule sends, its next and last run; `recent` are the glyphs of its last tasks."""
    at, task_id = schedule.last_run_at, short_id(schedule.last_task_id)
    last = "never run" if at is None else f"last {format_time(at)} task {task_id}"
    following = "no next run" if schedule.next_run_at is None else f"next {format_time(schedule.next_run_at)}"
    return [
        f"sends  {schedule.task_name or NOT_CONFIGURED}   {schedule_text(schedule)}",
        f"{following}   {last}   {plural(schedule.run_count, 'run')}",
        f"last {RECENT_LIMIT} tasks of this name  {recent}" if recent else "",
    ]


class SchedulesScreen(ListScreen[ScheduleRow], scope=ScreenId.SCHEDULES):
    """List of schedules, next run first; they are changed in the settings, not here."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context, SCHEDULE_COLUMNS, key=lambda schedule: schedule.name)
        self._recent = ""

    def body(self) -> ComposeResult:
        yield Static(NO_SCHEDULES_TEXT, id="no-schedules")
        yield self.filter_bar
        yield self.list
        yield Pane(name="schedule", classes="section")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        return (
            LiveQuery(
                "schedules",
                lambda source: source.list_schedules(),
                self._show_schedules,
                TASK_TOPICS,
                min_interval_s=2.0,
            ),
            LiveQuery("detail", self._fetch_recent, self._show_recent, TASK_TOPICS, min_interval_s=2.0),
        )

    async def _fetch_recent(self, source: DataSource) -> TaskPage:
        """Read the newest tasks with the schedule's task name, including those sent by other code."""
        current = self.list.current
        if current is None or current.task_name is None:
            return TaskPage(tasks=(), next=None)
        return await source.list_tasks(TaskFilter(names=(current.task_name,)), limit=RECENT_LIMIT)

    def _show_recent(self, page: TaskPage) -> None:
        self._recent = status_glyphs(page.tasks)
        self.show_detail()

    def _show_schedules(self, rows: tuple[ScheduleRow, ...]) -> None:
        self.set_class(not rows, "-no-schedules")
        # `due_in` changes with every read; the column computes it, so equal rows are not repainted.
        self.show_rows(replace(row, due_in=timedelta(0)) for row in rows)

    def is_excluded(self, row: ScheduleRow) -> bool:
        # None for a schedule that is not in the local settings: it stays visible.
        return row.is_enabled is False

    def update_status(self) -> None:
        hidden = sum(map(self.is_excluded, self.rows)) if self.hides_excluded else 0
        self.set_status(
            plural(len(self.list.rows), "schedule"),
            f"{hidden} disabled hidden" if hidden else "",
            "view only",
            f"clock offset {self.context.clock.offset.total_seconds():+.1f}s",
        )

    def show_detail(self) -> None:
        row = self.list.current
        lines = list[str] if row is None else partial(detail_lines, row, self._recent)
        self.show_pane("schedule", lines, title="" if row is None else row.name)

    def on_row_list_opened(self) -> None:
        """List the tasks with the schedule's task name."""
        if (row := self.list.current) is not None and row.task_name is not None:
            self.post_message(ShowTasks(TaskFilter(names=(row.task_name,))))

    def action_copy_id(self) -> None:
        if (row := self.list.current) is not None:
            self.copy_text(row.name, "the name")
