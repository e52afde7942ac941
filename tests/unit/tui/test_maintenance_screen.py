from __future__ import annotations

import pytest
from textual.message import Message
from textual.pilot import Pilot

from horsies_tui.demo import DemoOpener
from horsies_tui.keys import Place
from horsies_tui.messages import ShowTasks
from horsies_tui.screens.maintenance import MaintenanceScreen, OperatorLogDialog
from horsies_tui.screens.stale import StaleScreen
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog


def _screen(pilot: Pilot[None]) -> MaintenanceScreen:
    return next(each for each in pilot.app.screen_stack if isinstance(each, MaintenanceScreen))


def _go_to(pilot: Pilot[None], key: str) -> None:
    rows = _screen(pilot).list
    rows.move_to(next(index for index, each in enumerate(rows.selection.keys) if each == key))


async def test_rows_are_deleted_only_for_whoever_types_delete_and_the_database() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.MAINTENANCE) as pilot:
        await pilot.press("D")
        await until_plan_dialog(pilot)
        await pilot.press(*"delete db2", "enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert system.maintenance.expired_rows
        await pilot.press("D")
        await until_plan_dialog(pilot)
        await pilot.press(*"delete db1/app", "enter")
        await eventually(pilot, lambda: "deleted 563,711 rows" in screen_text(pilot))
        assert not system.maintenance.expired_rows
        assert system.audit_log.rows[-1].action == "cleanup"


@pytest.mark.parametrize(
    ("key", "title"), [("sweep RUNNING", "Sweep 7 tasks"), ("cleanup events", "Delete 563,711 old rows")]
)
async def test_a_dry_run_is_that_of_the_part_under_the_cursor(key: str, title: str) -> None:
    async with running_app(place=Place.MAINTENANCE, read_only=True) as pilot:
        _go_to(pilot, key)
        await pilot.press("d")
        await until_plan_dialog(pilot)
        assert f"{title} — dry run" in screen_text(pilot)


async def test_a_line_of_the_sweep_leads_to_the_stale_tasks() -> None:
    async with running_app(place=Place.MAINTENANCE) as pilot:
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, StaleScreen))


async def test_old_tasks_are_listed_as_tasks() -> None:
    heard: list[Message] = []
    async with running_app(place=Place.MAINTENANCE, hook=heard.append) as pilot:
        _go_to(pilot, "cleanup terminal records")
        await pilot.press("enter")
        await eventually(pilot, lambda: any(isinstance(each, ShowTasks) for each in heard))


async def test_the_whole_operator_log_is_a_key_away() -> None:
    async with running_app(place=Place.MAINTENANCE) as pilot:
        await pilot.press("l")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, OperatorLogDialog))
        await eventually(pilot, lambda: "why  smtp is back" in screen_text(pilot))
        await pilot.press("escape")
        assert pilot.app.screen is _screen(pilot)


async def test_read_only_neither_sweeps_nor_deletes() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.MAINTENANCE, read_only=True) as pilot:
        await pilot.press("D", "S")
        await pilot.pause()
        assert pilot.app.screen is _screen(pilot)
        assert system.maintenance.expired_rows
