"""A list that stays quick however long it is: it draws only lines that are seen, and repaints only what changed.

Rows are values with a key. The list holds a window of them; when the cursor nears an end of it, `EdgeNeared` asks the
screen for more. Cursor and marks belong to keys (see `selection`). Headings may stand between rows; the cursor passes
over them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from horsies_tui.format import fit, sanitize, truncate
from horsies_tui.keys import Place, bindings
from horsies_tui.theme import UNICODE, Glyphs

# A line of a list, put together from texts that each have their place and their look.


def build_strip(pieces: Sequence[tuple[int, str, Style]], width: int, filling: Style) -> Strip:
    """A line of `width` with each text at its place. A text has exactly the width of its column."""
    runs: list[tuple[str, Style]] = []
    at = 0
    for start, text, style in pieces:
        if start > at:
            _add(runs, " " * (start - at), filling)
        _add(runs, text, style)
        at = max(start, at) + cell_len(text)
    return Strip([Segment(text, style) for text, style in runs], at).adjust_cell_length(width, filling)


def _add(runs: list[tuple[str, Style]], text: str, style: Style) -> None:
    """Lengthen the last run where it looks the same: each one costs on its way to the terminal."""
    if runs and runs[-1][1] is style:
        runs[-1] = (runs[-1][0] + text, style)
    else:
        runs.append((text, style))


# Cursor and marks of a list, held by key and never by position: rows come, go and change places under them.

K = TypeVar("K", bound=Hashable)


class RowSelection(Generic[K]):
    """Which row the cursor is on and which are marked. A mark belongs to an id, also while its row is not loaded."""

    def __init__(self) -> None:
        self.keys: tuple[K, ...] = ()
        self.cursor: K | None = None
        self.marks: set[K] = set()
        self.range_start: K | None = None
        self._position: dict[K, int] = {}

    @property
    def cursor_index(self) -> int:
        """Where the cursor's row stands; 0 in an empty list."""
        return 0 if self.cursor is None else self._position.get(self.cursor, 0)

    @property
    def selected(self) -> tuple[K, ...]:
        """What an action would be about: the marked rows, those that are shown first; else the cursor's."""
        if self.marks:
            shown = [key for key in self.keys if key in self.marks]
            return (*shown, *(key for key in self.marks if key not in self._position))
        return () if self.cursor is None else (self.cursor,)

    def index_of(self, key: K) -> int | None:
        return self._position.get(key)

    def set_keys(self, keys: Sequence[K]) -> None:
        """Take the rows as they are now. The cursor stays on its row, or goes to the one that took its place."""
        line = self.cursor_index
        self.keys = tuple(keys)
        self._position = {key: index for index, key in enumerate(self.keys)}
        if self.cursor not in self._position:
            self.cursor = self.keys[min(line, len(self.keys) - 1)] if self.keys else None
        if self.range_start not in self._position:
            self.range_start = None

    def move_to(self, line: int) -> None:
        """Put the cursor on a line, the nearest there is; an open range follows it."""
        if self.keys:
            self.cursor = self.keys[max(0, min(line, len(self.keys) - 1))]

    def toggle(self) -> None:
        """Mark the cursor's row, or take its mark away."""
        if self.cursor is not None:
            self.marks ^= {self.cursor}

    def mark_range(self) -> None:
        """Start a range at the cursor; the second time, mark all from there to the cursor."""
        if self.range_start is None:
            self.range_start = self.cursor
            return
        first, last = sorted((self._position[self.range_start], self.cursor_index))
        self.marks |= set(self.keys[first : last + 1])
        self.range_start = None

    def mark_all(self) -> None:
        """Mark every row that is loaded."""
        self.marks |= set(self.keys)

    def unmark(self, keys: Sequence[K] | None = None) -> None:
        """Take these marks away, or all."""
        self.marks -= set(self.marks if keys is None else keys)
        self.range_start = None


# Columns of a list: how wide each is, and which are left out where there is no room.

T = TypeVar("T")

GAP = 1


class Tone(StrEnum):
    """What a cell means; the stylesheet says how that looks."""

    PLAIN = "plain"
    DIM = "dim"
    GOOD = "good"
    BUSY = "busy"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a cell, as it came from the database; the list makes it harmless and cuts it to size."""

    text: str
    tone: Tone = Tone.PLAIN


# Neither has slots: a frozen generic with them cannot be made as `Column[Task](…)`, which sets an attribute.
@dataclass(frozen=True, kw_only=True)
class Column(Generic[T]):
    """One column of a list of `T`; `cell` is given the row and the database's present time."""

    title: str
    width: int
    """The least that it is worth showing in."""
    cell: Callable[[T, datetime], Cell]
    drop_rank: int = 0
    """Where there is no room for all, those of the highest rank go first."""
    grows: int = 0
    """Its share of the room that is left over."""
    right: bool = False
    ticks: bool = False
    """Whether it changes with time alone."""


@dataclass(frozen=True, kw_only=True)
class PlacedColumn(Generic[T]):
    """A column where it stands in the line."""

    column: Column[T]
    x: int
    width: int


def place_columns(
    columns: Sequence[Column[T]], room: int, *, indent: int = 0, scrolled: int | None = None
) -> tuple[PlacedColumn[T], ...]:
    """The columns that fit into `room`, in their order; none narrower than its minimum, and the first always there.

    With `skipped` their rank does not count: after the first come those that stand so many further to the right.
    """
    room_for_all = room - indent
    chosen = (
        _fitting_columns(columns, room_for_all) if scrolled is None else _columns_from(columns, room_for_all, scrolled)
    )
    spare = max(room - indent - _needed(chosen), 0)
    shares = sum(column.grows for column in chosen)
    placed: list[PlacedColumn[T]] = []
    at = indent
    for column in chosen:
        share = spare * column.grows // shares if shares else 0
        spare, shares = spare - share, shares - column.grows
        placed.append(PlacedColumn(column=column, x=at, width=column.width + share))
        at += column.width + share + GAP
    return tuple(placed)


def _fitting_columns(columns: Sequence[Column[T]], room: int) -> list[Column[T]]:
    chosen = list(columns)
    while len(chosen) > 1 and _needed(chosen) > room:
        # Of equal rank the one furthest to the right.
        least = max(range(1, len(chosen)), key=lambda index: (chosen[index].drop_rank, index))
        del chosen[least]
    return chosen


def _columns_from(columns: Sequence[Column[T]], room: int, skipped: int) -> list[Column[T]]:
    chosen = [columns[0], *columns[1 + skipped :]]
    while len(chosen) > 1 and _needed(chosen) > room:
        del chosen[-1]
    return chosen


def _needed(columns: Sequence[Column[T]]) -> int:
    return sum(column.width for column in columns) + GAP * max(len(columns) - 1, 0)


HEADER_LINES = 2
"""Titles and a rule."""

GUTTER = 3
"""Cursor, mark and a space."""

BASE_STYLE = ""
"""The name of what a list looks like where nothing else is said."""

EDGE_ROWS = 30
"""So many rows before its end a window is asked to grow."""

MAX_CACHED_LINES = 2_000
"""So many lines are kept as they were drawn."""


class CachedLine(NamedTuple):
    """A line as it was drawn, and what it was drawn from."""

    cells: Mapping[int, Cell]
    """By where they stand."""
    is_cursor: bool
    is_marked: bool
    strip: Strip


@dataclass(frozen=True, slots=True)
class Heading:
    """A line between rows, over all columns."""

    text: str


class RowList(ScrollView, Generic[T], can_focus=True, inherit_bindings=False):
    """Rows of `T` in columns, drawn with the present time that `now` gives."""

    shows_cursor: ClassVar[bool] = True
    """Also while the keyboard is elsewhere."""
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.LIST)]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "row-list--header",
        "row-list--rule",
        "row-list--cursor",
        "row-list--marked",
        *(f"row-list--{tone}" for tone in Tone),
    }

    class CursorMoved(Message):
        """The cursor is on another row, or its row shows something else."""

    class Opened(Message):
        """The cursor's row is to be opened."""

    class MarksChanged(Message):
        """Other rows are marked than before."""

    class EdgeNeared(Message):
        """Few rows are left in the window, towards `older` (below) or newer ones (above)."""

        def __init__(self, *, older: bool) -> None:
            super().__init__()
            self.older = older

    class EndRequested(Message):
        """The cursor is to go to the last row of all (`older`) or to the first; it is on that of the window."""

        def __init__(self, *, older: bool) -> None:
            super().__init__()
            self.older = older

    def __init__(
        self,
        columns: Sequence[Column[T]],
        *,
        key: Callable[[T], Hashable],
        now: Callable[[], datetime],
        glyphs: Glyphs = UNICODE,
        id: str | None = None,  # noqa: A002  # Textual's name
    ) -> None:
        super().__init__(id=id)
        self.selection: RowSelection[Any] = RowSelection()
        self.columns = tuple(columns)
        self._key = key
        self._now = now
        self._glyphs = glyphs
        self._rows: tuple[T | Heading, ...] = ()
        self._placed_columns: tuple[PlacedColumn[T], ...] = ()
        self._scrolled_columns: int | None = None
        """How many columns are out of sight on the left; None where those that do not fit are left out by rank."""
        self._hidden_titles: frozenset[str] = frozenset()
        self._style_cache: dict[str, Style] = {}
        self._cell_styles: dict[tuple[bool, bool, Tone], Style] = {}
        self._line_cache: dict[Hashable, CachedLine] = {}

    @property
    def rows(self) -> tuple[T, ...]:
        return tuple(row for row in self._rows if not isinstance(row, Heading))

    @property
    def current(self) -> T | None:
        """The row under the cursor."""
        row = self._rows[self.selection.cursor_index] if self._rows else None
        return None if isinstance(row, Heading) else row

    @property
    def page_size(self) -> int:
        """How many rows are seen at a time."""
        return max(self.size.height - HEADER_LINES, 1)

    def show(self, rows: Sequence[T | Heading]) -> None:
        """Show these rows. Cells that look the same are not painted again; the cursor stays where it is."""
        seen = self._visible_keys()
        current, self._rows = self.current, tuple(rows)
        keys = tuple(map(self._key_of, self._rows))
        if keys == self.selection.keys:
            self._repaint(self._placed_columns)
            if self.current != current:
                self.post_message(self.CursorMoved())
            return
        was_at, old_line = self.scroll_offset.y, self.selection.cursor_index
        self.selection.set_keys(keys)
        self._skip_headings(1)
        # It scrolls by itself and has no scroll bar, so nothing needs to be laid out anew.
        self.set_reactive(
            cast("Reactive[Size]", Widget.virtual_size), Size(self.size.width, len(self._rows) + HEADER_LINES)
        )
        # At the top the list grows downwards under new rows, until the cursor would leave the screen.
        self._bring_into_view(0 if was_at == 0 else was_at + self.selection.cursor_index - old_line)
        if self._visible_keys() == seen:
            self._repaint(self._placed_columns)
        else:
            self.refresh()
        if len(self._line_cache) > MAX_CACHED_LINES:
            self._line_cache.clear()
        self.post_message(self.CursorMoved())

    def _visible_keys(self) -> list[Hashable]:
        """What is on the screen, and where the cursor is; the keys of a window may change beyond that."""
        return [self.selection.cursor, *(self._key_of(row) for _, row in self._visible())]

    def tick(self) -> None:
        """Repaint the cells that time alone has changed."""
        self._repaint([placed for placed in self._placed_columns if placed.column.ticks])

    def _repaint(self, columns: Sequence[PlacedColumn[T]]) -> None:
        """Paint those cells of these columns that are seen and look otherwise than when they were drawn."""
        now = self._now()
        for y, row in self._visible():
            drawn = None if isinstance(row, Heading) else self._line_cache.get(self._key(row))
            if isinstance(row, Heading) or drawn is None:
                continue  # what was not drawn yet is going to be
            for placed in columns:
                if drawn.cells[placed.x] != placed.column.cell(row, now):
                    self.refresh(Region(placed.x, y, placed.width, 1))

    def render_line(self, y: int) -> Strip:
        index = y - HEADER_LINES + self.scroll_offset.y
        if y < HEADER_LINES:
            return self._head(y)
        if not 0 <= index < len(self._rows):
            return Strip.blank(self.size.width, self._base_style)
        row = self._rows[index]
        return self._heading(row) if isinstance(row, Heading) else self._line(row)

    def _head(self, y: int) -> Strip:
        if y == 1:
            style = self._base_style + self._style("rule")
            return Strip([Segment(self._glyphs.rule * self.size.width, style)], self.size.width)
        style = self._base_style + self._style("header")
        cells = [
            (placed.x, fit(placed.column.title, placed.width, right=placed.column.right))
            for placed in self._placed_columns
        ]
        return build_strip([(at, text, style) for at, text in cells], self.size.width, style)

    def _heading(self, heading: Heading) -> Strip:
        width, rule = self.size.width, self._glyphs.rule
        text = truncate(f"{rule * GUTTER} {sanitize(heading.text, limit=width)} ", width)
        line = text + rule * (width - cell_len(text))
        return Strip([Segment(line, self._base_style + self._style("rule"))], width)

    def _line(self, row: T) -> Strip:
        key, now = self._key(row), self._now()
        is_cursor = key == self.selection.cursor and (self.has_focus or self.shows_cursor)
        is_marked = key in self.selection.marks
        cells = {placed.x: placed.column.cell(row, now) for placed in self._placed_columns}
        drawn = self._line_cache.get(key)
        if drawn is None or drawn[:3] != (cells, is_cursor, is_marked):
            # A line that only moved is the same line; what Textual made of it for the terminal is kept in it.
            strip = self._strip(cells, is_cursor, is_marked)
            drawn = self._line_cache[key] = CachedLine(cells, is_cursor, is_marked, strip)
        return drawn.strip

    def _strip(self, cells: Mapping[int, Cell], is_cursor: bool, is_marked: bool) -> Strip:  # noqa: FBT001  # as drawn
        base = self._cell_style(is_cursor, is_marked, Tone.PLAIN)
        signs = (self._glyphs.cursor if is_cursor else " ") + (self._glyphs.mark if is_marked else " ")
        pieces = [(0, signs, base)]
        for placed in self._placed_columns:
            cell = cells[placed.x]
            text = fit(cell.text, placed.width, right=placed.column.right)
            pieces.append((placed.x, text, self._cell_style(is_cursor, is_marked, cell.tone)))
        return build_strip(pieces, self.size.width, base)

    def _cell_style(self, is_cursor: bool, is_marked: bool, tone: Tone) -> Style:  # noqa: FBT001  # once a cell
        """How a cell of that tone looks in such a line."""
        key = (is_cursor, is_marked, tone)
        if key not in self._cell_styles:
            names = [name for name, holds in (("marked", is_marked), ("cursor", is_cursor)) if holds]
            self._cell_styles[key] = sum(map(self._style, [*names, tone.value]), self._base_style)
        return self._cell_styles[key]

    def _style(self, name: str) -> Style:
        if name not in self._style_cache:
            self._style_cache[name] = self.get_component_rich_style(f"row-list--{name}", partial=True)
        return self._style_cache[name]

    @property
    def _base_style(self) -> Style:
        # Reckoned from all that stands above it, which takes longer than the rest of a line.
        if BASE_STYLE not in self._style_cache:
            self._style_cache[BASE_STYLE] = self.rich_style
        return self._style_cache[BASE_STYLE]

    def notify_style_update(self) -> None:
        self._style_cache.clear()
        self._cell_styles.clear()
        self._line_cache.clear()
        super().notify_style_update()

    def _key_of(self, row: T | Heading) -> Hashable:
        return row if isinstance(row, Heading) else self._key(row)

    def _visible(self) -> list[tuple[int, T | Heading]]:
        """The rows on the screen and the line of the widget that each is drawn on."""
        top = self.scroll_offset.y
        return [(HEADER_LINES + offset, row) for offset, row in enumerate(self._rows[top : top + self.page_size])]

    @property
    def visible_rows(self) -> tuple[T, ...]:
        return tuple(row for _, row in self._visible() if not isinstance(row, Heading))

    def rows_around(self, pages: int) -> tuple[T, ...]:
        """Those that are seen, and so many pages of them below and above."""
        page, top = self.page_size, self.scroll_offset.y
        near = self._rows[max(top - pages * page, 0) : top + (pages + 1) * page]
        return tuple(row for row in near if not isinstance(row, Heading))

    def _repaint_line(self, index: int) -> None:
        y = index - self.scroll_offset.y + HEADER_LINES
        if HEADER_LINES <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def move_to(self, line: int) -> None:
        """Put the cursor on a line and bring it into view."""
        old = self.selection.cursor_index
        self.selection.move_to(line)
        self._skip_headings(1 if line >= old else -1)
        self._repaint_line(old)
        self._repaint_line(self.selection.cursor_index)
        self._bring_into_view(self.scroll_offset.y)
        self.post_message(self.CursorMoved())
        if self.selection.cursor_index >= len(self._rows) - EDGE_ROWS:
            self.post_message(self.EdgeNeared(older=True))
        elif self.selection.cursor_index < EDGE_ROWS:
            self.post_message(self.EdgeNeared(older=False))

    def _skip_headings(self, step: int) -> None:
        """Where the cursor is on a heading, go on to the nearest row, in this direction if there is one."""
        for direction in (step, -step):
            line = self.selection.cursor_index
            while 0 <= line < len(self._rows):
                if not isinstance(self._rows[line], Heading):
                    self.selection.move_to(line)
                    return
                line += direction

    def _bring_into_view(self, top: int) -> None:
        """Scroll there, or as little further as it takes to see the cursor and what it stands under."""
        line = self.selection.cursor_index
        is_first = line == 1 and self.page_size > 1 and isinstance(self._rows[0], Heading)
        top = min(max(top, line - self.page_size + 1), 0 if is_first else line)
        self.scroll_to(y=max(top, 0), animate=False, force=True, immediate=True)

    def refresh_marks(self) -> None:
        """Draw the marks anew and tell the screen; for whoever changed `selection.marks`."""
        self.selection.marks -= {row for row in self._rows if isinstance(row, Heading)}
        self.refresh()
        self.post_message(self.MarksChanged())

    @property
    def is_wide(self) -> bool:
        return self._scrolled_columns is not None

    @property
    def titles(self) -> tuple[str, ...]:
        """The columns that are seen."""
        return tuple(placed.column.title for placed in self._placed_columns)

    def hide_columns(self, *titles: str) -> None:
        """Have these columns only where every column is within reach, whether they would fit or not."""
        self._hidden_titles = frozenset(titles)
        self._place_columns()

    def set_wide(self, *, is_wide: bool) -> None:
        """Have every column within reach, by moving sideways; or only those that fit."""
        self._scrolled_columns = 0 if is_wide else None
        self._place_columns()

    def scroll_columns(self, columns: int) -> None:
        """Bring columns further to the right, or to the left, into view; the first one stays."""
        if self._scrolled_columns is None:
            return
        is_at_end = self._placed_columns[-1].column is self.columns[-1]
        if columns < 0 or not is_at_end:
            self._scrolled_columns = max(self._scrolled_columns + columns, 0)
            self._place_columns()

    def _place_columns(self) -> None:
        offered = [each for each in self.columns if self.is_wide or each.title not in self._hidden_titles]
        self._placed_columns = place_columns(offered, self.size.width, indent=GUTTER, scrolled=self._scrolled_columns)
        self._line_cache.clear()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        self._place_columns()
        self.virtual_size = Size(event.size.width, len(self._rows) + HEADER_LINES)
        self._bring_into_view(self.scroll_offset.y)

    def on_click(self, event: events.Click) -> None:
        line = event.y - HEADER_LINES + self.scroll_offset.y
        if event.y >= HEADER_LINES and line < len(self._rows):
            self.move_to(line)
            if event.chain > 1:
                self.action_nav_open()

    def action_nav_open(self) -> None:
        if self._rows:
            self.post_message(self.Opened())

    def action_nav_down(self) -> None:
        self.move_to(self.selection.cursor_index + 1)

    def action_nav_up(self) -> None:
        self.move_to(self.selection.cursor_index - 1)

    def action_nav_top(self) -> None:
        self.move_to(0)
        self.post_message(self.EndRequested(older=False))

    def action_nav_bottom(self) -> None:
        self.move_to(len(self._rows) - 1)
        self.post_message(self.EndRequested(older=True))

    def action_nav_page_down(self) -> None:
        self.move_to(self.selection.cursor_index + self.page_size)

    def action_nav_page_up(self) -> None:
        self.move_to(self.selection.cursor_index - self.page_size)

    def action_nav_half_down(self) -> None:
        self.move_to(self.selection.cursor_index + self.page_size // 2)

    def action_nav_half_up(self) -> None:
        self.move_to(self.selection.cursor_index - self.page_size // 2)
