from __future__ import annotations

from datetime import timedelta

from textual.message import Message
from textual.pilot import Pilot

from horsies.model.task import TaskStatus
from horsies_tui.keys import ScreenId
from horsies_tui.screens.base import OpenTask, ShowTasks, ShowWorker
from horsies_tui.screens.events import EventsScreen
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.catalog import KINDS
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import NOON, eventually, frozen_system, running_app, screen_text, until_stable


def _screen(pilot: Pilot[None]) -> EventsScreen:
    return next(screen for screen in pilot.app.screen_stack if isinstance(screen, EventsScreen))


def _start_tasks(pilot: Pilot[None], system: FakeSystem, count: int) -> None:
    """Start tasks and log the changes."""
    for _ in range(count):
        system.move(system.send(KINDS[0]).id, TaskStatus.RUNNING)
    queries = _screen(pilot).context.queries
    for change in system.take_changes():
        queries.change_log.append(change)
    queries.refresh("events")


async def test_changes_appear_folded_with_task_name() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.EVENTS) as pilot:
        _start_tasks(pilot, system, 3)
        await eventually(pilot, lambda: "×3 mail.send" in screen_text(pilot))
        assert "following" in screen_text(pilot)


async def test_recorded_events_and_actions_are_loaded_at_start() -> None:
    async with running_app(screen_id=ScreenId.EVENTS) as pilot:
        await eventually(pilot, lambda: "worker lost" in screen_text(pilot))
        assert "ana retry" in screen_text(pilot)


async def test_moving_down_stops_following_until_g() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.EVENTS) as pilot:
        await eventually(pilot, lambda: bool(_screen(pilot).list.rows))
        await pilot.press("j", "j")
        await eventually(pilot, lambda: not _screen(pilot).is_following)
        before = [entry.key for entry in _screen(pilot).list.rows]
        system.now = lambda: NOON + timedelta(seconds=5)
        _start_tasks(pilot, system, 4)
        await eventually(pilot, lambda: "4 new, g follows" in screen_text(pilot))
        assert [entry.key for entry in _screen(pilot).list.rows] == before
        await pilot.press("g")
        await eventually(pilot, lambda: "×4 mail.send" in screen_text(pilot))
        assert _screen(pilot).is_following


async def test_unfolding_shows_each_change() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.EVENTS) as pilot:
        for _ in range(3):
            _start_tasks(pilot, system, 1)
        await eventually(pilot, lambda: "×3 mail.send" in screen_text(pilot))
        folded = len(_screen(pilot).list.rows)
        await pilot.press("z")
        await until_stable(pilot)
        assert len(_screen(pilot).list.rows) == folded + 2


async def test_filter_applies_and_esc_clears_it() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.EVENTS) as pilot:
        _start_tasks(pilot, system, 2)
        await pilot.press("slash", *"queue:mail", "enter")
        await eventually(
            pilot, lambda: "worker lost" not in screen_text(pilot) and "×2 mail.send" in screen_text(pilot)
        )
        await pilot.press("escape")
        await eventually(pilot, lambda: "worker lost" in screen_text(pilot))


async def test_enter_opens_worker_or_task_of_entry() -> None:
    system = frozen_system()
    messages: list[Message] = []
    async with running_app(FakeOpener(system), screen_id=ScreenId.EVENTS, hook=messages.append) as pilot:
        screen = _screen(pilot)
        await eventually(pilot, lambda: bool(screen.list.rows))
        expected = {"worker lost": ShowWorker, "task recovered": OpenTask}
        for summary, kind in expected.items():
            screen.list.move_to([entry.summary for entry in screen.list.rows].index(summary))
            screen.post_message(screen.list.Opened())
            await eventually(pilot, lambda kind=kind: any(isinstance(message, kind) for message in messages))
            await pilot.press("escape", "8")
            await eventually(pilot, lambda: pilot.app.screen is screen)


async def test_entry_with_several_tasks_opens_task_list() -> None:
    system = frozen_system()
    messages: list[Message] = []
    async with running_app(FakeOpener(system), screen_id=ScreenId.EVENTS, hook=messages.append) as pilot:
        _start_tasks(pilot, system, 3)
        await eventually(pilot, lambda: "×3 mail.send" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: any(isinstance(message, ShowTasks) for message in messages))
        shown = next(message for message in messages if isinstance(message, ShowTasks))
        assert len(shown.filter.ids) == 3
