"""Screens with a short list that a few words narrow down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horsies_tui.screens.main_screen import MainScreen
from horsies_tui.widgets.word_line import WordLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies_tui.actions import Place
    from horsies_tui.desk import Desk
    from horsies_tui.widgets.row_list import RowList


class NarrowedScreen(MainScreen):
    """A subclass puts `self.narrowing` above its list, shows what `narrowed` leaves, and does so again in `narrow`."""

    list: RowList[Any]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.narrowing = WordLine(prompt=desk.glyphs.prompt)

    def narrow(self) -> None:
        """Show the rows anew: other words are meant."""
        raise NotImplementedError

    def narrowed(self, rows: Sequence[Any]) -> Sequence[Any]:
        """The rows in which every word is to be read, whichever the column."""
        return [row for row in rows if all(word in self._text(row) for word in self.narrowing.words)]

    def _text(self, row: object) -> str:
        # An age that ticks is no word: rows would come and go with it.
        now = self.desk.clock.now()
        return " ".join(column.cell(row, now).text for column in self.list.columns if not column.ticks).lower()

    def on_word_line_changed(self) -> None:
        self.narrow()

    def on_word_line_left(self) -> None:
        self.list.focus()
        self.narrowing.leave()

    def step_back(self) -> bool:
        return self.narrowing.step_back()

    def action_filter_edit(self) -> None:
        self.narrowing.edit()

    def action_filter_clear(self) -> None:
        self.narrowing.clear()
