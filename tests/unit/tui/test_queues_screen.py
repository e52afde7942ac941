from __future__ import annotations

from textual.message import Message
from textual.pilot import Pilot

from horsies.model.settings import TuiConfig
from horsies_tui.demo import DemoOpener
from horsies_tui.keys import Place
from horsies_tui.messages import ShowTasks
from horsies_tui.screens.queues import QueuesScreen
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog, until_stable


def _screen(pilot: Pilot[None]) -> QueuesScreen:
    screen = next(each for each in pilot.app.screen_stack if isinstance(each, QueuesScreen))
    assert isinstance(screen, QueuesScreen)
    return screen


async def _at(pilot: Pilot[None], name: str) -> None:
    """Put the cursor on a queue."""
    await eventually(pilot, lambda: bool(_screen(pilot).list.rows))
    names = [line.row.name for line in _screen(pilot).list.rows]
    _screen(pilot).list.move_to(names.index(name))
    await until_stable(pilot)


async def test_a_queue_is_paused_after_a_key_with_the_reason_on_record() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.QUEUES) as pilot:
        await _at(pilot, "mail")
        await pilot.press("P")
        await until_plan_dialog(pilot)
        assert "Pause queue mail" in screen_text(pilot)
        assert "horsies queue pause mail" in screen_text(pilot)
        assert not system.audit_log.paused
        await pilot.press("tab", *"smtp is down", "enter", "y")
        await eventually(pilot, lambda: "mail is paused" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: "‖ paused" in screen_text(pilot))
        assert system.audit_log.paused["mail"].reason == "smtp is down"
        written = system.audit_log.rows[-1]
        assert (written.action, written.reason, written.affected) == ("pause_queue", "smtp is down", 1)


async def test_a_paused_queue_is_resumed_by_the_same_key() -> None:
    system = frozen_system()
    system.audit_log.pause("mail", "smtp is down")
    async with running_app(DemoOpener(system, pace_s=None), place=Place.QUEUES) as pilot:
        await _at(pilot, "mail")
        await pilot.press("P")
        await until_plan_dialog(pilot)
        assert "Resume queue mail" in screen_text(pilot)
        assert "smtp is down" in screen_text(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "mail is resumed" in screen_text(pilot))
        assert not system.audit_log.paused


async def test_enter_in_the_preview_leaves_the_queue_as_it_is() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.QUEUES) as pilot:
        await _at(pilot, "mail")
        await pilot.press("P")
        await until_plan_dialog(pilot)
        await pilot.press("enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert not system.audit_log.paused


async def test_read_only_refuses_the_pause() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.QUEUES, read_only=True) as pilot:
        await _at(pilot, "mail")
        await pilot.press("P")
        assert pilot.app.screen is _screen(pilot)
        assert _screen(pilot).check_action("op_pause", ()) is None


async def test_a_queue_opens_its_tasks_that_have_not_ended() -> None:
    heard: list[Message] = []
    async with running_app(place=Place.QUEUES, hook=heard.append) as pilot:
        await _at(pilot, "scraping")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TasksScreen))
        (wanted,) = {message.filter for message in heard if isinstance(message, ShowTasks)}
        assert (wanted.queues, wanted.statuses) == (("scraping",), ("PENDING", "CLAIMED", "RUNNING"))
        tasks = pilot.app.screen
        assert isinstance(tasks, TasksScreen)
        await eventually(pilot, lambda: tasks.window.filter == wanted)


async def test_the_cursor_stays_on_its_queue_when_the_order_changes() -> None:
    async with running_app(place=Place.QUEUES) as pilot:
        await _at(pilot, "mail")
        await pilot.press("s", "down", "enter")
        await until_stable(pilot)
        names = [line.row.name for line in _screen(pilot).list.rows]
        assert names == sorted(names, reverse=True)
        assert _screen(pilot).list.selection.cursor == "mail"
        await pilot.press("s", "s")
        await until_stable(pilot)
        assert [line.row.name for line in _screen(pilot).list.rows] == sorted(names)
        assert _screen(pilot).list.selection.cursor == "mail"


async def test_a_queue_tells_what_is_in_it_and_who_serves_it() -> None:
    async with running_app(place=Place.QUEUES, settings=TuiConfig()) as pilot:
        await _at(pilot, "reports")
        await eventually(pilot, lambda: "nobody: what is sent here stays here" in screen_text(pilot))
        await _at(pilot, "mail")
        await eventually(pilot, lambda: "host-1:901 (12 slots)" in screen_text(pilot))
        assert "SMTP_TIMEOUT" in screen_text(pilot)
