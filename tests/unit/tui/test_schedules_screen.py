from __future__ import annotations

from textual.message import Message

from horsies_ops.reads.filters import TaskFilter
from horsies_tui.demo import DemoOpener
from horsies_tui.demo.system import DemoSystem
from horsies_tui.keys import ACTIONS, Place
from horsies_tui.messages import ShowTasks
from horsies_tui.screens.schedules import SchedulesScreen
from tests.support.tui import NOON, eventually, running_app, screen_text


async def test_schedules_say_when_they_run_next_and_how_it_went() -> None:
    async with running_app(place=Place.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "4 schedules" in screen_text(pilot))
        assert "in 10m28s" in screen_text(pilot)
        assert "disabled" in screen_text(pilot)
        assert "HTTP_503" in screen_text(pilot)


async def test_those_that_are_switched_off_can_be_hidden() -> None:
    async with running_app(place=Place.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "legacy-sync" in screen_text(pilot))
        await pilot.press("x")
        assert "legacy-sync" not in screen_text(pilot)
        assert "1 disabled hidden" in screen_text(pilot)


async def test_enter_shows_the_tasks_that_a_schedule_sends() -> None:
    heard = list[Message]()
    async with running_app(place=Place.SCHEDULES, hook=heard.append) as pilot:
        await eventually(pilot, lambda: "nightly-etl" in screen_text(pilot))
        await pilot.press("j", "enter")
        await eventually(pilot, lambda: "name:etl.load" in screen_text(pilot))
        wanted = next(message for message in heard if isinstance(message, ShowTasks))
        assert wanted.filter == TaskFilter(names=("etl.load",))


async def test_where_there_are_none_the_screen_says_how_to_have_some_and_what_becomes_of_them() -> None:
    async with running_app(DemoOpener(DemoSystem(lambda: NOON), pace_s=None), place=Place.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "There are no schedules" in screen_text(pilot))
        assert "No command runs them yet" in screen_text(pilot)


async def test_nothing_can_be_changed_here() -> None:
    async with running_app(place=Place.SCHEDULES) as pilot:
        assert not [action for action in ACTIONS if action.mutates and Place.SCHEDULES in action.places]
        assert isinstance(pilot.app.screen, SchedulesScreen)
        await pilot.press(*[key for action in ACTIONS if action.mutates for key in action.keys])
        assert isinstance(pilot.app.screen, SchedulesScreen)
