"""A list for any number of rows: it renders only visible lines and repaints only cells that changed.

Rows are values with a key. The list holds a window of the rows; `EdgeNeared` asks the screen to extend it when the
cursor comes close to an end. Cursor and marks are stored by key, not by position, because rows are inserted, removed
and reordered. The cursor skips headings between rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from enum import StrEnum
from textwrap import wrap
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeVar, cast

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

from horsies_tui.data.context import AppContext
from horsies_tui.format import fit, sanitize, truncate
from horsies_tui.keys import SharedScope, bindings
from horsies_tui.theme import Glyph

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

HEADER_LINES: Final = 2
"""Column titles and a rule."""
GUTTER: Final = 3
"""Columns for cursor, mark and a space."""
GAP: Final = 1
"""Space between two columns."""
EDGE_ROWS: Final = 30
"""`EdgeNeared` is posted when the cursor is this close to an end of the window."""
MAX_CACHED_LINES: Final = 2_000
BASE_STYLE: Final = ""
"""Key of the widget's own style in the style cache."""


class Tone(StrEnum):
    """The meaning of a cell; the stylesheet defines its look."""

    PLAIN = "plain"
    DIM = "dim"
    GOOD = "good"
    BUSY = "busy"
    WARN = "warn"
    BAD = "bad"


# A tuple: every key press creates and compares hundreds of them.
class Cell(NamedTuple):
    """Text of a cell as read from the database; the list sanitizes and truncates it."""

    text: str
    tone: Tone = Tone.PLAIN
    glyph: str = ""
    """Shown before the text."""


# No slots: `Column[Task](…)` sets `__orig_class__` on the instance, which slots would not allow.
@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a list of `T`, with `value` or `value_at` of a row as its cell."""

    title: str
    width: int
    """Minimum width."""
    value: Callable[[T], Cell | str] = str
    _: KW_ONLY
    value_at: Callable[[T, datetime], Cell | str] | None = None
    """Gets the database time too; for cells that change with time alone, such as ages."""
    tone: Tone = Tone.PLAIN
    """The tone of values that are plain text."""
    drop_rank: int = 0
    """Columns with the highest rank are dropped first if there is no room."""
    grows: int = 0
    """Relative share of the remaining width; 0 keeps the minimum width."""
    right: bool = False
    """Whether the text is aligned to the right."""

    def cell(self, row: T, now: datetime) -> Cell:
        try:
            value = self.value(row) if self.value_at is None else self.value_at(row, now)
        except Exception:  # noqa: BLE001  # a malformed row costs its cell, not the screen
            return Cell("?", Tone.BAD)
        return value if isinstance(value, Cell) else Cell(value, self.tone)


@dataclass(frozen=True, slots=True)
class Heading:
    """A line across all columns between rows."""

    text: str


class RowList(ScrollView, Generic[T], can_focus=True, inherit_bindings=False):
    """Rows of `T` in columns."""

    shows_cursor: ClassVar[bool] = True
    """Whether the cursor is also drawn while the list has no focus."""
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SharedScope.LIST)]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "row-list--header",
        "row-list--rule",
        "row-list--title",
        "row-list--cursor",
        "row-list--marked",
        *(f"row-list--{tone}" for tone in Tone),
    }

    class CursorMoved(Message):
        """The cursor is on another row, or its row changed."""

    class Opened(Message):
        """The user opened the cursor's row."""

    class MarksChanged(Message):
        """The set of marked rows changed."""

    @dataclass
    class EdgeNeared(Message):
        """The cursor is close to an end of the window: the bottom, with older rows below (`older`), or the top."""

        older: bool

    @dataclass
    class EndRequested(Message):
        """The user asked for the last row of all (`older`) or the first; the cursor is on the last or first loaded."""

        older: bool

    def __init__(
        self,
        columns: Sequence[Column[T]],
        *,
        key: Callable[[T], Hashable],
        context: AppContext,
        follows_top: bool = False,
        holds_place: bool = False,
        has_titles: bool = True,
        rule_title: str = "",
        id: str | None = None,  # noqa: A002  # Textual's name
    ) -> None:
        super().__init__(id=id)
        self.follows_top = follows_top
        """Whether the cursor stays on the first row when new rows push its row down."""
        self._holds_place = holds_place
        """Whether new rows above the cursor never move what is on screen, once the cursor has left the first row."""
        self._header_lines = HEADER_LINES if has_titles else 0
        self._rule = Heading(rule_title)
        self.selection: RowSelection[Any] = RowSelection()
        self.columns = tuple(columns)
        self._key = key
        self._now = context.clock.now
        self._rows: tuple[T | Heading, ...] = ()
        self._empty_text = ""
        self._placed_columns: tuple[PlacedColumn[T], ...] = ()
        self._scrolled_columns: int | None = None
        """Columns scrolled out on the left; None if columns that do not fit are dropped by rank."""
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

    def row_text(self, row: T) -> str:
        """The text of a row to search in, in lower case."""
        # Without ages: rows would match or not as time passes.
        columns = [column for column in self.columns if column.value_at is None]
        return " ".join(column.cell(row, self._now()).text for column in columns).lower()

    @property
    def empty_text(self) -> str:
        """Shown if there are no rows: what is missing and, on further lines, what healthy looks like."""
        return self._empty_text

    @empty_text.setter
    def empty_text(self, text: str) -> None:
        if text != self._empty_text:
            self._empty_text = text
            if not self._rows:
                self.refresh()

    @property
    def rows_above(self) -> int:
        """Number of rows above those on screen."""
        return self.scroll_offset.y

    @property
    def page_size(self) -> int:
        """Number of rows that fit on the screen."""
        return max(self.size.height - self._header_lines, 1)

    def show(self, rows: Sequence[T | Heading]) -> None:
        """Show these rows. The cursor stays on its row; unchanged cells are not repainted."""
        visible = self._visible_keys()
        current, self._rows = self.current, tuple(rows)
        keys = tuple(map(self._key_of, self._rows))
        if keys == self.selection.keys:
            self._repaint(self._placed_columns)
            if self.current != current:
                self.post_message(self.CursorMoved())
            return
        old_top, old_index = self.scroll_offset.y, self.selection.cursor_index
        self.selection.set_keys(keys)
        if self.follows_top and old_index == 0:
            self.selection.move_to(0)
        self._skip_headings(1)
        # Set without the watcher, which would trigger a layout: this widget has no scroll bar.
        self.set_reactive(
            cast("Reactive[Size]", Widget.virtual_size), Size(self.size.width, len(self._rows) + self._header_lines)
        )
        # At the top the list stays there, unless it holds its place; new rows push the cursor down while it is visible.
        is_at_top = old_top == 0 and not (self._holds_place and old_index)
        self._bring_into_view(0 if is_at_top else old_top + self.selection.cursor_index - old_index)
        if self._visible_keys() == visible:
            self._repaint(self._placed_columns)
        else:
            self.refresh()
        if len(self._line_cache) > MAX_CACHED_LINES:
            self._line_cache.clear()
        self.post_message(self.CursorMoved())

    def _visible_keys(self) -> list[Hashable]:
        """The cursor and the keys on screen; if they stay the same, only other parts of the window changed."""
        return [self.selection.cursor, *(self._key_of(row) for _, row in self._visible())]

    def tick(self) -> None:
        """Repaint the cells that changed with time."""
        self._repaint([placed for placed in self._placed_columns if placed.column.value_at is not None])

    def _repaint(self, columns: Sequence[PlacedColumn[T]]) -> None:
        """Repaint the visible cells of these columns that differ from what was drawn."""
        now = self._now()
        for y, row in self._visible():
            if isinstance(row, Heading):
                continue
            if (drawn := self._line_cache.get(self._key(row))) is None:
                # The cache was emptied by new styles, also when the screen is entered again, which redraws no line.
                self.refresh(Region(0, y, self.size.width, 1))
                continue
            for placed in columns:
                if drawn.cells[placed.x] != placed.column.cell(row, now):
                    self.refresh(Region(placed.x, y, placed.width, 1))

    def render_line(self, y: int) -> Strip:
        index = y - self._header_lines + self.scroll_offset.y
        if y < self._header_lines:
            return self._header_line(y)
        if not self._rows:
            return self._empty_line(index)
        if not 0 <= index < len(self._rows):
            return Strip.blank(self.size.width, self._base_style)
        row = self._rows[index]
        return self._heading_line(row) if isinstance(row, Heading) else self._row_line(row)

    def _header_line(self, y: int) -> Strip:
        if y == 1:
            return self._heading_line(self._rule)
        style = self._base_style + self._style("header")
        cells = [
            (placed.x, fit(placed.column.title, placed.width, right=placed.column.right))
            for placed in self._placed_columns
        ]
        return build_strip([(x, text, style) for x, text in cells], self.size.width, style)

    def _heading_line(self, heading: Heading) -> Strip:
        """A rule with a title, like the title of a pane."""
        width, rule = self.size.width, self._base_style + self._style("rule")
        title = truncate(f" {sanitize(heading.text, limit=width)} " if heading.text else "", max(width - 1, 0))
        rest = Glyph.RULE * (width - 1 - cell_len(title))
        style = self._base_style + self._style("title")
        return Strip([Segment(Glyph.RULE, rule), Segment(title, style), Segment(rest, rule)], width)

    def _empty_line(self, index: int) -> Strip:
        width = self.size.width
        lines = [line for text in self._empty_text.split("\n") for line in wrap(text, max(width - 2, 1)) or [""]]
        index -= max((self.page_size - len(lines)) // 3, 0)
        if not 0 <= index < len(lines):
            return Strip.blank(width, self._base_style)
        text = truncate(sanitize(lines[index]), width)
        style = self._base_style + self._style("title") if index else self._base_style
        return build_strip([((width - cell_len(text)) // 2, text, style)], width, self._base_style)

    def _row_line(self, row: T) -> Strip:
        key, now = self._key(row), self._now()
        is_cursor = key == self.selection.cursor and (self.has_focus or self.shows_cursor)
        is_marked = key in self.selection.marks
        cells = {placed.x: placed.column.cell(row, now) for placed in self._placed_columns}
        drawn = self._line_cache.get(key)
        if drawn is None or drawn[:3] != (cells, is_cursor, is_marked):
            # Reusing the Strip of a line that only moved also reuses Textual's rendering cached in it.
            strip = self._draw_row(cells, is_cursor, is_marked)
            drawn = self._line_cache[key] = CachedLine(cells, is_cursor, is_marked, strip)
        return drawn.strip

    def _draw_row(self, cells: Mapping[int, Cell], is_cursor: bool, is_marked: bool) -> Strip:  # noqa: FBT001  # flags of a line
        base = self._cell_style(is_cursor, is_marked, Tone.PLAIN)
        gutter = (Glyph.CURSOR if is_cursor else " ") + (Glyph.MARK if is_marked else " ")
        pieces = [(0, gutter, base)]
        for placed in self._placed_columns:
            cell = cells[placed.x]
            text = f"{cell.glyph} {cell.text}".strip() if cell.glyph else cell.text
            text = fit(text, placed.width, right=placed.column.right)
            pieces.append((placed.x, text, self._cell_style(is_cursor, is_marked, cell.tone)))
        return build_strip(pieces, self.size.width, base)

    def _cell_style(self, is_cursor: bool, is_marked: bool, tone: Tone) -> Style:  # noqa: FBT001  # hot path
        key = (is_cursor, is_marked, tone)
        if key not in self._cell_styles:
            names = [name for name, is_set in (("marked", is_marked), ("cursor", is_cursor)) if is_set]
            self._cell_styles[key] = sum(map(self._style, [*names, tone.value]), self._base_style)
        return self._cell_styles[key]

    def _style(self, name: str) -> Style:
        if name not in self._style_cache:
            self._style_cache[name] = self.get_component_rich_style(f"row-list--{name}", partial=True)
        return self._style_cache[name]

    @property
    def _base_style(self) -> Style:
        # Cached: `rich_style` combines the styles of all ancestors and costs more than the rest of a line.
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
        """The rows on screen, each with its line in the widget."""
        top = self.scroll_offset.y
        return [(self._header_lines + offset, row) for offset, row in enumerate(self._rows[top : top + self.page_size])]

    @property
    def visible_rows(self) -> tuple[T, ...]:
        return tuple(row for _, row in self._visible() if not isinstance(row, Heading))

    def rows_around(self, pages: int) -> tuple[T, ...]:
        """The visible rows and `pages` pages above and below them."""
        page, top = self.page_size, self.scroll_offset.y
        near = self._rows[max(top - pages * page, 0) : top + (pages + 1) * page]
        return tuple(row for row in near if not isinstance(row, Heading))

    def _repaint_line(self, index: int) -> None:
        y = index - self.scroll_offset.y + self._header_lines
        if self._header_lines <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def move_to(self, index: int) -> None:
        """Move the cursor to a row and scroll it into view."""
        old = self.selection.cursor_index
        self.selection.move_to(index)
        self._skip_headings(1 if index >= old else -1)
        self._repaint_line(old)
        self._repaint_line(self.selection.cursor_index)
        self._bring_into_view(self.scroll_offset.y)
        self.post_message(self.CursorMoved())
        # In a short window the cursor is close to both ends; older rows are requested first.
        if self.selection.cursor_index >= len(self._rows) - EDGE_ROWS:
            self.post_message(self.EdgeNeared(older=True))
        elif self.selection.cursor_index < EDGE_ROWS:
            self.post_message(self.EdgeNeared(older=False))

    def _skip_headings(self, step: int) -> None:
        """Move the cursor off a heading to the nearest row, in the direction of `step` if there is one."""
        for direction in (step, -step):
            index = self.selection.cursor_index
            while 0 <= index < len(self._rows):
                if not isinstance(self._rows[index], Heading):
                    self.selection.move_to(index)
                    return
                index += direction

    def _bring_into_view(self, top: int) -> None:
        """Scroll to `top`, corrected so that the cursor is visible (and the heading above the first row)."""
        index = self.selection.cursor_index
        is_below_first_heading = index == 1 and self.page_size > 1 and isinstance(self._rows[0], Heading)
        top = min(max(top, index - self.page_size + 1), 0 if is_below_first_heading else index)
        self.scroll_to(y=max(top, 0), animate=False, force=True, immediate=True)

    def mark(self, rows: str) -> None:
        """Handle the actions `mark.*`: toggle the current row, start or end a range, mark all rows or none."""
        match rows:
            case "toggle":
                self.selection.toggle()
            case "range":
                self.selection.mark_range()
            case "page":
                self.selection.mark_all()
            case _:
                self.selection.unmark()
        self.refresh_marks()
        if rows == "toggle":
            self.action_move_rows(1)

    def unmark(self, keys: Sequence[Hashable]) -> None:
        self.selection.unmark(keys)
        self.refresh_marks()

    def refresh_marks(self) -> None:
        """Redraw the marks and post `MarksChanged`; call after changing `selection.marks`."""
        # Marking a range or all rows also marks the headings in between.
        self.selection.marks -= {row for row in self._rows if isinstance(row, Heading)}
        self.refresh()
        self.post_message(self.MarksChanged())

    @property
    def is_wide(self) -> bool:
        return self._scrolled_columns is not None

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles of the visible columns."""
        return tuple(placed.column.title for placed in self._placed_columns)

    def hide_columns(self, *titles: str) -> None:
        """Show these columns only in wide mode."""
        self._hidden_titles = frozenset(titles)
        self._place_columns()

    def set_wide(self, *, is_wide: bool) -> None:
        """Wide mode: all columns, scrolled sideways. Otherwise only those that fit."""
        self._scrolled_columns = 0 if is_wide else None
        self._place_columns()

    def scroll_columns(self, columns: int) -> None:
        """Scroll by a number of columns, negative to the left; the first column stays."""
        if self._scrolled_columns is None:
            return
        is_at_end = self._placed_columns[-1].column is self.columns[-1]
        if columns < 0 or not is_at_end:
            self._scrolled_columns = max(self._scrolled_columns + columns, 0)
            self._place_columns()

    def _place_columns(self) -> None:
        columns = [column for column in self.columns if self.is_wide or column.title not in self._hidden_titles]
        self._placed_columns = place_columns(columns, self.size.width, indent=GUTTER, scrolled=self._scrolled_columns)
        # Cached cells are keyed by their x position, which may have changed.
        self._line_cache.clear()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        self._place_columns()
        self.virtual_size = Size(event.size.width, len(self._rows) + self._header_lines)
        self._bring_into_view(self.scroll_offset.y)

    def on_click(self, event: events.Click) -> None:
        index = event.y - self._header_lines + self.scroll_offset.y
        if event.y >= self._header_lines and index < len(self._rows):
            self.move_to(index)
            if event.chain > 1:
                self.action_nav_open()

    def action_nav_open(self) -> None:
        if self._rows:
            self.post_message(self.Opened())

    def action_move_rows(self, count: int) -> None:
        self.move_to(self.selection.cursor_index + count)

    def action_move_pages(self, count: float) -> None:
        self.action_move_rows(int(count * self.page_size))

    def action_move_to_end(self, end: Literal["top", "bottom"]) -> None:
        is_bottom = end == "bottom"
        self.move_to(len(self._rows) - 1 if is_bottom else 0)
        self.post_message(self.EndRequested(older=is_bottom))


class CachedLine(NamedTuple):
    """A drawn line and the values it was drawn from."""

    cells: Mapping[int, Cell]
    """By x position."""
    is_cursor: bool
    is_marked: bool
    strip: Strip


# Cursor and marks


class RowSelection(Generic[K]):
    """Cursor and marks by key. Rows that are no longer loaded stay marked."""

    def __init__(self) -> None:
        self.keys: tuple[K, ...] = ()
        self.cursor: K | None = None
        self.marks: set[K] = set()
        self.range_start: K | None = None
        self._index_by_key: dict[K, int] = {}

    @property
    def cursor_index(self) -> int:
        """Index of the cursor's row; 0 in an empty list."""
        return 0 if self.cursor is None else self._index_by_key.get(self.cursor, 0)

    @property
    def selected(self) -> tuple[K, ...]:
        """The keys an action applies to: the marked rows, loaded ones first; without marks the cursor's row."""
        if self.marks:
            loaded = [key for key in self.keys if key in self.marks]
            return (*loaded, *(key for key in self.marks if key not in self._index_by_key))
        return () if self.cursor is None else (self.cursor,)

    def index_of(self, key: K) -> int | None:
        return self._index_by_key.get(key)

    def set_keys(self, keys: Sequence[K]) -> None:
        """Set the loaded rows. The cursor stays on its row; if that is gone, on the row at the same index."""
        index = self.cursor_index
        self.keys = tuple(keys)
        self._index_by_key = {key: index for index, key in enumerate(self.keys)}
        if self.cursor not in self._index_by_key:
            self.cursor = self.keys[min(index, len(self.keys) - 1)] if self.keys else None
        if self.range_start not in self._index_by_key:
            self.range_start = None

    def move_to(self, index: int) -> None:
        """Move the cursor to a row, clamped to the list."""
        if self.keys:
            self.cursor = self.keys[max(0, min(index, len(self.keys) - 1))]

    def toggle(self) -> None:
        """Mark or unmark the cursor's row."""
        if self.cursor is not None:
            self.marks ^= {self.cursor}

    def mark_range(self) -> None:
        """First call: start a range at the cursor. Second call: mark all rows from there to the cursor."""
        if self.range_start is None:
            self.range_start = self.cursor
            return
        first, last = sorted((self._index_by_key[self.range_start], self.cursor_index))
        self.marks |= set(self.keys[first : last + 1])
        self.range_start = None

    def mark_all(self) -> None:
        """Mark all loaded rows."""
        self.marks |= set(self.keys)

    def unmark(self, keys: Sequence[K] | None = None) -> None:
        """Remove the marks of these keys, or all marks."""
        self.marks -= set(self.marks if keys is None else keys)
        self.range_start = None


# Column layout


@dataclass(frozen=True, kw_only=True)
class PlacedColumn(Generic[T]):
    """A column with its position in the line."""

    column: Column[T]
    x: int
    width: int


def place_columns(
    columns: Sequence[Column[T]], width: int, *, indent: int = 0, scrolled: int | None = None
) -> tuple[PlacedColumn[T], ...]:
    """Lay out the columns that fit into `width`, in order; the first is always included.

    With `scrolled`, that many columns after the first are skipped, and the last ones are dropped, not the highest rank.
    """
    available = width - indent
    chosen = _fitting_columns(columns, available) if scrolled is None else _columns_from(columns, available, scrolled)
    spare = max(available - _total_width(chosen), 0)
    shares = sum(column.grows for column in chosen)
    placed: list[PlacedColumn[T]] = []
    x = indent
    for column in chosen:
        # A share of what is still left, so that rounding leaves no cell at the right unused.
        share = spare * column.grows // shares if shares else 0
        spare, shares = spare - share, shares - column.grows
        placed.append(PlacedColumn(column=column, x=x, width=column.width + share))
        x += column.width + share + GAP
    return tuple(placed)


def _fitting_columns(columns: Sequence[Column[T]], width: int) -> list[Column[T]]:
    chosen = list(columns)
    while len(chosen) > 1 and _total_width(chosen) > width:
        # The highest rank; of equal ranks the rightmost.
        dropped = max(range(1, len(chosen)), key=lambda index: (chosen[index].drop_rank, index))
        del chosen[dropped]
    return chosen


def _columns_from(columns: Sequence[Column[T]], width: int, scrolled: int) -> list[Column[T]]:
    chosen = [columns[0], *columns[1 + scrolled :]]
    while len(chosen) > 1 and _total_width(chosen) > width:
        del chosen[-1]
    return chosen


def _total_width(columns: Sequence[Column[T]]) -> int:
    return sum(column.width for column in columns) + GAP * max(len(columns) - 1, 0)


def build_strip(pieces: Sequence[tuple[int, str, Style]], width: int, filling: Style) -> Strip:
    """Join texts with their x positions and styles into one line of `width` cells; `filling` is the style of gaps."""
    runs: list[tuple[str, Style]] = []
    end = 0
    for x, text, style in pieces:
        if x > end:
            _append_run(runs, " " * (x - end), filling)
        _append_run(runs, text, style)
        end = max(x, end) + cell_len(text)
    return Strip([Segment(text, style) for text, style in runs], end).adjust_cell_length(width, filling)


def _append_run(runs: list[tuple[str, Style]], text: str, style: Style) -> None:
    """Append to the last run if it has the same style: fewer segments render faster."""
    if runs and runs[-1][1] is style:
        runs[-1] = (runs[-1][0] + text, style)
    else:
        runs.append((text, style))
