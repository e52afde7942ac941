"""The facets beside the list, where there is room: what is picked narrows the list down at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from horsies_tui.format import number
from horsies_tui.widgets.columns import Cell, Column, Tone
from horsies_tui.widgets.facet_popup import FIELDS, Choice, choices, picked
from horsies_tui.widgets.row_list import Heading, RowList

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.counts import Facets
    from horsies_ops.reads.filter import TaskFilter
    from horsies_tui.desk import Desk

COLUMNS: Final = (
    Column[Choice](title="AMONG NEWEST", width=11, grows=1, cell=lambda choice, _: Cell(choice.value)),
    Column[Choice](
        title="",
        width=6,
        right=True,
        cell=lambda choice, _: Cell("-" if choice.count is None else number(choice.count), Tone.DIM),
    ),
)


class FacetList(RowList[Choice]):
    """A list where the space bar picks. The cursor that counts is that of the tasks beside it."""

    shows_cursor = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "nav_open", "pick")]

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()


class FacetDock(Vertical):
    """Shows what it was last given; `Picked` tells of the filter that is meant from now on."""

    class Picked(Message):
        """A value was picked, or one that was picked before was let go."""

        def __init__(self, wanted: TaskFilter) -> None:
            super().__init__()
            self.filter = wanted

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._list = FacetList(COLUMNS, key=lambda choice: choice.key, now=desk.clock.now, glyphs=desk.glyphs)
        self._wanted: TaskFilter | None = None

    def compose(self) -> ComposeResult:
        yield self._list
        yield Static("spc picks   f leaves")

    def show(self, facets: Facets, wanted: TaskFilter) -> None:
        """Offer these; what the filter names already is picked."""
        self._wanted = wanted
        offered = choices(facets, wanted)
        self._list.selection.marks = {choice.key for choice in offered if choice.value in getattr(wanted, choice.field)}
        self._list.show([*_under_headings(offered)])
        self._list.refresh()

    def enter(self) -> None:
        """Put the keyboard here."""
        self._list.focus()

    def on_row_list_opened(self, message: RowList.Opened) -> None:
        message.stop()
        if self._wanted is not None:
            self._list.selection.toggle()
            self._list.refresh()
            self.post_message(self.Picked(picked(self._wanted, self._list.selection.marks)))

    # What happens to this list is nothing to the list of tasks beside it, whose screen would hear of it next.
    def on_row_list_cursor_moved(self, message: RowList.CursorMoved) -> None:
        message.stop()

    def on_row_list_edge_neared(self, message: RowList.EdgeNeared) -> None:
        message.stop()

    def on_row_list_end_wanted(self, message: RowList.EndWanted) -> None:
        message.stop()


def _under_headings(offered: list[Choice]) -> Iterator[Choice | Heading]:
    """Each part under its name."""
    for field, name in FIELDS.items():
        of_field = [choice for choice in offered if choice.field == field]
        if of_field:
            yield Heading(name)
        yield from of_field
