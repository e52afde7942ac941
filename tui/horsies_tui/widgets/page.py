"""A page to read: parts below one another, scrolled by the keys that move through lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from horsies_tui.actions import Place, bindings
from horsies_tui.format import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.binding import BindingType


class Page(VerticalScroll, can_focus=True):
    """Has the focus as a whole; there is no cursor in it."""

    BINDINGS: ClassVar[list[BindingType]] = [each for each in bindings(Place.LIST) if each.id != "nav.open"]

    def action_nav_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_nav_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_nav_top(self) -> None:
        self.scroll_home(animate=False)

    def action_nav_bottom(self) -> None:
        self.scroll_end(animate=False)

    def action_nav_page_down(self) -> None:
        self.scroll_relative(y=self.size.height, animate=False)

    def action_nav_page_up(self) -> None:
        self.scroll_relative(y=-self.size.height, animate=False)

    def action_nav_half_down(self) -> None:
        self.scroll_relative(y=self.size.height // 2, animate=False)

    def action_nav_half_up(self) -> None:
        self.scroll_relative(y=-(self.size.height // 2), animate=False)


class Section(Static):
    """A part of a page under a title. What it already shows is not drawn again."""

    def __init__(self, title: str = "", *, name: str) -> None:
        super().__init__("", id=name, classes="section")
        self.border_title = title
        self._shown = Content("")

    def show(self, lines: Sequence[Content | str], *, title: str | None = None) -> None:
        """Show these lines; plain ones are made harmless."""
        text = Content("\n").join([line if isinstance(line, Content) else safe(line) for line in lines])
        if title is not None and title != self.border_title:
            self.border_title = safe(title)
        if text != self._shown:
            self._shown = text
            self.update(text)
