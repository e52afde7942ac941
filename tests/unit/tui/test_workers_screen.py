from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from textual.message import Message
from textual.pilot import Pilot

from horsies.model.task import TaskStatus
from horsies_tui.fleet import count_alive, count_without_heartbeat, worker_health
from horsies_tui.keys import ScreenId
from horsies_tui.screens.base import ShowTasks
from horsies_tui.screens.summary import worker_lines
from horsies_tui.screens.workers import CHART_WINDOWS, WORKER_COLUMNS, WorkersScreen
from horsies_tui.widgets.row_list import Tone
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.catalog import LOST_WORKER, WORKERS
from tests.support.rows import NOON, make_worker
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog, until_stable

ALIVE = WORKERS[0]
LOST_ID = LOST_WORKER.worker_id


def _screen(pilot: Pilot[None]) -> WorkersScreen:
    screen = next(screen for screen in pilot.app.screen_stack if isinstance(screen, WorkersScreen))
    assert isinstance(screen, WorkersScreen)
    return screen


async def _move_to(pilot: Pilot[None], worker_id: UUID) -> None:
    """Move the cursor to a worker."""
    await eventually(pilot, lambda: bool(_screen(pilot).list.rows))
    _screen(pilot).show_worker(worker_id)
    await until_stable(pilot)


async def test_tasks_of_lost_worker_are_recovered() -> None:
    system = frozen_system()
    held = [task.id for task in system.tasks.values() if task.worker_id == LOST_ID and not _is_finished(task.status)]
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKERS) as pilot:
        await _move_to(pilot, LOST_ID)
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert f"Sweep {len(held)} tasks" in screen_text(pilot)
        assert f"horsies sweep --worker {LOST_ID}" in screen_text(pilot).replace("\n", "")
        assert all(system.tasks[task_id].worker_id == LOST_ID for task_id in held)
        await pilot.press("y")
        await eventually(pilot, lambda: "requeued 2" in screen_text(pilot))
        assert not any(task.worker_id == LOST_ID and not _is_finished(task.status) for task in system.tasks.values())
        assert (system.audit_log[-1].action, system.audit_log[-1].affected) == ("sweep", len(held))


async def test_healthy_worker_has_nothing_to_recover() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKERS) as pilot:
        await _move_to(pilot, ALIVE.worker_id)
        before = dict(system.tasks)
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert "nothing to do" in screen_text(pilot)
        await pilot.press("y")
        assert system.tasks == before


async def test_hidden_lost_workers_are_still_counted() -> None:
    async with running_app(screen_id=ScreenId.WORKERS) as pilot:
        await _move_to(pilot, LOST_ID)
        await pilot.press("x")
        await until_stable(pilot)
        assert [worker for worker in _screen(pilot).list.rows if not worker.is_responsive] == []
        assert "1 lost (hidden)" in screen_text(pilot)
        await pilot.press("x")
        await until_stable(pilot)
        assert len(_screen(pilot).list.rows) == len(WORKERS)


async def test_brackets_change_chart_window() -> None:
    async with running_app(screen_id=ScreenId.WORKERS) as pilot:
        await _move_to(pilot, ALIVE.worker_id)
        await pilot.press("right_square_bracket")
        await eventually(pilot, lambda: "window 1h" in screen_text(pilot))
        await pilot.press(*["left_square_bracket"] * len(CHART_WINDOWS))
        await eventually(pilot, lambda: "window 5m" in screen_text(pilot))


async def test_detail_pane_lists_held_tasks() -> None:
    async with running_app(screen_id=ScreenId.WORKERS) as pilot:
        await _move_to(pilot, LOST_ID)
        await eventually(pilot, lambda: "holds 5 tasks" in screen_text(pilot))
        assert "report.build" in screen_text(pilot)


def test_worker_with_an_overdue_heartbeat_is_late_until_it_is_silent() -> None:
    ages = [timedelta(seconds=seconds) for seconds in (40, 50, 100)]
    workers = [make_worker(heartbeat_age=age, last_heartbeat_at=NOON - age, is_silent=age > ages[1]) for age in ages]
    assert [worker_health(worker) for worker in workers] == ["running", "late", "silent"]
    assert (count_alive(workers), count_without_heartbeat(workers)) == (1, [("late", 1), ("silent", 1)])
    endings = [line.plain.split()[-2:] for line in worker_lines(workers, NOON, rows=9)]
    assert endings[1:] == [["late", "50s"], ["silent", "1m"], ["0/4", "running"]]


async def test_enter_opens_tasks_of_worker() -> None:
    messages: list[Message] = []
    async with running_app(screen_id=ScreenId.WORKERS, hook=messages.append) as pilot:
        await _move_to(pilot, LOST_ID)
        await pilot.press("enter")
        await eventually(pilot, lambda: any(isinstance(message, ShowTasks) for message in messages))
        task_filter = next(message.filter for message in messages if isinstance(message, ShowTasks))
        assert task_filter.worker_id == str(LOST_ID)


def _is_finished(status: str) -> bool:
    return TaskStatus(status).is_terminal


@pytest.mark.parametrize(("age_s", "tone"), [(30, Tone.PLAIN), (44, Tone.PLAIN), (46, Tone.WARN)])
def test_heartbeat_is_amber_after_one_missed(age_s: int, tone: Tone) -> None:
    (column,) = (column for column in WORKER_COLUMNS if column.title == "BEAT")
    cell = column.cell(make_worker(), NOON + timedelta(seconds=age_s))
    assert cell.tone is tone
