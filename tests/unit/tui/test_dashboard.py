from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from textual.message import Message
from textual.pilot import Pilot

from horsies_ops.reads.queues import QueueRow
from horsies_ops.source import DataSource
from horsies_tui.demo import DemoOpener
from horsies_tui.demo.catalog import LOST_WORKER, WORKERS
from horsies_tui.demo.source import DemoSource
from horsies_tui.demo.system import DemoSystem
from horsies_tui.keys import ScreenId
from horsies_tui.screens.base import ShowTasks, ShowWorker
from horsies_tui.screens.dashboard import DashboardScreen
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.screens.workers import WorkersScreen
from tests.support.tui import NOON, eventually, frozen_system, running_app, screen_text, until_stable


async def _move_to(pilot: Pilot[None], key: str) -> DashboardScreen:
    """Return the dashboard with the cursor on this alert."""
    screen = pilot.app.screen
    assert isinstance(screen, DashboardScreen)
    await eventually(pilot, lambda: key in screen.list.selection.keys)
    screen.list.move_to(screen.list.selection.keys.index(key))
    await until_stable(pilot)
    return screen


async def test_task_alert_opens_its_tasks() -> None:
    messages: list[Message] = []
    async with running_app(screen_id=ScreenId.DASHBOARD, hook=messages.append) as pilot:
        await _move_to(pilot, "stale RUNNING")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TasksScreen))
        tasks = pilot.app.screen
        assert isinstance(tasks, TasksScreen)
        (task_filter,) = {message.filter for message in messages if isinstance(message, ShowTasks)}
        await eventually(pilot, lambda: tasks.window.filter == task_filter)
        assert {row.status for row in tasks.list.rows} == {"RUNNING"}
        assert LOST_WORKER.worker_id in {row.worker_id for row in tasks.list.rows}


async def test_worker_alert_opens_that_worker() -> None:
    messages: list[Message] = []
    async with running_app(screen_id=ScreenId.DASHBOARD, hook=messages.append) as pilot:
        await _move_to(pilot, f"dead {LOST_WORKER.worker_id}")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, WorkersScreen))
        workers = pilot.app.screen
        assert isinstance(workers, WorkersScreen)
        assert any(isinstance(message, ShowWorker) for message in messages)
        await eventually(pilot, lambda: workers.list.selection.cursor == LOST_WORKER.worker_id)


async def test_cursor_stays_on_its_alert_when_others_change() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD) as pilot:
        screen = await _move_to(pilot, "failures")
        await _move_to(pilot, "stale CLAIMED")
        screen.list.show([row for row in screen.list.rows if row.key != "stale RUNNING"])
        assert screen.list.current is not None
        assert screen.list.current.key == "stale CLAIMED"


async def test_newest_operator_action_comes_first() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD) as pilot:
        await eventually(pilot, lambda: " ana " in screen_text(pilot))
        assert screen_text(pilot).index(" ana ") < screen_text(pilot).index(" cron ")


async def test_empty_system_has_no_task_alerts() -> None:
    async with running_app(DemoOpener(DemoSystem(lambda: NOON), pace_s=None), screen_id=ScreenId.DASHBOARD) as pilot:
        await eventually(pilot, lambda: "no actions yet" in screen_text(pilot))
        screen = pilot.app.screen
        assert isinstance(screen, DashboardScreen)
        assert {row.key for row in screen.list.rows} <= {f"dead {worker.worker_id}" for worker in WORKERS}


class BusySource(DemoSource):
    """So many tasks finished in the last minute that completed ones are estimated; failed ones never are."""

    async def list_queues(self) -> tuple[QueueRow, ...]:
        rows = await super().list_queues()
        return tuple(replace(row, finished_last_minute=2_585, failed_last_minute=30, is_estimate=True) for row in rows)


async def test_only_completed_tasks_are_marked_as_estimated() -> None:
    @asynccontextmanager
    async def opener(*, read_only: bool) -> AsyncGenerator[DataSource]:
        yield BusySource(frozen_system(), read_only=read_only, pace_s=None)

    async with running_app(opener, screen_id=ScreenId.DASHBOARD, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "~15k " in screen_text(pilot) and "   180 " in screen_text(pilot))
        await pilot.press("2")
        await eventually(pilot, lambda: "~2.6k     30" in screen_text(pilot))
