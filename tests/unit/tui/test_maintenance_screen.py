from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horsies_tui.demo import Demo
from horsies_tui.keys import Place
from horsies_tui.messages import TasksWanted
from horsies_tui.screens.maintenance import LogDialog, MaintenanceScreen
from horsies_tui.screens.stale import StaleScreen
from tests.support.tui import dialog, eventually, running, shown, still

if TYPE_CHECKING:
    from textual.message import Message
    from textual.pilot import Pilot


def _screen(pilot: Pilot[None]) -> MaintenanceScreen:
    return next(each for each in pilot.app.screen_stack if isinstance(each, MaintenanceScreen))


def _go_to(pilot: Pilot[None], key: str) -> None:
    rows = _screen(pilot).list
    rows.move_to(next(index for index, each in enumerate(rows.selection.keys) if each == key))


async def test_rows_are_deleted_only_for_whoever_types_delete_and_the_database() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.MAINT) as pilot:
        await pilot.press("D")
        await dialog(pilot)
        await pilot.press(*"delete db2", "enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert system.keeping.old
        await pilot.press("D")
        await dialog(pilot)
        await pilot.press(*"delete db1/app", "enter")
        await eventually(pilot, lambda: "deleted 563,711 rows" in shown(pilot))
        assert not system.keeping.old
        assert system.record.rows[-1].action == "cleanup"


@pytest.mark.parametrize(
    ("key", "title"), [("sweep RUNNING", "Sweep 7 tasks"), ("cleanup events", "Delete 563,711 old rows")]
)
async def test_a_dry_run_is_that_of_the_part_under_the_cursor(key: str, title: str) -> None:
    async with running(place=Place.MAINT, read_only=True) as pilot:
        _go_to(pilot, key)
        await pilot.press("d")
        await dialog(pilot)
        assert f"{title} — dry run" in shown(pilot)


async def test_a_line_of_the_sweep_leads_to_the_stale_tasks() -> None:
    async with running(place=Place.MAINT) as pilot:
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, StaleScreen))


async def test_old_tasks_are_listed_as_tasks() -> None:
    heard: list[Message] = []
    async with running(place=Place.MAINT, hook=heard.append) as pilot:
        _go_to(pilot, "cleanup terminal records")
        await pilot.press("enter")
        await eventually(pilot, lambda: any(isinstance(each, TasksWanted) for each in heard))


async def test_the_whole_operator_log_is_a_key_away() -> None:
    async with running(place=Place.MAINT) as pilot:
        await pilot.press("l")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, LogDialog))
        await eventually(pilot, lambda: "why  smtp is back" in shown(pilot))
        await pilot.press("escape")
        assert pilot.app.screen is _screen(pilot)


async def test_read_only_neither_sweeps_nor_deletes() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.MAINT, read_only=True) as pilot:
        await pilot.press("D", "S")
        await pilot.pause()
        assert pilot.app.screen is _screen(pilot)
        assert system.keeping.old
