"""Screens with one short list that can be sorted: everything is loaded, and the cursor stays on its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from horsies_tui.screens.narrowed import NarrowedScreen
from horsies_tui.screens.proposing import ProposingScreen
from horsies_tui.widgets.row_list import RowList
from horsies_tui.widgets.sort_picker import Order, SortPicker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from horsies_tui.actions import Place
    from horsies_tui.desk import Desk
    from horsies_tui.widgets.columns import Column

T = TypeVar("T")


class SortedScreen(NarrowedScreen, ProposingScreen, Generic[T]):
    """A subclass names its columns and the orders; `detail` is what it wants about the row under the cursor."""

    sorts: ClassVar[Mapping[str, Callable[[Any], Any]]]

    def __init__(
        self, desk: Desk, tabs: frozenset[Place], columns: Sequence[Column[T]], *, key: Callable[[T], Hashable]
    ) -> None:
        super().__init__(desk, tabs)
        self.list: RowList[T] = RowList(columns, key=key, now=desk.clock.now, glyphs=desk.glyphs)
        self.order = Order(by=next(iter(self.sorts)))
        self._rows: tuple[T, ...] = ()
        self._cursor: Hashable = None

    def show_rows(self, rows: Sequence[T]) -> None:
        """Take these rows as all there are."""
        self._rows = tuple(rows)
        self.list.show(self.order.sort(self.narrowed(self.shown(self._rows)), self.sorts))

    def narrow(self) -> None:
        self.show_rows(self._rows)
        self.show_detail()

    def shown(self, rows: Sequence[T]) -> Sequence[T]:
        """Those of all rows that are to be seen."""
        return rows

    def show_detail(self) -> None:
        """Say more about the row under the cursor, as far as it is known."""
        raise NotImplementedError

    def on_row_list_cursor_moved(self) -> None:
        if self.list.selection.cursor != self._cursor:
            self._cursor = self.list.selection.cursor
            self.desk.store.refresh("detail")
        self.show_detail()

    def tick(self) -> None:
        self.list.tick()

    def action_view_sort(self) -> None:
        self.app.push_screen(SortPicker(tuple(self.sorts), self.order.by), self._picked)

    def _picked(self, by: str | None) -> None:
        if by is not None:
            self.order = self.order.picked(by)
            self.show_rows(self._rows)
