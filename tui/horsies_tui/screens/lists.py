"""What screens with a list share: previews of changes, searching and sorting."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from uuid import UUID

from horsies.errors import HorsiesError
from horsies_tui.data.context import AppContext
from horsies_tui.format import sanitize
from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.proposals.model import ProposalFactory, ProposalReport
from horsies_tui.screens.base import MainScreen
from horsies_tui.widgets.dialogs import SortOrder, SortPicker
from horsies_tui.widgets.filter_bar import SearchBar
from horsies_tui.widgets.row_list import Column, RowList

if TYPE_CHECKING:
    pass

T = TypeVar("T")


class FilteredListScreen(MainScreen):
    """A list with a search bar. A subclass yields `filter_bar`, shows `matching_rows` and redraws in `apply_search`."""

    list: RowList[Any]

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.filter_bar = SearchBar(prompt=context.glyphs.prompt)

    def apply_search(self) -> None:
        """Redraw the rows after the search words changed."""
        raise NotImplementedError

    def matching_rows(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows that contain every search word, in any column."""
        words = self.filter_bar.filter.split()
        return [row for row in rows if all(word in self.list.row_text(row) for word in words)]

    def on_filter_bar_changed(self) -> None:
        self.apply_search()

    def step_back(self) -> bool:
        return self.filter_bar.step_back()


class ProposalRunner:
    """Previews changes to the database; the dialog applies what the operator confirms. Part of a screen."""

    def __init__(self, screen: MainScreen, after_apply: Callable[[Sequence[UUID]], object] | None = None) -> None:
        """`after_apply` gets the ids of the changed tasks."""
        self._screen = screen
        self._after_apply = after_apply
        self._is_loading = False

    def propose(self, make_proposal: ProposalFactory | None) -> None:
        """Preview a change; None if no row is selected. Refused while actions are disabled."""
        if self._screen.context.can_act:
            self._open(make_proposal, is_dry_run=False)
        else:
            self._screen.notify("actions are disabled", severity="warning")

    def dry_run(self, make_proposal: ProposalFactory | None) -> None:
        """Preview a change without the option to apply it; allowed in read-only sessions."""
        self._open(make_proposal, is_dry_run=True)

    def _open(self, make_proposal: ProposalFactory | None, *, is_dry_run: bool) -> None:
        """Open one preview at a time, so that a key pressed twice does not act twice."""
        if make_proposal is None:
            self._screen.notify("no row selected")
        # Keys typed while a dialog opens still reach the screen, which is no longer current by then.
        elif not self._is_loading and self._screen.is_current:
            self._is_loading = True
            preview = self._preview(make_proposal, is_dry_run=is_dry_run)
            self._screen.run_worker(preview, group="act", exit_on_error=False)

    async def _preview(self, make_proposal: ProposalFactory, *, is_dry_run: bool) -> None:
        screen, context = self._screen, self._screen.context
        try:
            if context.source is None:
                screen.notify("not connected", severity="warning")
                return
            dialog = ProposalDialog(
                await make_proposal(context.source),
                database_name=context.database_name,
                requires_reason=context.settings.require_reason and not is_dry_run,
                is_dry_run=is_dry_run,
            )
            screen.app.push_screen(dialog, self._on_dialog_closed)
        except HorsiesError as error:
            screen.notify(sanitize(error.message), severity="error", markup=False)
        finally:
            # An open dialog needs no flag: the screen is not current below it.
            self._is_loading = False

    def _on_dialog_closed(self, report: ProposalReport | None) -> None:
        if report is not None:
            if self._after_apply is not None:
                self._after_apply(report.changed_ids)
            self._screen.context.queries.refresh()


class SortedListScreen(FilteredListScreen, Generic[T]):
    """A short list, loaded completely, with a detail pane for the row under the cursor.

    A subclass defines columns and sort keys, and a live query named `detail` that reads the current row.
    """

    sort_keys: ClassVar[Mapping[str, Callable[[Any], Any]]]

    def __init__(self, context: AppContext, columns: Sequence[Column[T]], *, key: Callable[[T], Hashable]) -> None:
        super().__init__(context)
        self.list: RowList[T] = RowList(columns, key=key, context=context)
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
