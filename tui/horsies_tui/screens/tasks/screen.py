"""Tasks: every row within reach, narrowed down by a filter, and acted on one by one, marked, or all that match."""

from __future__ import annotations

import shlex
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from textual import work
from textual.containers import Horizontal

from horsies.errors import HorsiesError
from horsies.model.operator_actions import Action
from horsies.model.task import TaskStatus
from horsies_ops.actions.plan import Selector
from horsies_ops.cli.output import json_line
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter, filter_text, parse_filter
from horsies_ops.reads.search import Count, Facets
from horsies_ops.reads.tasks import TaskDetail, TaskSummary
from horsies_tui.data import pages
from horsies_tui.data.pages import MOST_WAITING, TaskWindow
from horsies_tui.data.queries import Want
from horsies_tui.format import clean, day_and_time, number, plural
from horsies_tui.keys import Place, bindings
from horsies_tui.proposals import model
from horsies_tui.screens.base import ANY_TASK
from horsies_tui.screens.lists import MarkingScreen
from horsies_tui.screens.tasks.table import (
    NAMES,
    NEWEST_FIRST,
    TASK_COLUMNS,
    TITLE,
    Excerpts,
    TaskPreview,
    documents,
    sorts,
)
from horsies_tui.system import save_rows
from horsies_tui.widgets.dialogs import SortPicker
from horsies_tui.widgets.facets import FacetDock, FacetPopup, picked
from horsies_tui.widgets.filter_bar import FilterLine
from horsies_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_tui.data.context import Desk
    from horsies_tui.data.source import Source
    from horsies_tui.proposals.model import Proposal


# A list of tasks as a table: its rows sorted, its columns widened, an excerpt of what each was given, rows saved.

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


class Ask(Enum):
    """Which stretch of the list is wanted next."""

    AGAIN = auto()
    NEWEST = auto()
    OLDEST = auto()
    OLDER = auto()
    NEWER = auto()


class TasksScreen(TaskTable):
    """The list, its filter above it and a preview below; facets beside it where there is room.

    While rows are marked, none of them moves.
    """

    place = Place.TASKS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.TASKS)]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.window = TaskWindow()
        self._facets: Facets | None = None
        self._ask = Ask.NEWEST
        self._is_matching = False
        """Whether everything that matches the filter is selected, which is more than what is loaded."""

    def body(self) -> ComposeResult:
        yield FilterLine(prompt=self.desk.glyphs.prompt)
        with Horizontal():
            yield self.list
            yield FacetDock(self.desk)
        yield TaskPreview(id="preview")

    def on_mount(self) -> None:
        """Begin with the filter that was used last."""
        match parse_filter(self.desk.memory.known.filters.get(self.desk.database, "")):
            case TaskFilter() as wanted:
                self.query_one(FilterLine).show(wanted)
            case _:
                return

    @property
    def filter(self) -> TaskFilter:
        return self.query_one(FilterLine).filter

    def wants(self) -> Sequence[Want]:
        alive = ANY_TASK | {Topic.BEATS}
        return (
            Want(name="tasks", fetch=self._fetch, touched_by=alive),
            Want(name="count", fetch=self._fetch_count, touched_by=ANY_TASK, rest_s=1.0),
            Want(name="detail", fetch=self._fetch_detail, touched_by=alive),
            Want(name="facets", fetch=self._fetch_facets, touched_by=self._facets_age_by, every_s=60.0, rest_s=10.0),
            Want(name=PAYLOADS, fetch=self.fetch_payloads, touched_by=frozenset(), every_s=60.0),
        )

    @property
    def _facets_age_by(self) -> frozenset[Topic]:
        """Their counts are kept up to date only where they are seen."""
        return ANY_TASK if self.has_class("-widest") else frozenset()

    async def _fetch(self, source: Source) -> TaskWindow:
        """One question at a time decides what the window is, so that a page and a refresh cannot cross."""
        ask, self._ask = self._next_ask(), Ask.AGAIN
        window, most = self.window, self.desk.settings.max_rows
        match ask:
            case Ask.NEWEST:
                return await pages.newest(source, self.filter)
            case Ask.OLDEST:
                return await pages.oldest(source, self.filter)
            case Ask.OLDER:
                return await pages.older(source, window, most=most)
            case Ask.NEWER:
                return await pages.newer(source, window, most=most)
            case Ask.AGAIN if self.list.selection.marks and window.rows:
                return await pages.held(source, window)
            case Ask.AGAIN:
                return await pages.again(source, window, cursor=self.list.selection.cursor)

    def _next_ask(self) -> Ask:
        """What is loaded for another filter is no beginning: the question that was to replace it may have failed."""
        is_of_another = self.window.filter != self.filter
        return Ask.NEWEST if is_of_another and self._ask is not Ask.OLDEST else self._ask

    async def _fetch_count(self, source: Source) -> Count:
        return await source.count_tasks(self.filter)

    async def _fetch_detail(self, source: Source) -> TaskDetail | None:
        current = self.list.current
        return None if current is None else await source.task(current.id)

    async def _fetch_facets(self, source: Source) -> Facets:
        return await source.facets(self._without_picks())

    def take(self, name: str, value: object) -> None:
        match value:
            case TaskWindow() if value.filter == self.filter:
                self._show(value)
            case Count():
                self.query_one(FilterLine).say(f"{number(value.number, is_capped=value.is_capped)} match ")
            case Facets():
                self._offer(value)
            case None if name == PAYLOADS:
                self.list.show(self.list.rows)
            case TaskDetail() | None if name == "detail":
                self.query_one(TaskPreview).show(value, now=self.desk.clock.now(), settings=self.desk.settings)
            case _:
                return
        self._say()

    def _show(self, window: TaskWindow) -> None:
        self.window = window
        if lost := self.list.selection.marks & window.gone:
            self.list.selection.unmark(tuple(lost))
            self.notify(f"{plural(len(lost), 'marked row')} no longer there")
        self.show_rows(window.rows)
        if not window.rows and not window.is_at_top and self._ask is Ask.AGAIN:
            self._look(Ask.NEWER)

    def _offer(self, facets: Facets) -> None:
        self._facets = facets
        self.query_one(FacetDock).show(facets, self.filter)
        named = {"status": facets.statuses, "queue": facets.queues, "name": facets.names, "err": facets.error_codes}
        values = {key: [facet.value for facet in found] for key, found in named.items()}
        values["status"] = [value.lower() for value in values["status"]]
        self.query_one(FilterLine).completion.values = values

    def _say(self) -> None:
        marks, window = self.list.selection.marks, self.window
        waiting = f"{window.newer}{'+' if window.newer >= MOST_WAITING else ''} newer waiting" if window.newer else ""
        if self._is_matching:
            self.say("everything that matches is selected", "u clears")
        elif marks:
            hidden = len(marks.difference(window.ids))
            marked = f"{len(marks)} marked" + (f", {hidden} not in this list" if hidden else "")
            self.say(marked, plural(len(window.rows), "row"), "HELD while rows are marked", waiting)
        else:
            self.say(f"{plural(len(window.rows), 'row')} loaded", self._extent(), self.order_said, waiting)

    def _extent(self) -> str:
        if self.window.searched_to is not None:
            return f"searched back to {day_and_time(self.window.searched_to)}, further down goes on"
        if self.window.searched_up_to is not None:
            going_on = "further up goes on" if self.window.rows else "still searching"
            return f"searched up to {day_and_time(self.window.searched_up_to)}, {going_on}"
        if not self.window.rows:
            return "nothing matches" if not self.filter.is_empty else "no tasks yet"
        return "more below" if self.window.has_older else "to the end"

    def tick(self) -> None:
        self.list.tick()

    def on_row_list_cursor_moved(self) -> None:
        self.desk.store.refresh("detail")
        self.want_excerpts()

    def on_row_list_marks_changed(self) -> None:
        self._is_matching = False
        self._say()
        if not self.list.selection.marks:
            self.desk.store.refresh("tasks")

    def on_row_list_edge_neared(self, message: RowList.EdgeNeared) -> None:
        if message.older and self.window.has_older:
            self._look(Ask.OLDER)
        elif not message.older and not self.window.is_at_top:
            self._look(Ask.NEWER)

    def on_row_list_end_wanted(self, message: RowList.EndWanted) -> None:
        """The first or the last of all tasks, however many there are between; rare ones are searched on for."""
        if message.older and self.window.has_older:
            self._look(Ask.OLDEST if self.window.searched_to is None else Ask.OLDER)
        elif not message.older and not self.window.is_at_top:
            self._look(Ask.NEWEST)

    def on_row_list_opened(self) -> None:
        if (task := self.list.current) is not None:
            self.open_task(task.id, [row.id for row in self.list.rows])

    def on_filter_line_changed(self) -> None:
        self._is_matching = False
        self._look(Ask.NEWEST)
        self.desk.store.refresh("count")
        self.desk.store.refresh("facets")
        self.desk.memory.keep_filter(self.desk.database, filter_text(self.filter))
        if self._facets is not None:
            self.query_one(FacetDock).show(self._facets, self.filter)

    def on_facet_dock_picked(self, message: FacetDock.Picked) -> None:
        self.query_one(FilterLine).show(message.filter)

    def on_filter_line_left(self) -> None:
        self.list.focus()

    def _look(self, ask: Ask) -> None:
        self._ask = ask
        self.desk.store.refresh("tasks")

    def step_back(self) -> bool:
        """Out of the filter or the facets; then the filter itself; then the marks."""
        line = self.query_one(FilterLine)
        if line.has_focus_within or self.query_one(FacetDock).has_focus_within:
            self.list.focus()
        elif not line.filter.is_empty or line.text:
            line.show(TaskFilter())
        elif self._is_matching or self.list.selection.marks:
            self.action_mark_none()
        else:
            return False
        return True

    def show_only(self, wanted: TaskFilter) -> None:
        """Narrow the list down to these."""
        self.query_one(FilterLine).show(wanted)
        self.list.focus()

    def selector(self) -> Selector | None:
        if self._is_matching:
            return Selector.matching(self.filter)
        return Selector.of_ids(self.chosen) if self.chosen else None

    def fitting(self) -> Action:
        """What `R` means of everything that matches."""
        return _fitting(self.filter.statuses)

    def action_op_requeue(self) -> None:
        """Rows are read first: what `R` means of them depends on how they stand, and a filter may hide some."""
        if self._is_matching or not self.chosen:
            super().action_op_requeue()
        else:
            self.propose(self._fitted(self.chosen))

    def action_plan_dry(self) -> None:
        if self._is_matching or not self.chosen:
            super().action_plan_dry()
        else:
            self.dry_run(self._fitted(self.chosen))

    def _fitted(self, chosen: Sequence[UUID]) -> Callable[[Source], Awaitable[Proposal]]:
        async def proposal(source: Source) -> Proposal:
            action = _fitting([task.status for task in await source.tasks_by_id(chosen)])
            return await model.for_tasks(source, action, Selector.of_ids(chosen))

        return proposal

    def settled(self, changed: Sequence[UUID]) -> None:
        self._is_matching = False
        super().settled(changed)

    def action_filter_edit(self) -> None:
        self.query_one(FilterLine).edit()

    def action_filter_clear(self) -> None:
        self.show_only(TaskFilter())

    def action_filter_facets(self) -> None:
        """To the facets beside the list, or back from there; where there is no room for them, over the list."""
        dock, source = self.query_one(FacetDock), self.desk.source
        if dock.has_focus_within:
            self.list.focus()
        elif dock.display:
            dock.enter()
        elif source is not None:
            self.app.push_screen(FacetPopup(self.desk, source.facets(self._without_picks()), self.filter), self._picked)

    def _without_picks(self) -> TaskFilter:
        """The filter without the parts that can be picked, or there would be nothing else to pick."""
        return picked(self.filter, ())

    def _picked(self, wanted: TaskFilter | None) -> None:
        if wanted is not None:
            self.show_only(wanted)

    def action_copy_id(self) -> None:
        if not self._is_too_much():
            super().action_copy_id()

    async def documents_of(self, wanted: Sequence[UUID]) -> list[dict[str, Any]] | None:
        return None if self._is_too_much() else await super().documents_of(wanted)

    def _is_too_much(self) -> bool:
        """Everything that matches is more than what is loaded, so nothing that is loaded stands for it."""
        if self._is_matching:
            self.notify("everything that matches is selected, which is not all loaded; u clears", severity="warning")
        return self._is_matching

    def action_mark_match(self) -> None:
        if self.query_one(FilterLine).is_faulty:
            self.notify("the filter makes no sense as it is typed", severity="warning")
            return
        if self.filter.is_empty:
            self.notify("without a filter that would be every task there is", severity="warning")
            return
        self.action_mark_none()
        self.call_after_refresh(self._match)

    def _match(self) -> None:
        self._is_matching = True
        self._say()

    def action_view_preview(self) -> None:
        self.toggle_class("-bare")

    def action_nav_owner(self) -> None:
        """All tasks of what the current one belongs to: its workflow, else its worker, else its queue."""
        match self.list.current:
            case TaskSummary(workflow_id=UUID() as workflow):
                self.show_only(TaskFilter(workflow_id=str(workflow)))
            case TaskSummary(worker_id=UUID() as worker):
                self.show_only(TaskFilter(worker_id=str(worker)))
            case TaskSummary(queue=queue):
                self.show_only(TaskFilter(queues=(queue,)))
            case None:
                return

    def action_copy_cli(self) -> None:
        text = filter_text(self.filter)
        self.copy(shlex.join(["horsies", "task", "list", *(("--filter", text) if text else ())]), "the command")


def _fitting(statuses: Sequence[str]) -> Action:
    """Retry where everything meant has ended, else requeue."""
    is_over = bool(statuses) and all(TaskStatus(status).is_terminal for status in statuses)
    return Action.RETRY if is_over else Action.REQUEUE
