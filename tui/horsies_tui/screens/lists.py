"""Base classes of screens with a list: searching, sorting, previewing changes, marking tasks and acting on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.operator_actions import Action
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.format import sanitize
from horsies_tui.keys import Place
from horsies_tui.messages import OpenTask
from horsies_tui.proposals import model
from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.proposals.model import Proposal, ProposalReport
from horsies_tui.screens.base import MainScreen
from horsies_tui.widgets.dialogs import SortOrder, SortPicker
from horsies_tui.widgets.filter_bar import SearchBar
from horsies_tui.widgets.row_list import Column, RowList

if TYPE_CHECKING:
    from horsies_ops.actions.plan import Selector

T = TypeVar("T")

ProposalFactory: TypeAlias = Callable[[DataSource], Awaitable[Proposal]]


class FilteredListScreen(MainScreen):
    """A list with a search bar. A subclass yields `search_bar`, shows `matching_rows` and redraws in `apply_search`."""

    list: RowList[Any]

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs)
        self.search_bar = SearchBar(prompt=context.glyphs.prompt)

    def apply_search(self) -> None:
        """Redraw the rows after the search words changed."""
        raise NotImplementedError

    def matching_rows(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows that contain every search word, in any column."""
        return [row for row in rows if all(word in self._row_text(row) for word in self.search_bar.words)]

    def _row_text(self, row: object) -> str:
        # Ages are not searched: rows would appear and disappear as time passes.
        now = self.context.clock.now()
        return " ".join(column.cell(row, now).text for column in self.list.columns if not column.ticks).lower()

    def on_search_bar_changed(self) -> None:
        self.apply_search()

    def on_search_bar_exited(self) -> None:
        self.list.focus()
        self.search_bar.hide_if_empty()

    def step_back(self) -> bool:
        return self.search_bar.step_back()

    def action_filter_edit(self) -> None:
        self.search_bar.edit()

    def action_filter_clear(self) -> None:
        self.search_bar.clear()


class ProposingScreen(MainScreen):
    """A screen that can change the database, always through the preview of a `Proposal`."""

    _is_previewing = False

    def after_apply(self, changed: Sequence[UUID]) -> None:
        """Refresh after a change was applied; `changed` are the tasks among the changed rows."""
        del changed
        self.context.queries.refresh()

    def propose(self, make_proposal: ProposalFactory) -> None:
        """Preview a change; apply it if the operator confirms."""
        if self.context.can_act:
            self._start_preview(make_proposal, is_dry_run=False)
        else:
            self.notify("actions are disabled", severity="warning")

    def dry_run(self, make_proposal: ProposalFactory) -> None:
        """Preview a change without the option to apply it; allowed in read-only sessions."""
        self._start_preview(make_proposal, is_dry_run=True)

    def _start_preview(self, make_proposal: ProposalFactory, *, is_dry_run: bool) -> None:
        """Open one preview at a time, so that a key pressed twice does not act twice."""
        # Keys typed while a dialog opens still reach this screen, which is no longer current by then.
        if not self._is_previewing and self.is_current:
            self._is_previewing = True
            self.run_worker(self._preview(make_proposal, is_dry_run=is_dry_run), group="act", exit_on_error=False)

    async def _preview(self, make_proposal: ProposalFactory, *, is_dry_run: bool) -> None:
        try:
            proposal = await self._make_proposal(make_proposal)
            if proposal is not None:
                dialog = ProposalDialog(
                    proposal,
                    database_name=self.context.database_name,
                    requires_reason=self.context.settings.require_reason and not is_dry_run,
                    is_dry_run=is_dry_run,
                )
                self.app.push_screen(dialog, self._on_dialog_closed)
        finally:
            # An open dialog needs no flag: this screen is not current below it.
            self._is_previewing = False

    async def _make_proposal(self, make_proposal: ProposalFactory) -> Proposal | None:
        source = self.context.source
        if source is None:
            self.notify("not connected", severity="warning")
            return None
        try:
            return await make_proposal(source)
        except HorsiesError as error:
            self.notify(sanitize(error.message), severity="error", markup=False)
            return None

    def _on_dialog_closed(self, report: ProposalReport | None) -> None:
        if report is not None:
            self.after_apply(report.changed_ids)


class SortedListScreen(FilteredListScreen, ProposingScreen, Generic[T]):
    """A short list, loaded completely, with a detail pane for the row under the cursor.

    A subclass defines columns and sort keys, and a live query named `detail` that reads the current row.
    """

    sort_keys: ClassVar[Mapping[str, Callable[[Any], Any]]]

    def __init__(
        self, context: AppContext, tabs: frozenset[Place], columns: Sequence[Column[T]], *, key: Callable[[T], Hashable]
    ) -> None:
        super().__init__(context, tabs)
        self.list: RowList[T] = RowList(columns, key=key, now=context.clock.now, glyphs=context.glyphs)
        self.order = SortOrder(column=next(iter(self.sort_keys)))
        self._rows: tuple[T, ...] = ()
        self._cursor: Hashable = None

    def show_rows(self, rows: Sequence[T]) -> None:
        """Show these rows, replacing all others."""
        self._rows = tuple(rows)
        self.list.show(self.order.sort(self.matching_rows(self.visible_rows(self._rows)), self.sort_keys))

    def apply_search(self) -> None:
        self.show_rows(self._rows)
        self.show_detail()

    def visible_rows(self, rows: Sequence[T]) -> Sequence[T]:
        """Return the rows that are not hidden by a toggle; all by default."""
        return rows

    def show_detail(self) -> None:
        """Draw the detail pane of the row under the cursor from what has been read so far."""
        raise NotImplementedError

    def on_row_list_cursor_moved(self) -> None:
        # Also posted when the content of the cursor's row changed; then the detail query refreshes by itself.
        if self.list.selection.cursor != self._cursor:
            self._cursor = self.list.selection.cursor
            self.context.queries.refresh("detail")
        self.show_detail()

    def tick(self) -> None:
        self.list.tick()

    def action_view_sort(self) -> None:
        self.app.push_screen(SortPicker(tuple(self.sort_keys), self.order.column), self._on_sort_picked)

    def _on_sort_picked(self, column: str | None) -> None:
        if column is not None:
            self.order = self.order.with_column(column)
            self.show_rows(self._rows)


class TaskActionScreen(ProposingScreen):
    """A screen whose tasks can be requeued, retried, failed, expired and cancelled."""

    def selector(self) -> Selector | None:
        """Return the tasks an action applies to now, or None."""
        raise NotImplementedError

    def requeue_or_retry(self) -> Action:
        """Return what `R` does to the selected tasks: REQUEUE or RETRY."""
        raise NotImplementedError

    def propose_action(self, action: Action) -> None:
        """Preview the action on the tasks selected now, even if the list changes meanwhile."""
        # Taken here, not when the preview is loaded: the cursor may be on another row by then.
        selector = self.selector()
        if selector is None:
            self.notify("no row selected")
        else:
            self.propose(self.proposal_factory(action, selector))

    def proposal_factory(self, action: Action, selector: Selector) -> ProposalFactory:
        return lambda source: model.propose_task_action(source, action, selector)

    def open_task(self, task_id: UUID, sibling_ids: Sequence[UUID] = ()) -> None:
        """Open the detail screen of a task; its next/previous keys walk through `sibling_ids`."""
        self.post_message(OpenTask(task_id, sibling_ids))

    def action_op_requeue(self) -> None:
        self.propose_action(self.requeue_or_retry())

    def action_plan_dry(self) -> None:
        """Preview what `R` would do."""
        selector = self.selector()
        if selector is None:
            self.notify("no row selected")
        else:
            self.dry_run(self.proposal_factory(self.requeue_or_retry(), selector))

    def action_op_fail(self) -> None:
        self.propose_action(Action.FAIL)

    def action_op_expire(self) -> None:
        self.propose_action(Action.EXPIRE)

    def action_op_cancel(self) -> None:
        self.propose_action(Action.CANCEL)


class MarkableTaskScreen(TaskActionScreen):
    """A list of tasks, keyed by id, in which rows can be marked."""

    list: RowList[Any]

    @property
    def selected_ids(self) -> tuple[UUID, ...]:
        """The marked tasks or, if there are none, the one under the cursor."""
        return tuple(key for key in self.list.selection.selected if isinstance(key, UUID))

    def after_apply(self, changed: Sequence[UUID]) -> None:
        """Unmark the changed rows; skipped ones stay marked."""
        self.list.selection.unmark(changed)
        self.list.refresh_marks()
        self.context.queries.refresh()

    def action_mark_toggle(self) -> None:
        self.list.selection.toggle()
        self.list.refresh_marks()
        self.list.action_nav_down()

    def action_mark_range(self) -> None:
        self.list.selection.mark_range()
        self.list.refresh_marks()

    def action_mark_page(self) -> None:
        self.list.selection.mark_all()
        self.list.refresh_marks()

    def action_mark_none(self) -> None:
        self.list.selection.unmark()
        self.list.refresh_marks()

    def action_copy_id(self) -> None:
        self.copy_text("\n".join(map(str, self.selected_ids)), "ids")
