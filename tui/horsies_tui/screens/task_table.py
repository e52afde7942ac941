"""A list of tasks as a table: its rows sorted, its columns widened, an excerpt of what each was given, rows saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from textual import work

from horsies.errors import HorsiesError
from horsies_ops.cli.output import json_line
from horsies_tui.excerpts import TITLE, Excerpts
from horsies_tui.format import clean
from horsies_tui.saving import save_rows
from horsies_tui.screens.marking import MarkingScreen
from horsies_tui.task_columns import TASK_COLUMNS
from horsies_tui.task_documents import documents
from horsies_tui.task_sorting import NAMES, NEWEST_FIRST, sorts
from horsies_tui.widgets.row_list import RowList
from horsies_tui.widgets.sort_picker import SortPicker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from textual import events

    from horsies_ops.reads.tasks import TaskSummary
    from horsies_tui.actions import Place
    from horsies_tui.desk import Desk
    from horsies_tui.source import Source

PAYLOADS: Final = "payloads"
"""The want that `fetch_payloads` answers."""
PAGES_READ: Final = 4
ROOMY: Final = 140
"""From here on there is room for an excerpt beside an error that can be read."""


class TaskTable(MarkingScreen):
    """A subclass loads rows and hands them to `show_rows`."""

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self._excerpts = Excerpts(desk.settings)
        self.list: RowList[TaskSummary] = RowList(
            (*TASK_COLUMNS, self._excerpts.column), key=lambda task: task.id, now=desk.clock.now, glyphs=desk.glyphs
        )
        self.order = NEWEST_FIRST

    def on_mount(self) -> None:
        self.list.widen(is_wide=self.desk.memory.known.is_wide)

    def show_rows(self, rows: Sequence[TaskSummary]) -> None:
        """Show what is loaded, in the order that was picked; newest first it comes already."""
        is_usual = self.order == NEWEST_FIRST
        self.list.show(rows if is_usual else self.order.sort(rows, sorts(self.desk.clock.now())))
        self.want_excerpts()

    @property
    def order_said(self) -> str:
        """Which order that is; but for the usual one it holds for the loaded rows alone."""
        return "" if self.order == NEWEST_FIRST else f"{self.order}, as far as loaded"

    async def fetch_payloads(self, source: Source) -> None:
        """Learn what the rows on the screen and around it were given, where there is a column for it."""
        if TITLE in self.list.titles:
            # Some pages ahead, or each page would be drawn twice: without them, and again when they have come.
            self._excerpts.learn(await source.payloads_of(self._excerpts.missing(self.list.rows_ahead(PAGES_READ))))

    def want_excerpts(self) -> None:
        """Other rows or columns may be seen now, or soon."""
        if TITLE in self.list.titles and self._excerpts.missing(self.list.rows_ahead(1)):
            self.desk.store.refresh(PAYLOADS)

    def on_resize(self, event: events.Resize) -> None:
        self.list.leave_out(*(() if event.size.width >= ROOMY else (TITLE,)))

    def action_view_wide(self) -> None:
        self.list.widen(is_wide=not self.list.is_wide)
        self.desk.memory.keep(is_wide=self.list.is_wide)
        self.want_excerpts()

    def action_nav_left(self) -> None:
        self.list.move_sideways(-1)

    def action_nav_right(self) -> None:
        self.list.move_sideways(1)
        self.want_excerpts()

    def action_view_max(self) -> None:
        """The list alone, or everything around it again."""
        self.toggle_class("-max")

    def action_view_sort(self) -> None:
        self.app.push_screen(SortPicker(NAMES, self.order.by), self._sorted_by)

    def _sorted_by(self, by: str | None) -> None:
        if by is not None:
            self.order = self.order.picked(by)
            self.desk.store.refresh("tasks")

    @work(group="export", exit_on_error=False)
    async def action_copy_json(self) -> None:
        if (rows := await self.documents_of(self.chosen)) is not None:
            self.copy(json_line(rows), "as JSON")

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Save the marked rows, or all that are loaded."""
        wanted = self.chosen if self.list.selection.marks else [row.id for row in self.list.rows]
        if (rows := await self.documents_of(wanted)) is not None:
            await save_rows(self, "tasks", rows, self.desk.clock.now())

    async def _rows_of(self, source: Source, wanted: Sequence[UUID]) -> list[TaskSummary]:
        """In the order in which they are wanted; those that a filter hides are read."""
        known = {task.id: task for task in self.list.rows}
        hidden = [each for each in wanted if each not in known]
        known |= {task.id: task for task in await source.tasks_by_id(hidden)} if hidden else {}
        return [known[each] for each in wanted if each in known]

    async def documents_of(self, wanted: Sequence[UUID]) -> list[dict[str, Any]] | None:
        """These tasks as they leave the screen, loaded or not; None where nobody can be asked what they were given."""
        source = self.desk.source
        if source is None:
            self.notify("there is no connection", severity="warning")
            return None
        try:
            return await documents(source, await self._rows_of(source, wanted), self.desk.settings)
        except HorsiesError as error:
            self.notify(clean(error.message), severity="error", markup=False)
            return None
