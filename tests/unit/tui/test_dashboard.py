from __future__ import annotations

from textual.message import Message
from textual.pilot import Pilot

from horsies_tui.demo import DemoOpener
from horsies_tui.demo.system import DemoSystem
from horsies_tui.demo.workflows import WORKERS
from horsies_tui.keys import Place
from horsies_tui.messages import ShowTasks, ShowWorker
from horsies_tui.screens.dashboard import DashboardScreen
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.screens.workers import WorkersScreen
from tests.support.tui import NOON, eventually, running_app, screen_text, until_stable

GONE = next(member for member in WORKERS if member.is_lost)


async def _at(pilot: Pilot[None], key: str) -> DashboardScreen:
    """The dashboard, with the cursor on this line."""
    screen = pilot.app.screen
    assert isinstance(screen, DashboardScreen)
    await eventually(pilot, lambda: key in screen.list.selection.keys)
    screen.list.move_to(screen.list.selection.keys.index(key))
    await until_stable(pilot)
    return screen


async def test_a_line_about_tasks_opens_those_tasks() -> None:
    heard: list[Message] = []
    async with running_app(place=Place.DASHBOARD, hook=heard.append) as pilot:
        await _at(pilot, "stale RUNNING")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TasksScreen))
        tasks = pilot.app.screen
        assert isinstance(tasks, TasksScreen)
        (wanted,) = {message.filter for message in heard if isinstance(message, ShowTasks)}
        await eventually(pilot, lambda: tasks.window.filter == wanted)
        assert {row.status for row in tasks.list.rows} == {"RUNNING"}
        assert GONE.id in {row.worker_id for row in tasks.list.rows}


async def test_a_line_about_a_worker_opens_the_workers_with_the_cursor_on_it() -> None:
    heard: list[Message] = []
    async with running_app(place=Place.DASHBOARD, hook=heard.append) as pilot:
        await _at(pilot, f"gone {GONE.id}")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, WorkersScreen))
        workers = pilot.app.screen
        assert isinstance(workers, WorkersScreen)
        assert any(isinstance(message, ShowWorker) for message in heard)
        await eventually(pilot, lambda: workers.list.selection.cursor == GONE.id)


async def test_the_cursor_stays_on_its_line_when_a_worse_one_appears_above_it() -> None:
    async with running_app(place=Place.DASHBOARD) as pilot:
        screen = await _at(pilot, "failures")
        await _at(pilot, "stale CLAIMED")
        screen.list.show([row for row in screen.list.rows if row.key != "stale RUNNING"])
        assert screen.list.current is not None
        assert screen.list.current.key == "stale CLAIMED"


async def test_what_operators_did_last_stands_first() -> None:
    async with running_app(place=Place.DASHBOARD) as pilot:
        await eventually(pilot, lambda: " ana " in screen_text(pilot))
        assert screen_text(pilot).index(" ana ") < screen_text(pilot).index(" cron ")


async def test_a_system_without_tasks_is_well() -> None:
    async with running_app(DemoOpener(DemoSystem(lambda: NOON), pace_s=None), place=Place.DASHBOARD) as pilot:
        await eventually(pilot, lambda: "none yet" in screen_text(pilot))
        screen = pilot.app.screen
        assert isinstance(screen, DashboardScreen)
        assert {row.key for row in screen.list.rows} <= {f"gone {GONE.id}"}
