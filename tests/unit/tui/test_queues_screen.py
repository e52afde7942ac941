from __future__ import annotations

import re

from textual.message import Message
from textual.pilot import Pilot

from horsies.model.settings import TuiConfig
from horsies_tui.keys import ScreenId
from horsies_tui.screens.base import ShowTasks
from horsies_tui.screens.queues import QueuesScreen
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.fake_system import FakeOpener
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog, until_stable


def _screen(pilot: Pilot[None]) -> QueuesScreen:
    screen = next(screen for screen in pilot.app.screen_stack if isinstance(screen, QueuesScreen))
    assert isinstance(screen, QueuesScreen)
    return screen


async def _move_to(pilot: Pilot[None], name: str) -> None:
    """Move the cursor to a queue."""
    await eventually(pilot, lambda: bool(_screen(pilot).list.rows))
    names = [line.row.name for line in _screen(pilot).list.rows]
    _screen(pilot).list.move_to(names.index(name))
    await until_stable(pilot)


async def test_pausing_a_queue_records_the_reason() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.QUEUES) as pilot:
        await _move_to(pilot, "mail")
        await pilot.press("P")
        await until_plan_dialog(pilot)
        assert "Pause queue mail" in screen_text(pilot)
        assert "horsies queue pause mail" in screen_text(pilot)
        assert "mail" not in system.paused_queues
        await pilot.press("tab", *"smtp is down", "enter", "y")
        await eventually(pilot, lambda: "mail is paused" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: "‖ paused" in screen_text(pilot))
        assert system.paused_queues["mail"].reason == "smtp is down"
        recorded = system.audit_log[-1]
        assert (recorded.action, recorded.reason, recorded.affected) == ("pause_queue", "smtp is down", 1)


async def test_same_key_resumes_a_paused_queue() -> None:
    system = frozen_system()
    system.paused_queues["mail"] = system.record_action("pause_queue", {}, affected=1, reason="smtp is down")
    async with running_app(FakeOpener(system), screen_id=ScreenId.QUEUES) as pilot:
        await _move_to(pilot, "mail")
        assert "P resume" in screen_text(pilot)
        await pilot.press("P")
        await until_plan_dialog(pilot)
        assert "Resume queue mail" in screen_text(pilot)
        assert "smtp is down" in screen_text(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "mail is resumed" in screen_text(pilot))
        assert "mail" not in system.paused_queues


async def test_enter_in_preview_changes_nothing() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.QUEUES) as pilot:
        await _move_to(pilot, "mail")
        await pilot.press("P")
        await until_plan_dialog(pilot)
        await pilot.press("enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert "mail" not in system.paused_queues


async def test_read_only_disables_pause() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.QUEUES, read_only=True) as pilot:
        await _move_to(pilot, "mail")
        await pilot.press("P")
        assert pilot.app.screen is _screen(pilot)
        assert _screen(pilot).check_action("op", ("pause",)) is None


async def test_enter_opens_unfinished_tasks_of_queue() -> None:
    messages: list[Message] = []
    async with running_app(screen_id=ScreenId.QUEUES, hook=messages.append) as pilot:
        await _move_to(pilot, "scraping")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TasksScreen))
        (task_filter,) = {message.filter for message in messages if isinstance(message, ShowTasks)}
        assert (task_filter.queues, task_filter.statuses) == (("scraping",), ("PENDING", "CLAIMED", "RUNNING"))
        tasks = pilot.app.screen
        assert isinstance(tasks, TasksScreen)
        await eventually(pilot, lambda: tasks.window.filter == task_filter)


async def test_cursor_stays_on_queue_when_order_changes() -> None:
    async with running_app(screen_id=ScreenId.QUEUES) as pilot:
        await _move_to(pilot, "mail")
        await pilot.press("s", "down", "enter")
        await until_stable(pilot)
        names = [line.row.name for line in _screen(pilot).list.rows]
        assert names == sorted(names, reverse=True)
        assert _screen(pilot).list.selection.cursor == "mail"
        await pilot.press("s", "s")
        await until_stable(pilot)
        assert [line.row.name for line in _screen(pilot).list.rows] == sorted(names)
        assert _screen(pilot).list.selection.cursor == "mail"


async def test_detail_pane_shows_tasks_and_workers() -> None:
    async with running_app(screen_id=ScreenId.QUEUES, settings=TuiConfig()) as pilot:
        await _move_to(pilot, "reports")
        await eventually(pilot, lambda: "no worker serves this queue; tasks will wait" in screen_text(pilot))
        await _move_to(pilot, "mail")
        await eventually(pilot, lambda: "host-1:901 (12 slots)" in screen_text(pilot))
        assert "SMTP_TIMEOUT" in screen_text(pilot)


async def test_due_tasks_have_the_same_name_and_number_as_on_the_dashboard() -> None:
    async with running_app(screen_id=ScreenId.QUEUES, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "mail" in screen_text(pilot))
        assert "WAIT" in _screen(pilot).list.titles
        waiting = {line.row.name: f"{line.row.pending:,}" for line in _screen(pilot).list.rows}
        await pilot.press("1")
        await eventually(pilot, lambda: "QUEUE" in screen_text(pilot) and "WAIT" in screen_text(pilot))
        for name, number in waiting.items():
            assert re.search(rf"^ {name} +{number} ", screen_text(pilot), re.MULTILINE)
