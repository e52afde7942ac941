"""Tasks: a filtered, paged list of all tasks; actions on one, the marked ones, or all that match the filter."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, Final
from uuid import UUID

from textual import events, work
from textual.app import ComposeResult
from textual.containers import Horizontal

from horsies.model.operator_actions import Action
from horsies_ops.actions.plan import Selector
from horsies_ops.cli.output import json_line
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter, format_filter, parse_filter
from horsies_ops.reads.search import Count, Facets
from horsies_ops.reads.tasks import PayloadPreview, TaskDetail, TaskSummary
from horsies_ops.source import DataSource
from horsies_tui.data import pages
from horsies_tui.data.context import AppContext
from horsies_tui.data.pages import MAX_NEWER_COUNT, TaskWindow
from horsies_tui.data.queries import LiveQuery
from horsies_tui.format import format_count, format_day_time, plural, short_id
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.model import Proposal, ProposalFactory, propose_task_action, requeue_or_retry
from horsies_tui.screens.base import NOTHING_MATCHES, TASK_TOPICS, MainScreen, OpenTask
from horsies_tui.screens.lists import ProposalRunner, Sorting
from horsies_tui.screens.tasks.table import (
    ARGUMENTS_TITLE,
    NEWEST_FIRST,
    TASK_COLUMNS,
    TASK_SORT_KEYS,
    ArgumentPreviews,
    export_tasks,
    preview_lines,
)
from horsies_tui.system import save_rows
from horsies_tui.widgets.filter_bar import TASK_FILTER, FacetPopup, FacetSidebar, FilterBar, with_facets
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import RowList

LOOKAHEAD_PAGES: Final = 4
PAYLOADS_QUERY: Final = "payloads"
"""Name of the live query that reads the argument previews."""
NO_TASKS_TEXT: Final = """No tasks yet.
A sent task appears here at once; to send one: horsies task send NAME
Healthy: PENDING tasks start within seconds, and few end as FAILED."""
ARGUMENTS_MIN_WIDTH: Final = 140
"""Below this width the ERROR column would be too narrow beside the arguments."""


class PageRequest(Enum):
    """What the next `tasks` query loads."""

    RELOAD = auto()
    NEWEST = auto()
    OLDEST = auto()
    OLDER = auto()
    NEWER = auto()


class TasksScreen(MainScreen, scope=ScreenId.TASKS):
    """Filter bar, task list and preview pane; on wide terminals a facet sidebar.

    While rows are marked, no rows are added or moved, so that the rows under the cursor and the marks stay in place.
    """

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.filter_bar = FilterBar(TASK_FILTER)
        self.window = TaskWindow()
        self._previews = ArgumentPreviews(context.settings)
        columns = (*TASK_COLUMNS, self._previews.column)
        self.list: RowList[TaskSummary] = RowList(
            columns, key=lambda task: task.id, context=context, follows_top=True, holds_place=True
        )
        self._sorting = Sorting(TASK_SORT_KEYS, NEWEST_FIRST)
        self.proposals = ProposalRunner(self, after_apply=self._after_apply)
        self._facets: Facets | None = None
        self._page_request = PageRequest.NEWEST
        self._all_matching_selected = False
        """Whether all tasks that match the filter are selected, loaded or not."""
        self._marked_after_filter = False

    def body(self) -> ComposeResult:
        yield self.filter_bar
        with Horizontal():
            yield self.list
            yield FacetSidebar(self.context)
        yield Pane(name="preview")

    def on_mount(self) -> None:
        """Restore the last filter used with this database, and the width of the list."""
        self.list.set_wide(is_wide=self.context.state_file.state.is_wide)
        match parse_filter(self.context.state_file.state.filters.get(self.context.database_name, "")):
            case TaskFilter() as task_filter:
                self.filter_bar.set_filter(task_filter)
            case _:
                return

    @property
    def selected_ids(self) -> tuple[UUID, ...]:
        """The marked tasks or, if there are none, the one under the cursor."""
        return self.list.selection.selected

    @property
    def _is_newest_first(self) -> bool:
        return self._sorting.order == NEWEST_FIRST

    @property
    def filter(self) -> TaskFilter:
        return self.filter_bar.filter

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.HEARTBEATS}
        # Facet counts are kept current only while the sidebar shows them.
        facet_topics = TASK_TOPICS if self.has_class("-widest") else frozenset[Topic]()
        return (
            LiveQuery("tasks", self._fetch_page, self._show, topics),
            LiveQuery(
                "count",
                lambda source: source.count_tasks(self.filter),
                self._show_count,
                TASK_TOPICS,
                min_interval_s=1.0,
            ),
            LiveQuery("detail", self._fetch_detail, self._show_preview, topics),
            LiveQuery(
                "facets",
                lambda source: source.facets(self._filter_without_facets()),
                self._show_facets,
                facet_topics,
                poll_s=60.0,
                min_interval_s=10.0,
            ),
            LiveQuery(PAYLOADS_QUERY, self._fetch_previews, self._add_previews, poll_s=60.0),
        )

    async def _fetch_page(self, source: DataSource) -> TaskWindow:
        """Load the requested page; paging and refreshing share this query so that they cannot race."""
        page_request, self._page_request = self._page_request, PageRequest.RELOAD
        # The query after a filter change may have failed; a window of the old filter cannot be continued.
        if self.window.filter != self.filter and page_request is not PageRequest.OLDEST:
            page_request = PageRequest.NEWEST
        window, max_rows = self.window, self.context.settings.max_rows
        match page_request:
            case PageRequest.NEWEST:
                return await pages.load_newest(source, self.filter)
            case PageRequest.OLDEST:
                return await pages.load_oldest(source, self.filter)
            case PageRequest.OLDER:
                return await pages.load_older(source, window, max_rows=max_rows)
            case PageRequest.NEWER:
                return await pages.load_newer(source, window, max_rows=max_rows)
            case PageRequest.RELOAD if self.list.selection.marks and window.rows:
                return await pages.reload_in_place(source, window)
            case PageRequest.RELOAD:
                # On the first row the cursor follows new rows, so no row has to stay loaded for it.
                is_following = self._is_newest_first and self.list.selection.cursor_index == 0
                cursor = None if is_following else self.list.selection.cursor
                return await pages.reload(source, window, cursor=cursor)

    async def _fetch_previews(self, source: DataSource) -> Mapping[UUID, PayloadPreview]:
        # Several pages ahead: otherwise each page would be drawn twice, without and with its previews.
        missing = self._previews.missing(self.list, pages=LOOKAHEAD_PAGES)
        return await source.payload_previews(missing) if missing else {}

    def _add_previews(self, payloads: Mapping[UUID, PayloadPreview]) -> None:
        self._previews.add(payloads)
        # The rows are the same; this repaints the cells whose preview has arrived.
        self.list.show(self.list.rows)

    async def _fetch_detail(self, source: DataSource) -> TaskDetail | None:
        current = self.list.current
        return None if current is None else await source.task(current.id)

    def _show_count(self, count: Count) -> None:
        self.filter_bar.set_status(f"{format_count(count.number, is_capped=count.is_capped)} match ")
        self._update_status()

    def _show(self, window: TaskWindow) -> None:
        # A read with the previous filter may end after the filter changed.
        if window.filter != self.filter:
            return
        is_new_filter = window.filter != self.window.filter
        self.window = window
        if deleted := self.list.selection.marks & window.deleted_ids:
            self.list.selection.unmark(tuple(deleted))
            self.notify(f"{plural(len(deleted), 'marked row')} deleted meanwhile")
        now = self.context.clock.now()
        self.list.follows_top = self._is_newest_first
        self.list.empty_text = NO_TASKS_TEXT if self.filter.is_empty else NOTHING_MATCHES
        self.list.show(window.rows if self._is_newest_first else self._sorting.sort(window.rows, now))
        if is_new_filter:
            self.list.move_to(0)
        self._request_previews()
        # In an empty list the user cannot scroll to an end, so the search for newer rows continues by itself.
        if not window.rows and not window.is_at_top and self._page_request is PageRequest.RELOAD:
            self._request_page(PageRequest.NEWER)
        self._update_status()

    def _show_facets(self, facets: Facets) -> None:
        self._facets = facets
        self.query_one(FacetSidebar).show(facets, self.filter)
        by_key = {"status": facets.statuses, "queue": facets.queues, "name": facets.names, "err": facets.error_codes}
        values = {key: [facet.value for facet in key_facets] for key, key_facets in by_key.items()}
        # Filters are written in lower case, and completion starts from what was typed.
        values["status"] = [value.lower() for value in values["status"]]
        self.filter_bar.suggester.values = values

    def _show_preview(self, detail: TaskDetail | None) -> None:
        if detail is None:
            self.show_pane("preview", [], title="")
        else:
            lines = partial(preview_lines, detail, self.context.clock.now(), self.context.settings)
            self.show_pane("preview", lines, title=f"{short_id(detail.task.id)} {detail.task.name}")

    def _update_status(self) -> None:
        marks, window = self.list.selection.marks, self.window
        plus = "+" if window.newer_count >= MAX_NEWER_COUNT else ""
        if self._all_matching_selected:
            self.set_status("all matching tasks selected", "u clears")
        elif marks:
            hidden = len(marks.difference(window.ids))
            marked = f"{len(marks)} marked" + (f", {hidden} not in this list" if hidden else "")
            waiting = f"{window.newer_count}{plus} newer waiting" if window.newer_count else ""
            self.set_status(marked, plural(len(window.rows), "row"), "HELD while rows are marked", waiting)
        else:
            order = "" if self._is_newest_first else f"{self._sorting.order}, loaded rows only"
            above = window.newer_count + (self.list.rows_above if self._is_newest_first else 0)
            newer = f"{above:,}{plus} newer, g follows" if above else ""
            self.set_status(f"{plural(len(window.rows), 'row')} loaded", self._extent_text(), order, newer)

    def _extent_text(self) -> str:
        """Say whether there are more rows to load, and how far back or forward a slow search has come."""
        if self.window.searched_to is not None:
            return f"searched back to {format_day_time(self.window.searched_to)}, scroll down to continue"
        if self.window.searched_newer_to is not None:
            progress = "scroll up to continue" if self.window.rows else "still searching"
            return f"searched up to {format_day_time(self.window.searched_newer_to)}, {progress}"
        if not self.window.rows:
            return "nothing matches" if not self.filter.is_empty else "no tasks yet"
        return "more below" if self.window.has_older else "no more below"

    def on_row_list_cursor_moved(self) -> None:
        self._update_labels()
        self._update_status()
        self.context.queries.refresh("detail")
        self._request_previews()

    def on_row_list_marks_changed(self) -> None:
        self._all_matching_selected, self._marked_after_filter = False, True
        self._update_labels()
        self._update_status()
        if not self.list.selection.marks:
            # Load the changes that were held back while rows were marked.
            self.context.queries.refresh("tasks")

    def on_row_list_edge_neared(self, message: RowList.EdgeNeared) -> None:
        if message.older and self.window.has_older:
            self._request_page(PageRequest.OLDER)
        elif not message.older and not self.window.is_at_top:
            self._request_page(PageRequest.NEWER)

    def on_row_list_end_requested(self, message: RowList.EndRequested) -> None:
        """Jump to the newest or oldest task; continue the search instead if matches are rare."""
        if message.older and self.window.has_older:
            self._request_page(PageRequest.OLDEST if self.window.searched_to is None else PageRequest.OLDER)
        elif not message.older and not self.window.is_at_top:
            self._request_page(PageRequest.NEWEST)

    def on_row_list_opened(self) -> None:
        if (task := self.list.current) is not None:
            self.post_message(OpenTask(task.id, tuple(row.id for row in self.list.rows)))

    def on_filter_bar_changed(self) -> None:
        self._all_matching_selected = self._marked_after_filter = False
        self._request_page(PageRequest.NEWEST)
        self.context.queries.refresh("count")
        self.context.queries.refresh("facets")
        self.context.state_file.save_filter(self.context.database_name, format_filter(self.filter))
        if self._facets is not None:
            # Tick the chosen values now; the new counts follow later.
            self.query_one(FacetSidebar).show(self._facets, self.filter)

    def on_facet_sidebar_picked(self, message: FacetSidebar.Picked) -> None:
        self.filter_bar.set_filter(message.filter)

    def _update_labels(self) -> None:
        """Label `R` by what it does to the selected rows; hidden ones are read when the preview opens."""
        selected_ids = set(self.selected_ids)
        statuses = [row.status for row in self.list.rows if row.id in selected_ids]
        self.set_label("op.requeue", requeue_or_retry(statuses))

    def _request_page(self, page_request: PageRequest) -> None:
        self._page_request = page_request
        self.context.queries.refresh("tasks")

    def _request_previews(self) -> None:
        """Read argument previews if visible rows lack them."""
        if self._previews.missing(self.list):
            self.context.queries.refresh(PAYLOADS_QUERY)

    def step_back(self) -> bool:
        """Leave the filter bar or sidebar, then clear marks and filter, the newer of the two first."""
        has_marks = self._all_matching_selected or bool(self.list.selection.marks)
        if self.query_one(FacetSidebar).has_focus_within:
            self.list.focus()
        elif has_marks and self._marked_after_filter and not self.filter_bar.has_focus_within:
            self.list.mark("none")
        elif self.filter_bar.step_back():
            pass
        elif has_marks:
            self.list.mark("none")
        else:
            return False
        return True

    def apply_filter(self, task_filter: TaskFilter) -> None:
        """Show only the tasks that match this filter."""
        self.filter_bar.set_filter(task_filter)
        self.list.focus()

    def proposal(self, verb: str) -> ProposalFactory | None:
        """An action on the tasks selected now, even if the list changes meanwhile."""
        if self._all_matching_selected:
            action = requeue_or_retry(self.filter.statuses) if verb == "requeue" else Action(verb)
            return partial(propose_task_action, action=action, selector=Selector.matching(self.filter))
        task_ids = self.selected_ids

        async def make_proposal(source: DataSource) -> Proposal:
            if verb == "requeue":
                # Read the tasks first: the action depends on their statuses, and a filter may hide some of them.
                action = requeue_or_retry([task.status for task in await source.tasks_by_id(task_ids)])
            else:
                action = Action(verb)
            return await propose_task_action(source, action, Selector.of_ids(task_ids))

        return make_proposal if task_ids else None

    def _after_apply(self, changed: Sequence[UUID]) -> None:
        """Unmark the changed rows; skipped ones stay marked."""
        # A second action must not apply to the same filter, which may match other tasks by now.
        self._all_matching_selected = False
        self.list.unmark(changed)

    def action_filter_facets(self) -> None:
        """Move the focus to the sidebar and back; without a sidebar, open the facets as a popup."""
        sidebar, source = self.query_one(FacetSidebar), self.context.source
        if sidebar.has_focus_within:
            self.list.focus()
        elif sidebar.display:
            sidebar.focus_list()
        elif source is not None:
            self.app.push_screen(
                FacetPopup(self.context, source.facets(self._filter_without_facets()), self.filter),
                self._on_facets_picked,
            )

    def _filter_without_facets(self) -> TaskFilter:
        """Drop the conditions set by facets; with them, only the chosen values would be offered."""
        return with_facets(self.filter, ())

    def _on_facets_picked(self, task_filter: TaskFilter | None) -> None:
        if task_filter is not None:
            self.apply_filter(task_filter)

    def action_copy_id(self) -> None:
        if not self._refuse_all_matching():
            self.copy_text("\n".join(map(str, self.selected_ids)), "ids")

    def on_resize(self, event: events.Resize) -> None:
        self.list.hide_columns(*(() if event.size.width >= ARGUMENTS_MIN_WIDTH else (ARGUMENTS_TITLE,)))

    def action_view_wide(self) -> None:
        self.list.set_wide(is_wide=not self.list.is_wide)
        self.context.state_file.update(is_wide=self.list.is_wide)
        self._request_previews()

    def action_nav_left(self) -> None:
        self.list.scroll_columns(-1)

    def action_nav_right(self) -> None:
        self.list.scroll_columns(1)
        self._request_previews()

    def action_view_max(self) -> None:
        """Toggle between the list alone and the list with its panes."""
        self.toggle_class("-list-only")

    def action_view_sort(self) -> None:
        self._sorting.pick(self, lambda: self.context.queries.refresh("tasks"))

    @work(group="export", exit_on_error=False)
    async def action_copy_json(self) -> None:
        if (documents := await self._load_documents(self.selected_ids)) is not None:
            self.copy_text(json_line(documents), "as JSON")

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Save the marked rows or, without marks, all loaded rows to a file."""
        task_ids = self.selected_ids if self.list.selection.marks else [row.id for row in self.list.rows]
        if (documents := await self._load_documents(task_ids)) is not None:
            await save_rows(self, "tasks", documents, self.context.clock.now())

    async def _load_documents(self, task_ids: Sequence[UUID]) -> list[dict[str, Any]] | None:
        """Return these tasks as export documents; None, after a notice, if they cannot be read."""
        listed, settings = {task.id: task for task in self.list.rows}, self.context.settings

        async def load(source: DataSource) -> list[dict[str, Any]]:
            hidden_ids = [task_id for task_id in task_ids if task_id not in listed]
            hidden = await source.tasks_by_id(hidden_ids) if hidden_ids else ()
            tasks = listed | {task.id: task for task in hidden}
            return await export_tasks(source, [tasks[task_id] for task_id in task_ids if task_id in tasks], settings)

        return None if self._refuse_all_matching() else await self.read(load)

    def _refuse_all_matching(self) -> bool:
        """Refuse to copy or export while all matching tasks are selected, since some are not loaded."""
        if self._all_matching_selected:
            self.notify("all matching tasks are selected, but not all are loaded; u clears", severity="warning")
        return self._all_matching_selected

    def action_mark(self, rows: str) -> None:
        if rows == "match":
            self._mark_match()
        else:
            self.list.mark(rows)

    def _mark_match(self) -> None:
        if self.filter_bar.is_invalid:
            self.notify("the filter is invalid", severity="warning")
            return
        if self.filter.is_empty:
            self.notify("set a filter first; without one this selects every task", severity="warning")
            return
        self.list.mark("none")
        # Set only after the MarksChanged message of this call, which would reset it.
        self.call_after_refresh(self._select_all_matching)

    def _select_all_matching(self) -> None:
        self._all_matching_selected = self._marked_after_filter = True
        self._update_status()

    def action_view_preview(self) -> None:
        self.toggle_class("-no-preview")

    def action_nav_owner(self) -> None:
        """List all tasks of the current one's workflow run, else of its worker, else of its queue."""
        match self.list.current:
            case TaskSummary(workflow_id=UUID() as run_id):
                self.apply_filter(TaskFilter(workflow_id=str(run_id)))
            case TaskSummary(worker_id=UUID() as worker_id):
                self.apply_filter(TaskFilter(worker_id=str(worker_id)))
            case TaskSummary(queue=queue):
                self.apply_filter(TaskFilter(queues=(queue,)))
            case None:
                return

    def action_copy_cli(self) -> None:
        text = format_filter(self.filter)
        self.copy_text(shlex.join(["horsies", "task", "list", *(("--filter", text) if text else ())]), "the command")
