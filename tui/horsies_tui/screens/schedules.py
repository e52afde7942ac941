"""Schedules, to look at: what starts by the clock, when next, and how it went."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, cast

from textual.widgets import Static

from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.tasks import TaskPage
from horsies_tui.actions import Place, bindings
from horsies_tui.format import clock, plural, short_id
from horsies_tui.messages import TasksWanted
from horsies_tui.schedule_columns import SCHEDULE_COLUMNS, UNKNOWN, fortunes, when
from horsies_tui.screens.main_screen import ANY_TASK
from horsies_tui.screens.narrowed import NarrowedScreen
from horsies_tui.store import Want
from horsies_tui.widgets.page import Section
from horsies_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.schedules import ScheduleRow
    from horsies_tui.desk import Desk
    from horsies_tui.source import Source

RECENT = 20
NONE_YET = """There are no schedules.

They are written in horsies.toml, as [[schedule.entries]], or given to the app,
and listed here with what the database remembers of them.
No command runs them yet."""


class SchedulesScreen(NarrowedScreen):
    """The soonest first. Nothing can be changed here: schedules belong to the settings."""

    place = Place.SCHED
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.SCHED)]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.list: RowList[ScheduleRow] = RowList(
            SCHEDULE_COLUMNS, key=lambda schedule: schedule.name, now=desk.clock.now, glyphs=desk.glyphs
        )
        self._schedules: tuple[ScheduleRow, ...] = ()
        self._recent = ""
        self._is_brief = False
        """Whether those that are switched off are left out."""

    def body(self) -> ComposeResult:
        yield Static(NONE_YET, id="no-schedules")
        yield self.narrowing
        yield self.list
        yield Section(name="schedule")

    def on_mount(self) -> None:
        self.list.focus()

    def wants(self) -> Sequence[Want]:
        return (
            Want(name="schedules", fetch=lambda source: source.list_schedules(), touched_by=ANY_TASK, rest_s=2.0),
            Want(name="recent", fetch=self._fetch_recent, touched_by=ANY_TASK, rest_s=2.0),
        )

    async def _fetch_recent(self, source: Source) -> TaskPage:
        """The newest tasks of the name that the schedule sends; others may send it too."""
        current = self.list.current
        if current is None or current.task_name is None:
            return TaskPage(tasks=(), next=None)
        return await source.list_tasks(TaskFilter(names=(current.task_name,)), limit=RECENT)

    def take(self, name: str, value: object) -> None:
        if isinstance(value, TaskPage):
            self._recent = fortunes(value.tasks, self.desk.glyphs)
            self._describe()
        elif name == "schedules" and isinstance(value, tuple):
            # How long it is until the next run is reckoned when it is drawn.
            self._schedules = tuple(replace(row, due_in=timedelta(0)) for row in cast("tuple[ScheduleRow, ...]", value))
            self._show()

    def _show(self) -> None:
        listed = [row for row in self._schedules if not (self._is_brief and row.is_enabled is False)]
        shown = self.narrowed(listed)
        self.list.show(shown)
        self.set_class(not self._schedules, "-none")
        self._describe()
        hidden = len(self._schedules) - len(listed)
        self.say(
            plural(len(shown), "schedule"),
            f"{hidden} disabled hidden" if hidden else "",
            "view only",
            self._offset(),
        )

    def narrow(self) -> None:
        self._show()

    def _offset(self) -> str:
        return f"clock offset {self.desk.clock.offset.total_seconds():+.1f}s"

    def _describe(self) -> None:
        section, row = self.query_one("#schedule", Section), self.list.current
        if row is None:
            section.show([], title="")
            return
        last = (
            "never run"
            if row.last_run_at is None
            else f"last {clock(row.last_run_at)} task {short_id(row.last_task_id)}"
        )
        upcoming = f"next {clock(row.next_run_at)}" if row.next_run_at is not None else "no next run"
        section.show(
            [
                f"sends  {row.task_name or UNKNOWN}   {when(row)}",
                f"{upcoming}   {last}   {plural(row.run_count, 'run')}",
                f"newest {RECENT} of that task  {self._recent}" if self._recent else "",
            ],
            title=row.name,
        )

    def tick(self) -> None:
        self.list.tick()

    def on_row_list_cursor_moved(self) -> None:
        self._describe()
        self.desk.store.refresh("recent")

    def on_row_list_opened(self) -> None:
        """The tasks of the name that it sends."""
        if (row := self.list.current) is not None and row.task_name is not None:
            self.post_message(TasksWanted(TaskFilter(names=(row.task_name,))))

    def action_view_exclude(self) -> None:
        self._is_brief = not self._is_brief
        self._show()

    def action_copy_id(self) -> None:
        if (row := self.list.current) is not None:
            self.copy(row.name, "the name")
