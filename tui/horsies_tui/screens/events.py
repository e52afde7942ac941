"""Events: the stream of what happens, folded where it is much, followed until somebody looks closer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import work

from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filter import TaskFilter
from horsies_tui.actions import Place, bindings
from horsies_tui.entries import Entry, matches
from horsies_tui.event_columns import EVENT_COLUMNS
from horsies_tui.folding import folded
from horsies_tui.format import plural
from horsies_tui.happened import Happened, happened
from horsies_tui.messages import RunWanted, TasksWanted, TaskWanted, WorkerWanted
from horsies_tui.saving import save_rows
from horsies_tui.screens.main_screen import ANY_TASK, MainScreen
from horsies_tui.store import Want
from horsies_tui.widgets.facet_popup import FacetPopup
from horsies_tui.widgets.filter_line import FilterLine
from horsies_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.counts import Facets
    from horsies_tui.desk import Desk
    from horsies_tui.source import Source


class EventsScreen(MainScreen):
    """The newest on top. While the cursor is there the list follows; further down it stands still and counts."""

    place = Place.EVENTS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.EVENTS)]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.seen = Happened(entries=(), known={}, per_minute=0)
        self.list: RowList[Entry] = RowList(
            EVENT_COLUMNS, key=lambda entry: entry.key, now=desk.clock.now, glyphs=desk.glyphs
        )
        self._is_folded = True
        self._stopped_at: datetime | None = None
        """What is newer is not shown; None while following."""

    def body(self) -> ComposeResult:
        yield FilterLine(prompt=self.desk.glyphs.prompt)
        yield self.list

    @property
    def filter(self) -> TaskFilter:
        return self.query_one(FilterLine).filter

    @property
    def is_following(self) -> bool:
        return self._stopped_at is None

    def wants(self) -> Sequence[Want]:
        touched_by = ANY_TASK | {Topic.EVENT, Topic.WORKFLOW}
        return (Want(name="events", fetch=self._fetch, touched_by=touched_by, rest_s=0.5, every_s=5.0),)

    async def _fetch(self, source: Source) -> Happened:
        return await happened(source, self.desk.store.tape, self.desk.clock, self.seen.known)

    def take(self, name: str, value: object) -> None:
        del name
        if isinstance(value, Happened):
            self.seen = value
            self._show()

    def _show(self) -> None:
        now = self.desk.clock.now()
        fitting = [entry for entry in self.seen.entries if matches(entry, self.filter, now)]
        shown = [entry for entry in fitting if self._stopped_at is None or entry.at <= self._stopped_at]
        self.list.show(folded(shown) if self._is_folded else shown)
        if self.is_following:
            self.list.move_to(0)
        self._say(waiting=sum(entry.count for entry in fitting) - sum(entry.count for entry in shown))

    def _say(self, *, waiting: int) -> None:
        following = f"{self.desk.glyphs.running} following"
        state = following if self.is_following else f"{self.desk.glyphs.warn} {waiting:,} new, g follows"
        self.query_one(FilterLine).say(f"{state}   {self.seen.per_minute:,} ev/min ")
        self.say(
            f"{plural(len(self.seen.entries), 'event')} in memory",
            "nothing is written to disk",
            "" if self._is_folded else "unfolded",
            "p stops following",
        )

    def on_row_list_cursor_moved(self) -> None:
        """Going down stops the list; going back to the top lets it follow again."""
        is_on_top = self.list.selection.line == 0
        if is_on_top == self.is_following or not self.list.rows:
            return
        self._stopped_at = None if is_on_top else self.list.rows[0].at
        self._show()

    def on_row_list_opened(self) -> None:
        match self.list.current:
            case Entry(ids=(task_id,)):
                self.post_message(TaskWanted(task_id))
            case Entry(ids=ids) if ids:
                self.post_message(TasksWanted(TaskFilter(ids=tuple(map(str, ids)))))
            case Entry(workflow_id=run) if run is not None:
                self.post_message(RunWanted(run))
            case Entry(worker_id=worker) if worker is not None:
                self.post_message(WorkerWanted(worker))
            case _:
                self.notify("there is nothing behind this line")

    def on_filter_line_changed(self) -> None:
        self._show()

    def on_filter_line_left(self) -> None:
        self.list.focus()

    def step_back(self) -> bool:
        """Out of the filter; then the filter itself; then back to the top."""
        line = self.query_one(FilterLine)
        if line.has_focus_within:
            self.list.focus()
        elif not line.filter.is_empty or line.text:
            line.show(TaskFilter())
        elif not self.is_following:
            self.list.move_to(0)
        else:
            return False
        return True

    def action_filter_edit(self) -> None:
        self.query_one(FilterLine).edit()

    def action_filter_clear(self) -> None:
        self.query_one(FilterLine).show(TaskFilter())

    def action_filter_facets(self) -> None:
        self.app.push_screen(FacetPopup(self.desk, self._facets(), self.filter), self._picked)

    async def _facets(self) -> Facets:
        return self.seen.facets()

    def _picked(self, wanted: TaskFilter | None) -> None:
        if wanted is not None:
            self.query_one(FilterLine).show(wanted)

    def action_view_fold(self) -> None:
        self._is_folded = not self._is_folded
        self._show()

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Write everything that is in memory into a file."""
        await save_rows(self, "events", self.seen.entries, self.desk.clock.now())
