"""Lines for a few words: those that a row must have, and what is looked for in a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

from horsies_tui.widgets.filter_line import QueryLine

if TYPE_CHECKING:
    from horsies_ops.reads.filter_language import FilterFault


class WordLine(QueryLine):
    """Takes a line of the screen only while it is used; `Changed` tells of other words."""

    class Changed(Message):
        """Other words are meant from now on."""

    class Left(QueryLine.Left):
        """Whoever typed is done."""

    def __init__(self, *, prompt: str, title: str = "Filter") -> None:
        super().__init__(prompt=prompt, title=title)
        self.completion.keys = ()
        self.meant = ""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.meant.split())

    def edit(self) -> None:
        self.add_class("-used")
        super().edit()

    def clear(self) -> None:
        """Mean everything again."""
        self.put("")
        self.understand("")
        self.remove_class("-used")

    def step_back(self) -> bool:
        """Leave the line, or clear it; False where neither is to be done."""
        if self.has_focus_within:
            self.post_message(self.Left())
        elif self.meant:
            self.clear()
        else:
            return False
        return True

    def leave(self) -> None:
        """Nobody types any more: without a word on it, it is not worth its place."""
        self.set_class(bool(self.meant), "-used")

    def understand(self, text: str) -> FilterFault | None:
        meant = text.strip().lower()
        if meant != self.meant:
            self.meant = meant
            self.post_message(self.Changed())
        return None
