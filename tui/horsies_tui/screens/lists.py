"""Screens with one short list that can be sorted: everything is loaded, and the cursor stays on its row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.operator_actions import Action
from horsies_tui.data.context import AppContext
from horsies_tui.data.source import DataSource
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


# Screens with a short list that a few words narrow down.


class FilteredListScreen(MainScreen):
    """A subclass puts `self.narrowing` above its list, shows what `narrowed` leaves, and does so again in `narrow`."""

    list: RowList[Any]

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs)
        self.search_bar = SearchBar(prompt=context.glyphs.prompt)

    def apply_search(self) -> None:
        """Show the rows anew: other words are meant."""
        raise NotImplementedError

    def matching_rows(self, rows: Sequence[Any]) -> Sequence[Any]:
        """The rows in which every word is to be read, whichever the column."""
        return [row for row in rows if all(word in self._row_text(row) for word in self.search_bar.words)]

    def _row_text(self, row: object) -> str:
        # An age that ticks is no word: rows would come and go with it.
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


# Screens from which something can be changed: one way from the key to the preview, and to what came of it.


class ProposingScreen(MainScreen):
    """A subclass hands a proposal over; nothing is changed by any other way."""

    _is_previewing = False

    def after_apply(self, changed: Sequence[UUID]) -> None:
        """A change was carried out, to these tasks among others: show what is there now."""
        del changed
        self.context.queries.refresh()

    def propose(self, make_proposal: Callable[[DataSource], Awaitable[Proposal]]) -> None:
        """Show a proposal, have it decided and carried out."""
        if self.context.can_act:
            self._start_preview(make_proposal, is_dry_run=False)
        else:
            self.notify("actions are off", severity="warning")

    def dry_run(self, make_proposal: Callable[[DataSource], Awaitable[Proposal]]) -> None:
        """Show what would be done, and leave it at that; for read-only sessions too."""
        self._start_preview(make_proposal, is_dry_run=True)

    def _start_preview(self, proposal: Callable[[DataSource], Awaitable[Proposal]], *, is_dry_run: bool) -> None:
        """One at a time, from the key to the closed preview: a key that is typed twice does not do a thing twice."""
        # What was typed before the preview stood is heard here after it does.
        if not self._is_previewing and self.is_current:
            self._is_previewing = True
            self.run_worker(self._preview(proposal, is_dry_run=is_dry_run), group="act", exit_on_error=False)

    async def _preview(self, proposal: Callable[[DataSource], Awaitable[Proposal]], *, is_dry_run: bool) -> None:
        try:
            shown = await self._make_proposal(proposal)
            if shown is not None:
                must_give_reason = self.context.settings.require_reason and not is_dry_run
                dialog = ProposalDialog(
                    shown,
                    database_name=self.context.database_name,
                    requires_reason=must_give_reason,
                    is_dry_run=is_dry_run,
                )
                self.app.push_screen(dialog, self._on_dialog_closed)
        finally:
            self._is_previewing = False

    def _on_dialog_closed(self, outcome: ProposalReport | None) -> None:
        if outcome is not None:
            self.after_apply(outcome.changed_ids)

    async def _make_proposal(self, proposal: Callable[[DataSource], Awaitable[Proposal]]) -> Proposal | None:
        source = self.context.source
        if source is None:
            self.notify("there is no connection", severity="warning")
            return None
        try:
            return await proposal(source)
        except HorsiesError as error:
            self.notify(sanitize(error.message), severity="error", markup=False)
            return None


T = TypeVar("T")


class SortedListScreen(FilteredListScreen, ProposingScreen, Generic[T]):
    """A subclass names its columns and the orders; `detail` is what it wants about the row under the cursor."""

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
        """Take these rows as all there are."""
        self._rows = tuple(rows)
        self.list.show(self.order.sort(self.matching_rows(self.visible_rows(self._rows)), self.sort_keys))

    def apply_search(self) -> None:
        self.show_rows(self._rows)
        self.show_detail()

    def visible_rows(self, rows: Sequence[T]) -> Sequence[T]:
        """Those of all rows that are to be seen."""
        return rows

    def show_detail(self) -> None:
        """Say more about the row under the cursor, as far as it is known."""
        raise NotImplementedError

    def on_row_list_cursor_moved(self) -> None:
        if self.list.selection.cursor != self._cursor:
            self._cursor = self.list.selection.cursor
            self.context.queries.refresh("detail")
        self.show_detail()

    def tick(self) -> None:
        self.list.tick()

    def action_view_sort(self) -> None:
        self.app.push_screen(SortPicker(tuple(self.sort_keys), self.order.column), self._on_sort_picked)

    def _on_sort_picked(self, by: str | None) -> None:
        if by is not None:
            self.order = self.order.with_column(by)
            self.show_rows(self._rows)


# Screens with tasks that can be acted on.


class TaskActionScreen(ProposingScreen):
    """A subclass says what is selected, which of requeue and retry fits it, and tidies up afterwards."""

    def selector(self) -> Selector | None:
        """What an action is about now."""
        raise NotImplementedError

    def requeue_or_retry(self) -> Action:
        """Requeue or retry."""
        raise NotImplementedError

    def after_apply(self, changed: Sequence[UUID]) -> None:
        """These were changed: marks that have done their duty go, those of rows that were skipped stay."""
        raise NotImplementedError

    def propose_action(self, action: Action) -> None:
        """Preview the action; the selection is frozen here, whatever the list does meanwhile."""
        selector = self.selector()
        if selector is None:
            self.notify("no row to act on")
        else:
            self.propose(self.proposal_factory(action, selector))

    def proposal_factory(self, action: Action, selector: Selector) -> Callable[[DataSource], Awaitable[Proposal]]:
        """The action on what is selected, to be looked at first."""
        return lambda source: model.propose_task_action(source, action, selector)

    def open_task(self, task_id: UUID, sibling_ids: Sequence[UUID] = ()) -> None:
        """Show everything about a task; whoever looks at it may go on through the list that it stands in."""
        self.post_message(OpenTask(task_id, sibling_ids))

    def action_op_requeue(self) -> None:
        self.propose_action(self.requeue_or_retry())

    def action_plan_dry(self) -> None:
        """What `R` would do, and no more."""
        selector = self.selector()
        if selector is None:
            self.notify("no row to look at")
        else:
            self.dry_run(self.proposal_factory(self.requeue_or_retry(), selector))

    def action_op_fail(self) -> None:
        self.propose_action(Action.FAIL)

    def action_op_expire(self) -> None:
        self.propose_action(Action.EXPIRE)

    def action_op_cancel(self) -> None:
        self.propose_action(Action.CANCEL)


# Screens with a list of tasks in which rows can be marked.


class MarkableTaskScreen(TaskActionScreen):
    """Keys of the list are the ids of tasks. Marked rows are meant; where there are none, the row under the cursor."""

    list: RowList[Any]

    @property
    def selected_ids(self) -> tuple[UUID, ...]:
        """What an action would be about."""
        return tuple(key for key in self.list.selection.selected if isinstance(key, UUID))

    def after_apply(self, changed: Sequence[UUID]) -> None:
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
