"""A page to read: parts below one another, scrolled by the keys that move through lists."""

from __future__ import annotations

import re
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

    def __init__(self) -> None:
        super().__init__()
        self._hit = 0

    def seek(self, text: str) -> None:
        """Mark where this text stands, upper or lower case alike; nothing where it is empty."""
        sought = re.compile(re.escape(text), re.IGNORECASE) if text else None
        for section in self.query(Section):
            section.seek(sought)
        self._hit = 0

    def go_to_hit(self, step: int = 0) -> tuple[int, int]:
        """Show the hit so many further on, round and round; which it is, and of how many."""
        hits = [(section, hit) for section in self.query(Section) for hit in section.hits]
        if not hits:
            return 0, 0
        self._hit = (self._hit + step) % len(hits)
        here, hit = hits[self._hit]
        for section in self.query(Section):
            section.stress(hit if section is here else None)
        line = here.virtual_region.y + here.gutter.top + here.line_of(hit)
        self.scroll_to(y=max(line - self.size.height // 2, 0), animate=False)
        return self._hit + 1, len(hits)

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
        self._sought: re.Pattern[str] | None = None
        self._stressed: tuple[int, int] | None = None

    def show(self, lines: Sequence[Content | str], *, title: str | None = None) -> None:
        """Show these lines; plain ones are made harmless."""
        text = Content("\n").join([line if isinstance(line, Content) else safe(line) for line in lines])
        if title is not None and title != self.border_title:
            self.border_title = safe(title)
        if text != self._shown:
            self._shown = text
            self._paint()

    def seek(self, sought: re.Pattern[str] | None) -> None:
        """Mark what is sought, from now on."""
        self._sought, self._stressed = sought, None
        self._paint()

    def stress(self, hit: tuple[int, int] | None) -> None:
        """One of the hits stands out from the others."""
        if hit != self._stressed:
            self._stressed = hit
            self._paint()

    @property
    def hits(self) -> list[tuple[int, int]]:
        """Where in the text the hits begin and end."""
        return [] if self._sought is None else [found.span() for found in self._sought.finditer(self._shown.plain)]

    def line_of(self, hit: tuple[int, int]) -> int:
        """On which of the lines that are drawn it begins; long ones are folded."""
        return len(self._shown[: hit[0] + 1].wrap(max(self.content_size.width, 1))) - 1

    def _paint(self) -> None:
        text = self._shown
        for start, end in self.hits:
            text = text.stylize("bold reverse" if (start, end) == self._stressed else "underline", start, end)
        self.update(text)
