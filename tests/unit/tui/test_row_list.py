from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.style import Style
from textual.app import App, ComposeResult
from textual.geometry import Region

from horsies_tui.format import fit
from horsies_tui.widgets.row_list import HEADER_LINES, Column, Heading, RowList, build_strip
from tests.support.tui import frozen_clock

if TYPE_CHECKING:
    from horsies_tui.data.context import AppContext


@dataclass(frozen=True)
class Row:
    key: int
    text: str


COLUMNS = (
    Column[Row]("KEY", 4, lambda row: str(row.key)),
    Column[Row]("TEXT", 10, lambda row: row.text, grows=1),
)


CONTEXT = SimpleNamespace(clock=frozen_clock())


class RecordingList(RowList[Row]):
    """Records the regions it is asked to repaint."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, key=lambda row: row.key, context=cast("AppContext", CONTEXT))
        self.repainted: list[Region] = []

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> RecordingList:
        self.repainted += regions
        super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        return self


class ListApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.list = RecordingList()

    def compose(self) -> ComposeResult:
        yield self.list

    def lines(self) -> list[str]:
        return [self.list.render_line(y).text for y in range(self.list.size.height)]


def _rows(*keys: int) -> list[Row]:
    return [Row(key, f"row {key}") for key in keys]


async def test_cursor_stays_on_row_when_rows_arrive_above() -> None:
    app = ListApp()
    async with app.run_test(size=(40, 10)) as pilot:
        app.list.show(_rows(5, 4, 3))
        await pilot.press("j")
        app.list.show(_rows(9, 8, 5, 4, 3))
        await pilot.pause()
        assert app.list.current == Row(4, "row 4")
        assert app.lines()[HEADER_LINES + 3].startswith("▌  4")


async def test_scrolled_cursor_keeps_its_screen_line() -> None:
    app = ListApp()
    async with app.run_test(size=(40, 10)) as pilot:
        app.list.show(_rows(*range(1000, 0, -1)))
        app.list.move_to(500)
        await pilot.pause()
        before = next(line for line, text in enumerate(app.lines()) if text.startswith("▌"))
        app.list.show(_rows(*range(1100, 0, -1)))
        await pilot.pause()
        assert app.list.current == Row(500, "row 500")
        assert app.lines()[before].startswith("▌  500")


async def test_only_changed_cell_is_repainted() -> None:
    app = ListApp()
    async with app.run_test(size=(40, 10)) as pilot:
        app.list.show(_rows(3, 2, 1))
        await pilot.pause()
        app.list.repainted.clear()
        app.list.show([Row(3, "row 3"), Row(2, "another"), Row(1, "row 1")])
        assert [(region.y, region.height) for region in app.list.repainted] == [(HEADER_LINES + 1, 1)]
        await pilot.pause()
        app.list.repainted.clear()
        app.list.show([Row(3, "row 3"), Row(2, "another"), Row(1, "row 1")])
        assert app.list.repainted == []


async def test_cursor_skips_headings() -> None:
    app = ListApp()
    async with app.run_test(size=(40, 10)) as pilot:
        app.list.show([Heading("late"), *_rows(3, 2), Heading("early [b]"), *_rows(1)])
        assert app.list.current == Row(3, "row 3")
        await pilot.press("j", "j")
        assert app.list.current == Row(1, "row 1")
        await pilot.press("k")
        assert app.list.current == Row(2, "row 2")
        await pilot.press("g")
        assert app.list.current == Row(3, "row 3")
        assert app.lines()[HEADER_LINES + 3].startswith("─ early [b] ──")


async def test_edge_neared_is_posted_near_end() -> None:
    messages: list[object] = []
    app = ListApp()
    async with app.run_test(size=(40, 10), message_hook=messages.append) as pilot:
        app.list.show(_rows(*range(200)))
        await pilot.press("end")
        assert {message.older for message in messages if isinstance(message, RowList.EdgeNeared)} == {True}


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_task_text_never_reaches_terminal_as_control_sequence(text: str) -> None:
    strip = build_strip([(0, fit(text, 20), Style())], 40, Style())
    assert strip.cell_length == 40
    assert not any(unicodedata.category(character) == "Cc" for character in strip.text)


async def test_hundred_thousand_rows_show_as_fast_as_ten() -> None:
    app = ListApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.list.show(_rows(*range(100_000)))
        await pilot.press("end")
        assert app.list.current == Row(99_999, "row 99999")
