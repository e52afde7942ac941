from __future__ import annotations

import pytest
from textual.message import Message
from textual.pilot import Pilot

from horsies_tui.keys import ScreenId
from horsies_tui.screens.base import ShowTasks
from horsies_tui.screens.maintenance import MaintenanceScreen, OperatorLogDialog
from horsies_tui.screens.stale import StaleScreen
from tests.support.fake_system import FakeOpener
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog


def _screen(pilot: Pilot[None]) -> MaintenanceScreen:
    return next(screen for screen in pilot.app.screen_stack if isinstance(screen, MaintenanceScreen))


def _move_to(pilot: Pilot[None], key: str) -> None:
    rows = _screen(pilot).list
    rows.move_to(next(index for index, row_key in enumerate(rows.selection.keys) if row_key == key))


async def test_cleanup_requires_typing_delete_and_database_name() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.MAINTENANCE) as pilot:
        await pilot.press("D")
        await until_plan_dialog(pilot)
        await pilot.press(*"delete db2", "enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert system.expired_rows
        await pilot.press("D")
        await until_plan_dialog(pilot)
        await pilot.press(*"delete db1/app", "enter")
        await eventually(pilot, lambda: "deleted 563,711 rows" in screen_text(pilot))
        assert not system.expired_rows
        assert system.audit_log[-1].action == "cleanup"


@pytest.mark.parametrize(
    ("key", "title"), [("sweep RUNNING", "Sweep 7 tasks"), ("cleanup events", "Delete 563,711 old rows")]
)
async def test_dry_run_depends_on_item_under_cursor(key: str, title: str) -> None:
    async with running_app(screen_id=ScreenId.MAINTENANCE, read_only=True) as pilot:
        _move_to(pilot, key)
        await pilot.press("d")
        await until_plan_dialog(pilot)
        assert f"{title} — dry run" in screen_text(pilot)


async def test_sweep_item_opens_stale_screen() -> None:
    async with running_app(screen_id=ScreenId.MAINTENANCE) as pilot:
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, StaleScreen))


async def test_retention_item_opens_matching_tasks() -> None:
    messages: list[Message] = []
    async with running_app(screen_id=ScreenId.MAINTENANCE, hook=messages.append) as pilot:
        _move_to(pilot, "cleanup terminal records")
        await pilot.press("enter")
        await eventually(pilot, lambda: any(isinstance(message, ShowTasks) for message in messages))


async def test_operator_log_opens_in_dialog() -> None:
    async with running_app(screen_id=ScreenId.MAINTENANCE) as pilot:
        await pilot.press("l")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, OperatorLogDialog))
        await eventually(pilot, lambda: "reason smtp is back" in screen_text(pilot))
        await pilot.press("escape")
        assert pilot.app.screen is _screen(pilot)


async def test_read_only_disables_sweep_and_cleanup() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.MAINTENANCE, read_only=True) as pilot:
        await pilot.press("D", "S")
        await pilot.pause()
        assert pilot.app.screen is _screen(pilot)
        assert system.expired_rows
