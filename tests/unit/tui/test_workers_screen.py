from __future__ import annotations

from uuid import UUID

from textual.message import Message
from textual.pilot import Pilot

from horsies.model.task import TaskStatus
from horsies_tui.demo import DemoOpener
from horsies_tui.demo.workflows import WORKERS
from horsies_tui.keys import Place
from horsies_tui.messages import ShowTasks
from horsies_tui.screens.workers import CHART_WINDOWS, WorkersScreen
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog, until_stable

ALIVE = WORKERS[0]
GONE = next(member for member in WORKERS if member.is_lost)


def _screen(pilot: Pilot[None]) -> WorkersScreen:
    screen = next(each for each in pilot.app.screen_stack if isinstance(each, WorkersScreen))
    assert isinstance(screen, WorkersScreen)
    return screen


async def _at(pilot: Pilot[None], worker_id: UUID) -> None:
    """Put the cursor on a worker."""
    await eventually(pilot, lambda: bool(_screen(pilot).list.rows))
    _screen(pilot).show_worker(worker_id)
    await until_stable(pilot)


async def test_what_a_worker_that_is_gone_holds_is_swept_after_a_key() -> None:
    system = frozen_system()
    held = [task.id for task in system.tasks.values() if task.worker_id == GONE.id and not _is_over(task.status)]
    async with running_app(DemoOpener(system, pace_s=None), place=Place.WORKERS) as pilot:
        await _at(pilot, GONE.id)
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert f"Sweep {len(held)} tasks" in screen_text(pilot)
        assert f"horsies sweep --worker {GONE.id}" in screen_text(pilot).replace("\n", "")
        assert all(system.tasks[each].worker_id == GONE.id for each in held)
        await pilot.press("y")
        await eventually(pilot, lambda: "requeued 2" in screen_text(pilot))
        assert not any(task.worker_id == GONE.id and not _is_over(task.status) for task in system.tasks.values())
        assert (system.audit_log.rows[-1].action, system.audit_log.rows[-1].affected) == ("sweep", len(held))


async def test_a_worker_that_is_well_leaves_a_sweep_nothing_to_do() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.WORKERS) as pilot:
        await _at(pilot, ALIVE.id)
        before = dict(system.tasks)
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert "nothing to do" in screen_text(pilot)
        await pilot.press("y")
        assert system.tasks == before


async def test_workers_that_are_gone_can_be_hidden_and_are_still_counted() -> None:
    async with running_app(place=Place.WORKERS) as pilot:
        await _at(pilot, GONE.id)
        await pilot.press("x")
        await until_stable(pilot)
        assert [worker for worker in _screen(pilot).list.rows if not worker.is_alive] == []
        assert "1 lost (hidden)" in screen_text(pilot)
        await pilot.press("x")
        await until_stable(pilot)
        assert len(_screen(pilot).list.rows) == len(WORKERS)


async def test_the_charts_show_a_longer_or_shorter_stretch_of_time() -> None:
    async with running_app(place=Place.WORKERS) as pilot:
        await _at(pilot, ALIVE.id)
        await pilot.press("right_square_bracket")
        await eventually(pilot, lambda: "window 1h" in screen_text(pilot))
        await pilot.press(*["left_square_bracket"] * len(CHART_WINDOWS))
        await eventually(pilot, lambda: "window 5m" in screen_text(pilot))


async def test_a_worker_tells_what_it_holds() -> None:
    async with running_app(place=Place.WORKERS) as pilot:
        await _at(pilot, GONE.id)
        await eventually(pilot, lambda: "holds 5 tasks" in screen_text(pilot))
        assert "report.build" in screen_text(pilot)


async def test_a_worker_opens_its_tasks() -> None:
    heard: list[Message] = []
    async with running_app(place=Place.WORKERS, hook=heard.append) as pilot:
        await _at(pilot, GONE.id)
        await pilot.press("enter")
        await eventually(pilot, lambda: any(isinstance(message, ShowTasks) for message in heard))
        wanted = next(message.filter for message in heard if isinstance(message, ShowTasks))
        assert wanted.worker_id == str(GONE.id)


def _is_over(status: str) -> bool:
    return TaskStatus(status).is_terminal
