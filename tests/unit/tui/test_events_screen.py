from __future__ import annotations

from datetime import timedelta

from textual.message import Message
from textual.pilot import Pilot

from horsies.model.task import TaskStatus
from horsies_tui.demo import DemoOpener
from horsies_tui.demo.system import DemoSystem
from horsies_tui.demo.workflows import KINDS
from horsies_tui.keys import Place
from horsies_tui.messages import OpenTask, ShowTasks, ShowWorker
from horsies_tui.screens.events import EventsScreen
from tests.support.tui import NOON, eventually, frozen_system, running_app, screen_text, until_stable


def _screen(pilot: Pilot[None]) -> EventsScreen:
    return next(each for each in pilot.app.screen_stack if isinstance(each, EventsScreen))


def _happen(pilot: Pilot[None], system: DemoSystem, count: int) -> None:
    """Tasks start, and that is heard."""
    for _ in range(count):
        system.move(system.send(KINDS[0]).id, TaskStatus.RUNNING)
    store = _screen(pilot).context.queries
    for change in system.changes():
        store.change_log.append(change)
    store.refresh("events")


async def test_what_is_heard_is_on_the_screen_folded_and_named() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.EVENTS) as pilot:
        _happen(pilot, system, 3)
        await eventually(pilot, lambda: "×3 mail.send" in screen_text(pilot))
        assert "following" in screen_text(pilot)


async def test_what_happened_before_and_what_operators_did_is_there_from_the_start() -> None:
    async with running_app(place=Place.EVENTS) as pilot:
        await eventually(pilot, lambda: "worker_lost" in screen_text(pilot))
        assert "ana retry" in screen_text(pilot)


async def test_going_down_stops_the_list_counts_what_is_new_and_g_follows_again() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.EVENTS) as pilot:
        await eventually(pilot, lambda: bool(_screen(pilot).list.rows))
        await pilot.press("j", "j")
        await eventually(pilot, lambda: not _screen(pilot).is_following)
        before = [each.key for each in _screen(pilot).list.rows]
        system.now = lambda: NOON + timedelta(seconds=5)
        _happen(pilot, system, 4)
        await eventually(pilot, lambda: "4 new, g follows" in screen_text(pilot))
        assert [each.key for each in _screen(pilot).list.rows] == before
        await pilot.press("g")
        await eventually(pilot, lambda: "×4 mail.send" in screen_text(pilot))
        assert _screen(pilot).is_following


async def test_unfolding_shows_each_change_by_itself() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.EVENTS) as pilot:
        for _ in range(3):
            _happen(pilot, system, 1)
        await eventually(pilot, lambda: "×3 mail.send" in screen_text(pilot))
        folded = len(_screen(pilot).list.rows)
        await pilot.press("z")
        await until_stable(pilot)
        assert len(_screen(pilot).list.rows) == folded + 2


async def test_a_filter_leaves_what_fits_and_esc_takes_it_away() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.EVENTS) as pilot:
        _happen(pilot, system, 2)
        await pilot.press("slash", *"queue:mail", "enter")
        await eventually(
            pilot, lambda: "worker_lost" not in screen_text(pilot) and "×2 mail.send" in screen_text(pilot)
        )
        await pilot.press("escape")
        await eventually(pilot, lambda: "worker_lost" in screen_text(pilot))


async def test_enter_opens_what_a_line_is_about() -> None:
    system = frozen_system()
    heard: list[Message] = []
    async with running_app(DemoOpener(system, pace_s=None), place=Place.EVENTS, hook=heard.append) as pilot:
        screen = _screen(pilot)
        await eventually(pilot, lambda: bool(screen.list.rows))
        wanted = {"worker_lost": ShowWorker, "task_recovered": OpenTask}
        for what, message in wanted.items():
            screen.list.move_to([each.what for each in screen.list.rows].index(what))
            screen.post_message(screen.list.Opened())
            await eventually(pilot, lambda message=message: any(isinstance(each, message) for each in heard))
            await pilot.press("escape", "8")
            await eventually(pilot, lambda: pilot.app.screen is screen)


async def test_several_tasks_are_opened_as_a_list() -> None:
    system = frozen_system()
    heard: list[Message] = []
    async with running_app(DemoOpener(system, pace_s=None), place=Place.EVENTS, hook=heard.append) as pilot:
        _happen(pilot, system, 3)
        await eventually(pilot, lambda: "×3 mail.send" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: any(isinstance(each, ShowTasks) for each in heard))
        found = next(each for each in heard if isinstance(each, ShowTasks))
        assert len(found.filter.ids) == 3
