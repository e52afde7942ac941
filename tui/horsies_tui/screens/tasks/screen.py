"""Tasks: every row within reach, narrowed down by a filter, and acted on one by one, marked, or all that match."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Any, ClassVar, Final
from uuid import UUID

from textual import events, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from horsies.errors import HorsiesError
from horsies.model.operator_actions import Action
from horsies.model.task import TaskStatus
from horsies_ops.actions.plan import Selector
from horsies_ops.cli.output import json_line
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter, format_filter, parse_filter
from horsies_ops.reads.search import Count, Facets
from horsies_ops.reads.tasks import TaskDetail, TaskSummary
from horsies_tui.data import pages
from horsies_tui.data.context import AppContext
from horsies_tui.data.pages import MAX_NEWER_COUNT, TaskWindow
from horsies_tui.data.queries import LiveQuery
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_count, format_day_time, plural, sanitize
from horsies_tui.keys import Place, bindings
from horsies_tui.proposals import model
from horsies_tui.proposals.model import Proposal
from horsies_tui.screens.base import TASK_TOPICS
from horsies_tui.screens.lists import MarkableTaskScreen
from horsies_tui.screens.tasks.table import (
    ARGUMENTS_TITLE,
    NEWEST_FIRST,
    SORT_COLUMNS,
    TASK_COLUMNS,
    ArgumentPreviews,
    TaskPreview,
    export_tasks,
    sort_keys,
)
from horsies_tui.system import save_rows
from horsies_tui.widgets.dialogs import SortPicker
from horsies_tui.widgets.facets import FacetPopup, FacetSidebar, with_facets
from horsies_tui.widgets.filter_bar import TaskFilterBar
from horsies_tui.widgets.row_list import RowList

# A list of tasks as a table: its rows sorted, its columns widened, an excerpt of what each was given, rows saved.

PAYLOADS_QUERY: Final = "payloads"
"""The want that `fetch_payloads` answers."""
LOOKAHEAD_PAGES: Final = 4
ARGUMENTS_MIN_WIDTH: Final = 140
"""From here on there is room for an excerpt beside an error that can be read."""


class TaskListScreen(MarkableTaskScreen):
    """A subclass loads rows and hands them to `show_rows`."""

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs)
        self._argument_previews = ArgumentPreviews(context.settings)
        self.list: RowList[TaskSummary] = RowList(
            (*TASK_COLUMNS, self._argument_previews.column),
            key=lambda task: task.id,
            now=context.clock.now,
            glyphs=context.glyphs,
        )
        self.order = NEWEST_FIRST

    def on_mount(self) -> None:
        self.list.set_wide(is_wide=self.context.state_file.state.is_wide)

    def show_rows(self, rows: Sequence[TaskSummary]) -> None:
        """Show what is loaded, in the order that was picked; newest first it comes already."""
        is_usual = self.order == NEWEST_FIRST
        self.list.show(rows if is_usual else self.order.sort(rows, sort_keys(self.context.clock.now())))
        self.request_argument_previews()

    @property
    def order_text(self) -> str:
        """Which order that is; but for the usual one it holds for the loaded rows alone."""
        return "" if self.order == NEWEST_FIRST else f"{self.order}, as far as loaded"

    async def fetch_payloads(self, source: DataSource) -> None:
        """Learn what the rows on the screen and around it were given, where there is a column for it."""
        if ARGUMENTS_TITLE in self.list.titles:
            # Some pages ahead, or each page would be drawn twice: without them, and again when they have come.
            self._argument_previews.add(
                await source.payload_previews(self._argument_previews.missing(self.list.rows_around(LOOKAHEAD_PAGES)))
            )

    def request_argument_previews(self) -> None:
        """Other rows or columns may be seen now, or soon."""
        if ARGUMENTS_TITLE in self.list.titles and self._argument_previews.missing(self.list.rows_around(1)):
            self.context.queries.refresh(PAYLOADS_QUERY)

    def on_resize(self, event: events.Resize) -> None:
        self.list.hide_columns(*(() if event.size.width >= ARGUMENTS_MIN_WIDTH else (ARGUMENTS_TITLE,)))

    def action_view_wide(self) -> None:
        self.list.set_wide(is_wide=not self.list.is_wide)
        self.context.state_file.update(is_wide=self.list.is_wide)
        self.request_argument_previews()

    def action_nav_left(self) -> None:
        self.list.scroll_columns(-1)

    def action_nav_right(self) -> None:
        self.list.scroll_columns(1)
        self.request_argument_previews()

    def action_view_max(self) -> None:
        """The list alone, or everything around it again."""
        self.toggle_class("-max")

    def action_view_sort(self) -> None:
        self.app.push_screen(SortPicker(SORT_COLUMNS, self.order.column), self._sorted_by)

    def _sorted_by(self, by: str | None) -> None:
        if by is not None:
            self.order = self.order.with_column(by)
            self.context.queries.refresh("tasks")

    @work(group="export", exit_on_error=False)
    async def action_copy_json(self) -> None:
        if (rows := await self.documents_of(self.selected_ids)) is not None:
            self.copy_text(json_line(rows), "as JSON")

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Save the marked rows, or all that are loaded."""
        wanted = self.selected_ids if self.list.selection.marks else [row.id for row in self.list.rows]
        if (rows := await self.documents_of(wanted)) is not None:
            await save_rows(self, "tasks", rows, self.context.clock.now())

    async def _load_rows(self, source: DataSource, task_ids: Sequence[UUID]) -> list[TaskSummary]:
        """In the order in which they are wanted; those that a filter hides are read."""
        known = {task.id: task for task in self.list.rows}
        hidden = [each for each in task_ids if each not in known]
        known |= {task.id: task for task in await source.tasks_by_id(hidden)} if hidden else {}
        return [known[each] for each in task_ids if each in known]

    async def documents_of(self, wanted: Sequence[UUID]) -> list[dict[str, Any]] | None:
        """These tasks as they leave the screen, loaded or not; None where nobody can be asked what they were given."""
        source = self.context.source
        if source is None:
            self.notify("there is no connection", severity="warning")
            return None
        try:
            return await export_tasks(source, await self._load_rows(source, wanted), self.context.settings)
        except HorsiesError as error:
            self.notify(sanitize(error.message), severity="error", markup=False)
            return None


class PageRequest(Enum):
    """Which stretch of the list is wanted next."""

    AGAIN = auto()
    NEWEST = auto()
    OLDEST = auto()
    OLDER = auto()
    NEWER = auto()


class TasksScreen(TaskListScreen):
    """The list, its filter above it and a preview below; facets beside it where there is room.

    While rows are marked, none of them moves.
    """

    place = Place.TASKS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.TASKS)]

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs)
        self.window = TaskWindow()
        self._facets: Facets | None = None
        self._page_request = PageRequest.NEWEST
        self._is_all_matching = False
        """Whether everything that matches the filter is selected, which is more than what is loaded."""

    def body(self) -> ComposeResult:
        yield TaskFilterBar(prompt=self.context.glyphs.prompt)
        with Horizontal():
            yield self.list
            yield FacetSidebar(self.context)
        yield TaskPreview(id="preview")

    def on_mount(self) -> None:
        """Begin with the filter that was used last."""
        match parse_filter(self.context.state_file.state.filters.get(self.context.database_name, "")):
            case TaskFilter() as wanted:
                self.query_one(TaskFilterBar).set_filter(wanted)
            case _:
                return

    @property
    def filter(self) -> TaskFilter:
        return self.query_one(TaskFilterBar).filter

    def live_queries(self) -> Sequence[LiveQuery]:
        alive = TASK_TOPICS | {Topic.HEARTBEATS}
        return (
            LiveQuery(name="tasks", fetch=self._fetch, invalidated_by=alive),
            LiveQuery(name="count", fetch=self._fetch_count, invalidated_by=TASK_TOPICS, min_interval_s=1.0),
            LiveQuery(name="detail", fetch=self._fetch_detail, invalidated_by=alive),
            LiveQuery(
                name="facets",
                fetch=self._fetch_facets,
                invalidated_by=self._facet_topics,
                poll_s=60.0,
                min_interval_s=10.0,
            ),
            LiveQuery(name=PAYLOADS_QUERY, fetch=self.fetch_payloads, invalidated_by=frozenset(), poll_s=60.0),
        )

    @property
    def _facet_topics(self) -> frozenset[Topic]:
        """Their counts are kept up to date only where they are seen."""
        return TASK_TOPICS if self.has_class("-widest") else frozenset()

    async def _fetch(self, source: DataSource) -> TaskWindow:
        """One question at a time decides what the window is, so that a page and a refresh cannot cross."""
        ask, self._page_request = self._next_page_request(), PageRequest.AGAIN
        window, most = self.window, self.context.settings.max_rows
        match ask:
            case PageRequest.NEWEST:
                return await pages.load_newest(source, self.filter)
            case PageRequest.OLDEST:
                return await pages.load_oldest(source, self.filter)
            case PageRequest.OLDER:
                return await pages.load_older(source, window, max_rows=most)
            case PageRequest.NEWER:
                return await pages.load_newer(source, window, max_rows=most)
            case PageRequest.AGAIN if self.list.selection.marks and window.rows:
                return await pages.reload_in_place(source, window)
            case PageRequest.AGAIN:
                return await pages.reload(source, window, cursor=self.list.selection.cursor)

    def _next_page_request(self) -> PageRequest:
        """What is loaded for another filter is no beginning: the question that was to replace it may have failed."""
        is_of_another = self.window.filter != self.filter
        return (
            PageRequest.NEWEST if is_of_another and self._page_request is not PageRequest.OLDEST else self._page_request
        )

    async def _fetch_count(self, source: DataSource) -> Count:
        return await source.count_tasks(self.filter)

    async def _fetch_detail(self, source: DataSource) -> TaskDetail | None:
        current = self.list.current
        return None if current is None else await source.task(current.id)

    async def _fetch_facets(self, source: DataSource) -> Facets:
        return await source.facets(self._filter_without_facets())

    def show_result(self, name: str, value: object) -> None:
        match value:
            case TaskWindow() if value.filter == self.filter:
                self._show(value)
            case Count():
                self.query_one(TaskFilterBar).set_status(
                    f"{format_count(value.number, is_capped=value.is_capped)} match "
                )
            case Facets():
                self._show_facets(value)
            case None if name == PAYLOADS_QUERY:
                self.list.show(self.list.rows)
            case TaskDetail() | None if name == "detail":
                self.query_one(TaskPreview).show(value, now=self.context.clock.now(), settings=self.context.settings)
            case _:
                return
        self._say()

    def _show(self, window: TaskWindow) -> None:
        self.window = window
        if lost := self.list.selection.marks & window.deleted_ids:
            self.list.selection.unmark(tuple(lost))
            self.notify(f"{plural(len(lost), 'marked row')} no longer there")
        self.show_rows(window.rows)
        if not window.rows and not window.is_at_top and self._page_request is PageRequest.AGAIN:
            self._request_page(PageRequest.NEWER)

    def _show_facets(self, facets: Facets) -> None:
        self._facets = facets
        self.query_one(FacetSidebar).show(facets, self.filter)
        named = {"status": facets.statuses, "queue": facets.queues, "name": facets.names, "err": facets.error_codes}
        values = {key: [facet.value for facet in found] for key, found in named.items()}
        values["status"] = [value.lower() for value in values["status"]]
        self.query_one(TaskFilterBar).suggester.values = values

    def _say(self) -> None:
        marks, window = self.list.selection.marks, self.window
        waiting = (
            f"{window.newer_count}{'+' if window.newer_count >= MAX_NEWER_COUNT else ''} newer waiting"
            if window.newer_count
            else ""
        )
        if self._is_all_matching:
            self.set_status("everything that matches is selected", "u clears")
        elif marks:
            hidden = len(marks.difference(window.ids))
            marked = f"{len(marks)} marked" + (f", {hidden} not in this list" if hidden else "")
            self.set_status(marked, plural(len(window.rows), "row"), "HELD while rows are marked", waiting)
        else:
            self.set_status(f"{plural(len(window.rows), 'row')} loaded", self._extent(), self.order_text, waiting)

    def _extent(self) -> str:
        if self.window.searched_to is not None:
            return f"searched back to {format_day_time(self.window.searched_to)}, further down goes on"
        if self.window.searched_newer_to is not None:
            going_on = "further up goes on" if self.window.rows else "still searching"
            return f"searched up to {format_day_time(self.window.searched_newer_to)}, {going_on}"
        if not self.window.rows:
            return "nothing matches" if not self.filter.is_empty else "no tasks yet"
        return "more below" if self.window.has_older else "to the end"

    def tick(self) -> None:
        self.list.tick()

    def on_row_list_cursor_moved(self) -> None:
        self.context.queries.refresh("detail")
        self.request_argument_previews()

    def on_row_list_marks_changed(self) -> None:
        self._is_all_matching = False
        self._say()
        if not self.list.selection.marks:
            self.context.queries.refresh("tasks")

    def on_row_list_edge_neared(self, message: RowList.EdgeNeared) -> None:
        if message.older and self.window.has_older:
            self._request_page(PageRequest.OLDER)
        elif not message.older and not self.window.is_at_top:
            self._request_page(PageRequest.NEWER)

    def on_row_list_end_requested(self, message: RowList.EndRequested) -> None:
        """The first or the last of all tasks, however many there are between; rare ones are searched on for."""
        if message.older and self.window.has_older:
            self._request_page(PageRequest.OLDEST if self.window.searched_to is None else PageRequest.OLDER)
        elif not message.older and not self.window.is_at_top:
            self._request_page(PageRequest.NEWEST)

    def on_row_list_opened(self) -> None:
        if (task := self.list.current) is not None:
            self.open_task(task.id, [row.id for row in self.list.rows])

    def on_task_filter_bar_changed(self) -> None:
        self._is_all_matching = False
        self._request_page(PageRequest.NEWEST)
        self.context.queries.refresh("count")
        self.context.queries.refresh("facets")
        self.context.state_file.save_filter(self.context.database_name, format_filter(self.filter))
        if self._facets is not None:
            self.query_one(FacetSidebar).show(self._facets, self.filter)

    def on_facet_sidebar_picked(self, message: FacetSidebar.Picked) -> None:
        self.query_one(TaskFilterBar).set_filter(message.filter)

    def on_task_filter_bar_exited(self) -> None:
        self.list.focus()

    def _request_page(self, page_request: PageRequest) -> None:
        self._page_request = page_request
        self.context.queries.refresh("tasks")

    def step_back(self) -> bool:
        """Out of the filter or the facets; then the filter itself; then the marks."""
        line = self.query_one(TaskFilterBar)
        if line.has_focus_within or self.query_one(FacetSidebar).has_focus_within:
            self.list.focus()
        elif not line.filter.is_empty or line.text:
            line.set_filter(TaskFilter())
        elif self._is_all_matching or self.list.selection.marks:
            self.action_mark_none()
        else:
            return False
        return True

    def apply_filter(self, task_filter: TaskFilter) -> None:
        """Narrow the list down to these."""
        self.query_one(TaskFilterBar).set_filter(task_filter)
        self.list.focus()

    def selector(self) -> Selector | None:
        if self._is_all_matching:
            return Selector.matching(self.filter)
        return Selector.of_ids(self.selected_ids) if self.selected_ids else None

    def requeue_or_retry(self) -> Action:
        """What `R` means of everything that matches."""
        return _requeue_or_retry(self.filter.statuses)

    def action_op_requeue(self) -> None:
        """Rows are read first: what `R` means of them depends on how they stand, and a filter may hide some."""
        if self._is_all_matching or not self.selected_ids:
            super().action_op_requeue()
        else:
            self.propose(self._requeue_proposal(self.selected_ids))

    def action_plan_dry(self) -> None:
        if self._is_all_matching or not self.selected_ids:
            super().action_plan_dry()
        else:
            self.dry_run(self._requeue_proposal(self.selected_ids))

    def _requeue_proposal(self, task_ids: Sequence[UUID]) -> Callable[[DataSource], Awaitable[Proposal]]:
        async def proposal(source: DataSource) -> Proposal:
            action = _requeue_or_retry([task.status for task in await source.tasks_by_id(task_ids)])
            return await model.propose_task_action(source, action, Selector.of_ids(task_ids))

        return proposal

    def after_apply(self, changed: Sequence[UUID]) -> None:
        self._is_all_matching = False
        super().after_apply(changed)

    def action_filter_edit(self) -> None:
        self.query_one(TaskFilterBar).edit()

    def action_filter_clear(self) -> None:
        self.apply_filter(TaskFilter())

    def action_filter_facets(self) -> None:
        """To the facets beside the list, or back from there; where there is no room for them, over the list."""
        dock, source = self.query_one(FacetSidebar), self.context.source
        if dock.has_focus_within:
            self.list.focus()
        elif dock.display:
            dock.focus_list()
        elif source is not None:
            self.app.push_screen(
                FacetPopup(self.context, source.facets(self._filter_without_facets()), self.filter),
                self._on_facets_picked,
            )

    def _filter_without_facets(self) -> TaskFilter:
        """The filter without the parts that can be picked, or there would be nothing else to pick."""
        return with_facets(self.filter, ())

    def _on_facets_picked(self, task_filter: TaskFilter | None) -> None:
        if task_filter is not None:
            self.apply_filter(task_filter)

    def action_copy_id(self) -> None:
        if not self._refuse_all_matching():
            super().action_copy_id()

    async def documents_of(self, wanted: Sequence[UUID]) -> list[dict[str, Any]] | None:
        return None if self._refuse_all_matching() else await super().documents_of(wanted)

    def _refuse_all_matching(self) -> bool:
        """Everything that matches is more than what is loaded, so nothing that is loaded stands for it."""
        if self._is_all_matching:
            self.notify("everything that matches is selected, which is not all loaded; u clears", severity="warning")
        return self._is_all_matching

    def action_mark_match(self) -> None:
        if self.query_one(TaskFilterBar).is_invalid:
            self.notify("the filter makes no sense as it is typed", severity="warning")
            return
        if self.filter.is_empty:
            self.notify("without a filter that would be every task there is", severity="warning")
            return
        self.action_mark_none()
        self.call_after_refresh(self._select_all_matching)

    def _select_all_matching(self) -> None:
        self._is_all_matching = True
        self._say()

    def action_view_preview(self) -> None:
        self.toggle_class("-bare")

    def action_nav_owner(self) -> None:
        """All tasks of what the current one belongs to: its workflow, else its worker, else its queue."""
        match self.list.current:
            case TaskSummary(workflow_id=UUID() as workflow):
                self.apply_filter(TaskFilter(workflow_id=str(workflow)))
            case TaskSummary(worker_id=UUID() as worker):
                self.apply_filter(TaskFilter(worker_id=str(worker)))
            case TaskSummary(queue=queue):
                self.apply_filter(TaskFilter(queues=(queue,)))
            case None:
                return

    def action_copy_cli(self) -> None:
        text = format_filter(self.filter)
        self.copy_text(shlex.join(["horsies", "task", "list", *(("--filter", text) if text else ())]), "the command")


def _requeue_or_retry(statuses: Sequence[str]) -> Action:
    """Retry where everything meant has ended, else requeue."""
    is_over = bool(statuses) and all(TaskStatus(status).is_terminal for status in statuses)
    return Action.RETRY if is_over else Action.REQUEUE
