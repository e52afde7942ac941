"""What screens with a list share: previews of changes, searching and sorting."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from horsies_tui.data.context import AppContext
from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.proposals.model import ProposalFactory, ProposalReport
from horsies_tui.screens.base import NOTHING_MATCHES, MainScreen
from horsies_tui.widgets.dialogs import SortOrder, SortPicker
from horsies_tui.widgets.filter_bar import SearchBar
from horsies_tui.widgets.row_list import Column, RowList

T = TypeVar("T")


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
        context = self._screen.context
        try:
            if (proposal := await self._screen.read(make_proposal)) is not None:
                dialog = ProposalDialog(
                    proposal,
                    database_name=context.database_name,
                    requires_reason=context.settings.require_reason and not is_dry_run,
                    is_dry_run=is_dry_run,
                )
                self._screen.app.push_screen(dialog, self._on_dialog_closed)
        finally:
            # An open dialog needs no flag: the screen is not current below it.
            self._is_loading = False

    def _on_dialog_closed(self, report: ProposalReport | None) -> None:
        if report is not None:
            if self._after_apply is not None:
                self._after_apply(report.changed_ids)
            self._screen.context.queries.refresh()


class Sorting(Generic[T]):
    """The order of a list, which the user picks. Part of a screen."""

    def __init__(self, keys: Mapping[str, Callable[[T, datetime], Any]], order: SortOrder) -> None:
        """`keys` are the columns to choose from; a key gets the row and the database time."""
        self.order = order
        self._keys = keys

    def sort(self, rows: Sequence[T], now: datetime) -> list[T]:
        """Sort the rows; rows with equal keys keep their order."""
        key = self._keys[self.order.column]
        return sorted(rows, key=lambda row: key(row, now), reverse=self.order.is_descending)

    def pick(self, screen: MainScreen, on_picked: Callable[[], object]) -> None:
        """Let the user pick the column; the current one again reverses the order."""

        def set_column(column: str | None) -> None:
            if column is not None:
                self.order = self.order.with_column(column)
                on_picked()

        screen.app.push_screen(SortPicker(tuple(self._keys), self.order.column), set_column)


class ListScreen(MainScreen, Generic[T]):
    """A short list, loaded completely, with a search bar and a pane about the row under the cursor.

    A subclass implements `show_detail` and `update_status`, and has a live query named `detail` that reads the current
    row. The key `x` hides the rows for which `is_excluded` is true.
    """

    no_rows_text: ClassVar[str]
    """Shown in place of an empty list."""

    def __init__(
        self,
        context: AppContext,
        columns: Sequence[Column[T]],
        *,
        key: Callable[[T], Hashable],
        sorting: Sorting[T] | None = None,
    ) -> None:
        super().__init__(context)
        self.list: RowList[T] = RowList(columns, key=key, context=context)
        self.filter_bar = SearchBar()
        self._sorting = sorting
        self.rows: tuple[T, ...] = ()
        """All rows, also hidden ones."""
        self.hides_excluded = False
        self._cursor: Hashable = None

    @property
    def order_text(self) -> str:
        return "" if self._sorting is None else str(self._sorting.order)

    def is_excluded(self, row: T) -> bool:  # noqa: ARG002  # for subclasses
        return False

    def show_detail(self) -> None:
        """Draw the pane about the row under the cursor from what has been read so far."""
        raise NotImplementedError

    def update_status(self) -> None:
        raise NotImplementedError

    def show_rows(self, rows: Iterable[T]) -> None:
        """Show these rows, replacing all others: those that match the search, in order."""
        self.rows = tuple(rows)
        visible = [row for row in self.rows if not (self.hides_excluded and self.is_excluded(row))]
        hidden = NOTHING_MATCHES if visible else "All rows are hidden.\nx shows them again"
        self.list.empty_text = hidden if self.rows else self.no_rows_text
        words = self.filter_bar.filter.split()
        matching = [row for row in visible if all(word in self.list.row_text(row) for word in words)]
        self.list.show(matching if self._sorting is None else self._sorting.sort(matching, self.context.clock.now()))
        self.show_detail()
        self.update_status()

    def on_filter_bar_changed(self) -> None:
        self.show_rows(self.rows)
        self.list.move_to(0)

    def on_row_list_cursor_moved(self) -> None:
        # Also posted when the content of the cursor's row changed; then the detail query refreshes by itself.
        if self.list.selection.cursor != self._cursor:
            self._cursor = self.list.selection.cursor
            self.context.queries.refresh("detail")
        self.show_detail()

    def step_back(self) -> bool:
        return self.filter_bar.step_back()

    def action_view_sort(self) -> None:
        if self._sorting is not None:
            self._sorting.pick(self, lambda: self.show_rows(self.rows))

    def action_view_exclude(self) -> None:
        self.hides_excluded = not self.hides_excluded
        self.show_rows(self.rows)
