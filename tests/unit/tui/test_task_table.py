"""The task table: facet sidebar, columns, sort order, copying."""

from __future__ import annotations

import json

from textual.pilot import Pilot

from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.widgets.filter_bar import FacetPopup, FacetSidebar
from tests.support.fake_system import FakeOpener
from tests.support.tui import eventually, frozen_system, lines, running_app, screen_text, until_stable

LARGE = (150, 36)


def _screen(pilot: Pilot[None]) -> TasksScreen:
    screen = pilot.app.screen_stack[0]
    assert isinstance(screen, TasksScreen)
    return screen


async def test_wide_terminal_shows_facet_sidebar() -> None:
    async with running_app(size=LARGE) as pilot:
        await eventually(pilot, lambda: "─ queue ──" in screen_text(pilot))
        assert _screen(pilot).query_one(FacetSidebar).display


async def test_picking_facets_filters_list_and_keeps_focus() -> None:
    async with running_app(size=LARGE) as pilot:
        await eventually(pilot, lambda: "COMPLETED" in screen_text(pilot))
        await pilot.press("f", "space")
        await eventually(pilot, lambda: {row.status for row in _screen(pilot).list.rows} == {"COMPLETED"})
        assert list(_screen(pilot).filter.statuses) == ["COMPLETED"]
        await pilot.press("j", "space")
        await eventually(pilot, lambda: len(_screen(pilot).filter.statuses) == 2)
        await pilot.press("escape")
        assert pilot.app.focused is _screen(pilot).list


async def test_picking_facets_keeps_marks() -> None:
    async with running_app(size=LARGE) as pilot:
        await pilot.press("space")
        marked = set(_screen(pilot).list.selection.marks)
        await pilot.press("f", "j", "space")
        await until_stable(pilot)
        assert _screen(pilot).list.selection.marks == marked


async def test_narrow_terminal_opens_facet_popup() -> None:
    async with running_app() as pilot:
        await pilot.press("f")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, FacetPopup))


async def test_argument_previews_are_redacted() -> None:
    async with running_app(size=(200, 36)) as pilot:
        _screen(pilot).apply_filter(TaskFilter(names=("mail.send",)))
        await eventually(pilot, lambda: screen_text(pilot).count('{"to": "ada@example.org"') > 5)
        assert "s3cret" not in screen_text(pilot)


async def test_argument_previews_are_hidden_by_setting() -> None:
    async with running_app(size=(200, 36), settings=TuiConfig(show_args="never")) as pilot:
        await eventually(pilot, lambda: "••••" in screen_text(pilot))
        assert "ada@example" not in screen_text(pilot)


async def test_columns_scroll_sideways_and_ids_stay() -> None:
    async with running_app() as pilot:
        assert "ARGS" not in _screen(pilot).list.titles
        await pilot.press("w", *["right"] * 12)
        await eventually(pilot, lambda: "ada@exa" in screen_text(pilot))
        assert _screen(pilot).list.titles[0] == "ID"
        assert _screen(pilot).list.titles[-1] == "ARGS"
        await pilot.press(*["left"] * 12)
        assert _screen(pilot).list.titles[1] == "TASK"


async def test_list_can_be_maximised() -> None:
    async with running_app(size=LARGE) as pilot:
        before = _screen(pilot).list.size
        await pilot.press("m")
        await eventually(pilot, lambda: _screen(pilot).list.size.height > before.height)
        assert _screen(pilot).list.size.width == LARGE[0]
        await pilot.press("m")
        await eventually(pilot, lambda: _screen(pilot).list.size == before)


async def test_loaded_rows_are_sorted_in_both_directions() -> None:
    async with running_app() as pilot:
        await pilot.press("s", "down", "enter")
        await eventually(pilot, lambda: "sorted by TASK" in screen_text(pilot))
        names = [row.name for row in _screen(pilot).list.rows]
        assert names == sorted(names, reverse=True)
        await pilot.press("s", "s")
        await eventually(pilot, lambda: "ascending" in screen_text(pilot))
        assert [row.name for row in _screen(pilot).list.rows] == sorted(names)


async def test_end_and_home_keys_reach_oldest_and_newest_task() -> None:
    system = frozen_system(2000)
    async with running_app(FakeOpener(system)) as pilot:
        await pilot.press("G")
        await eventually(pilot, lambda: _screen(pilot).list.selection.cursor == system.task_ids[0])
        await pilot.press("g")
        await eventually(pilot, lambda: _screen(pilot).list.selection.cursor == system.task_ids[-1])


async def test_rows_are_copied_as_redacted_json() -> None:
    async with running_app(notifies=True) as pilot:
        _screen(pilot).apply_filter(TaskFilter(names=("mail.send",)))
        await eventually(pilot, lambda: {row.name for row in _screen(pilot).list.rows} == {"mail.send"})
        await pilot.press("Y")
        await eventually(pilot, lambda: "copied as JSON" in screen_text(pilot))
        (copied,) = json.loads(pilot.app.clipboard)
        assert copied["id"] == str(_screen(pilot).list.selection.cursor)
        assert copied["arguments"]["api_token"] == "••••••"


async def test_text_too_large_for_clipboard_is_refused() -> None:
    async with running_app(notifies=True) as pilot:
        _screen(pilot).copy_text("x" * 100_000, "everything")
        await eventually(pilot, lambda: "cannot copy everything" in screen_text(pilot))
        assert pilot.app.clipboard == ""


async def test_control_characters_are_not_copied() -> None:
    async with running_app() as pilot:
        _screen(pilot).copy_text("one\ntwo\x1b[201~rm -rf\r", "lines")
        assert pilot.app.clipboard == "one\ntwo\\x1b[201~rm -rf⏎"


async def test_facet_cursor_is_visible_only_with_focus() -> None:
    async with running_app(size=LARGE) as pilot:
        await eventually(pilot, lambda: "─ queue ──" in screen_text(pilot))
        assert sum(line.count("▌") for line in lines(pilot)) == 1
        await pilot.press("f")
        await eventually(pilot, lambda: sum(line.count("▌") for line in lines(pilot)) == 2)


async def test_end_of_facets_loads_no_tasks() -> None:
    async with running_app(FakeOpener(frozen_system(1000)), size=LARGE) as pilot:
        await eventually(pilot, lambda: "COMPLETED" in screen_text(pilot))
        before = _screen(pilot).window.ids
        await pilot.press("f", "G")
        await until_stable(pilot)
        assert _screen(pilot).window.ids == before
