from __future__ import annotations

from textual.message import Message

from horsies_ops.reads.filters import TaskFilter
from horsies_tui.demo import DemoOpener
from horsies_tui.demo.system import DemoSystem
from horsies_tui.keys import ACTIONS, ScreenId
from horsies_tui.screens.base import ShowTasks
from horsies_tui.screens.schedules import SchedulesScreen
from tests.support.tui import NOON, eventually, running_app, screen_text


async def test_list_shows_next_run_and_last_result() -> None:
    async with running_app(screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "4 schedules" in screen_text(pilot))
        assert "in 10m28s" in screen_text(pilot)
        assert "disabled" in screen_text(pilot)
        assert "HTTP_503" in screen_text(pilot)


async def test_disabled_schedules_can_be_hidden() -> None:
    async with running_app(screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "legacy-sync" in screen_text(pilot))
        await pilot.press("x")
        assert "legacy-sync" not in screen_text(pilot)
        assert "1 disabled hidden" in screen_text(pilot)


async def test_enter_opens_tasks_of_schedule() -> None:
    messages = list[Message]()
    async with running_app(screen_id=ScreenId.SCHEDULES, hook=messages.append) as pilot:
        await eventually(pilot, lambda: "nightly-etl" in screen_text(pilot))
        await pilot.press("j", "enter")
        await eventually(pilot, lambda: "name:etl.load" in screen_text(pilot))
        shown = next(message for message in messages if isinstance(message, ShowTasks))
        assert shown.filter == TaskFilter(names=("etl.load",))


async def test_empty_screen_explains_how_to_define_schedules() -> None:
    async with running_app(DemoOpener(DemoSystem(lambda: NOON), pace_s=None), screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "There are no schedules" in screen_text(pilot))
        assert "No command runs them yet" in screen_text(pilot)


async def test_screen_has_no_actions() -> None:
    async with running_app(screen_id=ScreenId.SCHEDULES) as pilot:
        assert not [action for action in ACTIONS if action.mutates and ScreenId.SCHEDULES in action.scopes]
        assert isinstance(pilot.app.screen, SchedulesScreen)
        await pilot.press(*[key for action in ACTIONS if action.mutates for key in action.keys])
        assert isinstance(pilot.app.screen, SchedulesScreen)
