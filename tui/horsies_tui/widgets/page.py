"""A page to read: parts below one another, scrolled by the keys that move through lists."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from horsies.model.settings import TuiConfig
from horsies_tui.format import safe, sanitize
from horsies_tui.keys import Place, bindings

if TYPE_CHECKING:
    from horsies_ops.reads.tasks import TaskRecord


class Page(VerticalScroll, can_focus=True):
    """Has the focus as a whole; there is no cursor in it."""

    BINDINGS: ClassVar[list[BindingType]] = [each for each in bindings(Place.LIST) if each.id != "nav.open"]

    def __init__(self) -> None:
        super().__init__()
        self._hit = 0

    def search(self, text: str) -> None:
        """Mark where this text stands, upper or lower case alike; nothing where it is empty."""
        sought = re.compile(re.escape(text), re.IGNORECASE) if text else None
        for section in self.query(Section):
            section.set_search(sought)
        self._hit = 0

    def show_hit(self, step: int = 0) -> tuple[int, int]:
        """Show the hit so many further on, round and round; which it is, and of how many."""
        hits = [(section, hit) for section in self.query(Section) for hit in section.hits]
        if not hits:
            return 0, 0
        self._hit = (self._hit + step) % len(hits)
        here, hit = hits[self._hit]
        for section in self.query(Section):
            section.highlight_hit(hit if section is here else None)
        line = here.virtual_region.y + here.gutter.top + here.line_of_hit(hit)
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
        self._pattern: re.Pattern[str] | None = None
        self._current_hit: tuple[int, int] | None = None

    def show(self, lines: Sequence[Content | str], *, title: str | None = None) -> None:
        """Show these lines; plain ones are made harmless."""
        text = Content("\n").join([line if isinstance(line, Content) else safe(line) for line in lines])
        if title is not None and title != self.border_title:
            self.border_title = safe(title)
        if text != self._shown:
            self._shown = text
            self._paint()

    def set_search(self, sought: re.Pattern[str] | None) -> None:
        """Mark what is sought, from now on."""
        self._pattern, self._current_hit = sought, None
        self._paint()

    def highlight_hit(self, hit: tuple[int, int] | None) -> None:
        """One of the hits stands out from the others."""
        if hit != self._current_hit:
            self._current_hit = hit
            self._paint()

    @property
    def hits(self) -> list[tuple[int, int]]:
        """Where in the text the hits begin and end."""
        return [] if self._pattern is None else [found.span() for found in self._pattern.finditer(self._shown.plain)]

    def line_of_hit(self, hit: tuple[int, int]) -> int:
        """On which of the lines that are drawn it begins; long ones are folded."""
        return len(self._shown[: hit[0] + 1].wrap(max(self.content_size.width, 1))) - 1

    def _paint(self) -> None:
        text = self._shown
        for start, end in self.hits:
            text = text.stylize("bold reverse" if (start, end) == self._current_hit else "underline", start, end)
        self.update(text)


# Arguments and results as text: secrets masked at this one place, cut to what a screen can bear.

MASK: Final = "••••••"
MOST_LINES: Final = 400
MOST_CHARACTERS: Final = 65_536
_LONGEST_SIGN: Final = 6
"""How many characters stand for one that a terminal would obey."""


def redact(value: Any, settings: TuiConfig) -> Any:
    """`value` as `tui.show_args` allows it to be seen: whole, masked or not at all."""
    match settings.show_args:
        case "all":
            return value
        case "never":
            return MASK
        case "masked":
            return mask_values(value, [re.compile(pattern, re.IGNORECASE) for pattern in settings.mask_keys])


def mask_values(value: Any, patterns: Sequence[re.Pattern[str]]) -> Any:
    """`value` with everything under a name that one of the patterns is found in replaced, at any depth."""
    match value:
        case Mapping():
            entries = cast("Mapping[object, Any]", value).items()
            return {
                str(key): MASK if any(pattern.search(str(key)) for pattern in patterns) else mask_values(item, patterns)
                for key, item in entries
            }
        case list() | tuple():
            return [mask_values(item, patterns) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def compact_json(value: Any, settings: TuiConfig) -> str:
    """As JSON on one line; whoever draws it cuts it."""
    return json.dumps(redact(value, settings), ensure_ascii=False, default=str)


def task_arguments(task: TaskRecord) -> Any:
    """The arguments of a task as one document."""
    return task.kwargs if not task.args else {"args": task.args, **task.kwargs}


def indented_json(value: Any, settings: TuiConfig) -> str:
    """As indented JSON, harmless line by line."""
    text = json.dumps(redact(value, settings), ensure_ascii=False, indent=2, default=str)
    return "\n".join(sanitize(line, limit=_LONGEST_SIGN * len(line) + 1) for line in text.split("\n"))


def truncated_json(value: Any, settings: TuiConfig) -> str:
    """The same, but no more than a screen can bear."""
    lines = indented_json(value, settings)[:MOST_CHARACTERS].split("\n")
    more = ["…"] if len(lines) > MOST_LINES else []
    return "\n".join([*lines[:MOST_LINES], *more])
