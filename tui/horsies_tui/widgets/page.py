"""Panes of text, a scrollable page of sections with search, and JSON values with redacted secrets."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Literal, TypeAlias

from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content, Span
from textual.widgets import Static

from horsies.model.settings import TuiConfig
from horsies.model.text import mask_values
from horsies_tui.format import safe, sanitize
from horsies_tui.keys import SharedScope, bindings

log = logging.getLogger("horsies.tui")


class Page(VerticalScroll, can_focus=True):
    """Sections below one another, scrolled with the keys of lists. It has no cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [key for key in bindings(SharedScope.LIST) if key.id != "nav.open"]

    def __init__(self) -> None:
        super().__init__()
        self._hit = 0

    def search(self, text: str) -> None:
        """Highlight all hits of this text, ignoring case; an empty text clears them."""
        pattern = re.compile(re.escape(text), re.IGNORECASE) if text else None
        for section in self.query(Section):
            section.set_search(pattern)
        self._hit = 0

    def show_hit(self, step: int = 0) -> tuple[int, int]:
        """Scroll to the hit `step` further on, wrapping around; returns its number and the number of hits."""
        hits = [(section, hit) for section in self.query(Section) for hit in section.hits]
        if not hits:
            return 0, 0
        self._hit = (self._hit + step) % len(hits)
        current, hit = hits[self._hit]
        for section in self.query(Section):
            section.highlight_hit(hit if section is current else None)
        # The border with the title is above the first line of a section.
        line = current.virtual_region.y + current.gutter.top + current.line_of_hit(hit)
        self.scroll_to(y=max(line - self.size.height // 2, 0), animate=False)
        return self._hit + 1, len(hits)

    def action_move_rows(self, count: int) -> None:
        self.scroll_relative(y=count, animate=False)

    def action_move_pages(self, count: float) -> None:
        self.action_move_rows(int(count * self.size.height))

    def action_move_to_end(self, end: Literal["top", "bottom"]) -> None:
        if end == "top":
            self.scroll_home(animate=False)
        else:
            self.scroll_end(animate=False)


MIN_TITLE_WIDTH: Final = 20
Lines: TypeAlias = Iterable[Content | str]


def failure_text(error: Exception) -> str:
    """Why a stored value or a part of the screen cannot be shown."""
    return f"cannot be shown: {type(error).__name__}: {sanitize(error, limit=200)}"


class Pane(Static):
    """Lines of text with a title. What has not changed is not redrawn."""

    def __init__(self, title: str = "", *, name: str, classes: str | None = None) -> None:
        super().__init__("", id=name, classes=classes)
        self._title = title
        self._shown = Content("")

    def show(self, lines: Lines | Callable[[], Lines], *, title: str | None = None) -> None:
        """Show these lines; strings are sanitized. If a function that makes them fails, this pane alone shows why."""
        try:
            made = lines() if callable(lines) else lines
            text = Content("\n").join([line if isinstance(line, Content) else safe(line) for line in made])
        except Exception as error:
            log.exception("pane %s cannot be drawn", self.id)
            text = safe(failure_text(error), "$text-error")
        if title is not None and title != self._title:
            self._title = title
            self._draw_title()
        # `!=` compares the text without its styles.
        if not text.is_same(self._shown):
            self._shown = text
            self._paint()

    def on_resize(self) -> None:
        self._draw_title()

    def _draw_title(self) -> None:
        title = safe(self._title, cells=max(self.size.width - 4, MIN_TITLE_WIDTH))
        # Textual puts spaces around the title of a box only.
        has_box, *_ = self.styles.border_left
        self.border_title = title if has_box or not title else title.pad(1, 1)

    def _paint(self) -> None:
        # Without `layout` if the size does not depend on the text: a layout costs as much as drawing a list.
        self.update(self._shown, layout=self.styles.auto_dimensions)


class Section(Pane):
    """A part of a page, in which text can be searched."""

    def __init__(self, title: str = "", *, name: str) -> None:
        super().__init__(title, name=name, classes="section")
        self._pattern: re.Pattern[str] | None = None
        self._current_hit: tuple[int, int] | None = None

    def set_search(self, pattern: re.Pattern[str] | None) -> None:
        """Highlight the hits of this pattern."""
        self._pattern, self._current_hit = pattern, None
        self._paint()

    def highlight_hit(self, hit: tuple[int, int] | None) -> None:
        """Highlight one hit more than the others."""
        if hit != self._current_hit:
            self._current_hit = hit
            self._paint()

    @property
    def hits(self) -> list[tuple[int, int]]:
        """Start and end of each hit in the text."""
        return [] if self._pattern is None else [match.span() for match in self._pattern.finditer(self._shown.plain)]

    def line_of_hit(self, hit: tuple[int, int]) -> int:
        """The line on which a hit starts, counted after wrapping."""
        # Including the first character of the hit, which may begin a new line.
        return len(self._shown[: hit[0] + 1].wrap(max(self.content_size.width, 1))) - 1

    def _paint(self) -> None:
        text = self._shown
        for start, end in self.hits:
            text = text.stylize("bold reverse" if (start, end) == self._current_hit else "underline", start, end)
        self.update(text)


# Arguments and results as JSON, redacted

MASK: Final = "••••••"
MAX_LINES: Final = 400
MAX_CHARACTERS: Final = 65_536
_MAX_ESCAPE_LENGTH: Final = 6
"""Most characters that `sanitize` writes for one control character."""


def redact(value: Any, settings: TuiConfig) -> Any:
    """The part of a value that `tui.show_args` allows to show: all of it, all but secrets, or nothing."""
    match settings.show_args:
        case "all":
            return value
        case "never":
            return MASK
        case "masked":
            return mask_values(value, settings.mask_keys, mask=MASK)


def stored_json(read: Callable[[], Any]) -> Any:
    """The value of a stored column, or why it cannot be read; never its text, which may contain secrets."""
    try:
        return read()
    except (ValueError, TypeError, RecursionError) as error:
        return failure_text(error)


def compact_json(value: Any, settings: TuiConfig, *, indent: int | None = None) -> str:
    """Redacted JSON, without `indent` on one line, of any length."""
    try:
        return json.dumps(redact(value, settings), ensure_ascii=False, indent=indent, default=str)
    except (ValueError, RecursionError) as error:
        # Nested too deeply, or a number with too many digits.
        return failure_text(error)


_JSON_TOKEN: Final = re.compile(
    r"""(?P<key>"(?:[^"\\]|\\.)*"(?=:))"""
    r"""|(?P<string>"(?:[^"\\]|\\.)*"?)"""
    r"""|(?P<number>-?\d[\d.eE+-]*)"""
    r"""|(?P<constant>true|false|null|NaN|-?Infinity)"""
    r"""|(?P<punctuation>[{}\[\],:]+)"""
)
_JSON_COLOURS: Final = {
    "key": "$text-primary",
    "string": "$text-success",
    "number": "$text-accent",
    "constant": "$text-secondary",
    "punctuation": "dim",
}


def coloured_json(text: str) -> Content:
    """One line of JSON, sanitized, with its keys, strings, numbers and constants in colour."""
    shown = sanitize(text)
    tokens = _JSON_TOKEN.finditer(shown)
    return Content(shown, [Span(*token.span(), _JSON_COLOURS[str(token.lastgroup)]) for token in tokens])


def indented_json(value: Any, settings: TuiConfig) -> str:
    """Redacted, indented JSON; each line is sanitized."""
    text = compact_json(value, settings, indent=2)
    # A limit that no line reaches: `sanitize` would cut the text otherwise.
    return "\n".join(sanitize(line, limit=_MAX_ESCAPE_LENGTH * len(line) + 1) for line in text.split("\n"))


def truncated_json(value: Any, settings: TuiConfig) -> tuple[Content, ...]:
    """The first 400 lines and 64 KB of `indented_json`, in colour."""
    text = indented_json(value, settings)
    lines = text[:MAX_CHARACTERS].split("\n")
    ellipsis = ["…"] if len(lines) > MAX_LINES or len(text) > MAX_CHARACTERS else []
    return tuple(coloured_json(line) for line in [*lines[:MAX_LINES], *ellipsis])
