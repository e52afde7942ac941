from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from textual.message import Message

from horsies.model.workflow.plan import WorkflowStatus
from horsies_ops.reads.workflows import WorkflowFilter
from horsies_tui.demo import Demo
from horsies_tui.demo.workflows import ONBOARD
from horsies_tui.keys import ACTIONS, Place
from horsies_tui.messages import Fetched, TaskWanted
from horsies_tui.screens.tasks.detail import TaskScreen
from horsies_tui.screens.workflows.screen import FlowsScreen
from tests.support.tui import compare, dialog, eventually, lines, running, settled, shown, still

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from horsies_ops.reads.workflows import WorkflowFacts
    from horsies_tui.demo.system import System

LARGE = (120, 36)


def _screen(pilot: Pilot[None]) -> FlowsScreen:
    screen = next(each for each in pilot.app.screen_stack if isinstance(each, FlowsScreen))
    assert isinstance(screen, FlowsScreen)
    return screen


def _run(system: System, name: str, status: WorkflowStatus) -> WorkflowFacts:
    return next(run for run in system.flows.runs.values() if (run.name, run.status) == (name, status))


async def _look_at(pilot: Pilot[None], run: WorkflowFacts) -> None:
    """Put the cursor on a run of the list, and wait for its tree."""
    screen = _screen(pilot)
    await eventually(pilot, lambda: screen.runs.selection.position(run.id) is not None)
    screen.runs.move_to(screen.runs.selection.position(run.id) or 0)
    await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id == run.id)
    await settled(pilot)


async def test_the_tree_follows_the_cursor_of_the_list() -> None:
    async with running(place=Place.FLOWS, size=LARGE) as pilot:
        screen = _screen(pilot)
        await pilot.press("j", "j")
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id == screen.runs.rows[2].id)
        assert screen.run_id == screen.runs.rows[2].id


async def test_list_and_tree_take_turns_where_there_is_no_room_for_both() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS) as pilot:
        await _look_at(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        assert "[1] scrape.page" not in shown(pilot)
        await pilot.press("enter")
        await settled(pilot)
        assert "[3] etl.load  all of 0,1,2" in shown(pilot)
        assert "skipped: [1] failed" in shown(pilot)
        await pilot.press("escape")
        await settled(pilot)
        assert "onboard" in shown(pilot)


async def test_a_run_goes_on_before_the_eyes() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        run = system.flows.begin(ONBOARD)
        _screen(pilot).desk.store.resync()
        await _look_at(pilot, run)
        assert "○ [0] billing.charge" in shown(pilot)
        system.flows.advance(run.id)
        _screen(pilot).desk.store.resync()
        await eventually(pilot, lambda: "◎ [0] billing.charge" in shown(pilot))


async def test_enter_on_a_node_opens_its_task_among_those_of_the_run() -> None:
    system, heard = still(), list[Message]()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE, hook=heard.append) as pilot:
        await _look_at(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        await pilot.press("enter", "enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TaskScreen))
        wanted = next(message for message in heard if isinstance(message, TaskWanted))
        assert wanted.task_id == wanted.among[0]
        assert len(wanted.among) == 7


async def test_enter_on_a_step_that_is_a_run_goes_into_it_and_esc_comes_back() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        outer, inner = _run(system, "etl-night", WorkflowStatus.RUNNING), _run(system, "crawl", WorkflowStatus.RUNNING)
        await _look_at(pilot, outer)
        screen = _screen(pilot)
        await pilot.press("enter")
        screen.steps.move_to(screen.steps.selection.position(6) or 0)
        await pilot.press("enter")
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id == inner.id)
        await settled(pilot)
        assert "×130 scrape.page" in shown(pilot)
        await pilot.press("escape")
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id == outer.id)


async def test_branches_fold_and_the_cursor_stays_with_its_node() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        await _look_at(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        screen = _screen(pilot)
        await pilot.press("enter", "h")
        assert "[0] scrape.page  (7 below)" in shown(pilot)
        assert screen.steps.selection.cursor == 0
        await pilot.press("l", "z")
        assert len(screen.steps.rows) == 3
        await pilot.press("z", "j", "j", "h", "h")
        assert screen.steps.selection.cursor == 3


async def test_layers_and_only_what_failed_are_other_ways_to_look() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        await _look_at(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        await pilot.press("b")
        assert "layer 0   3 nodes   ✓ 2  ✗ 1" in shown(pilot)
        await pilot.press("b", "x")
        assert "[2] scrape.page" not in shown(pilot)
        assert "[1] scrape.page" in shown(pilot)


async def test_a_filter_narrows_the_list_down() -> None:
    async with running(place=Place.FLOWS) as pilot:
        await pilot.press("slash", *"status:paused,failed", "enter")
        screen = _screen(pilot)
        await eventually(pilot, lambda: {run.status for run in screen.runs.rows} == {"PAUSED", "FAILED"})
        assert pilot.app.focused is screen.runs
        await pilot.press("escape")
        await eventually(pilot, lambda: len(screen.runs.rows) > 2)


@pytest.mark.parametrize(
    ("name", "before", "key", "after"),
    [
        ("digest-run", WorkflowStatus.FAILED, "R", WorkflowStatus.RUNNING),
        ("digest-run", WorkflowStatus.RUNNING, "P", WorkflowStatus.PAUSED),
        ("etl-night", WorkflowStatus.PAUSED, "P", WorkflowStatus.RUNNING),
        ("digest-run", WorkflowStatus.RUNNING, "C", WorkflowStatus.CANCELLED),
    ],
)
async def test_a_run_is_changed_after_a_preview_and_a_key(
    name: str, before: WorkflowStatus, key: str, after: WorkflowStatus
) -> None:
    system = still()
    run = _run(system, name, before)
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        await _look_at(pilot, run)
        await pilot.press(key)
        await dialog(pilot)
        assert system.flows.runs[run.id].status == before
        await pilot.press("y")
        await eventually(pilot, lambda: "operator log" in shown(pilot) and "Enter closes" in shown(pilot))
        assert system.flows.runs[run.id].status == after


async def test_killing_what_runs_needs_the_number_typed() -> None:
    system = still()
    run = _run(system, "digest-run", WorkflowStatus.RUNNING)
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        await _look_at(pilot, run)
        await pilot.press("C")
        await dialog(pilot)
        await pilot.press("e")
        await eventually(pilot, lambda: "--kill" in shown(pilot))
        await pilot.press("y")
        assert system.flows.runs[run.id].status == WorkflowStatus.RUNNING
        await pilot.press("6", "enter")
        await eventually(pilot, lambda: system.flows.runs[run.id].status == WorkflowStatus.CANCELLED)


@pytest.mark.parametrize(
    ("name", "status", "key", "why"),
    [
        ("onboard", WorkflowStatus.COMPLETED, "R", "nothing of it failed"),
        ("onboard", WorkflowStatus.RUNNING, "R", "it has not ended"),
        ("onboard", WorkflowStatus.COMPLETED, "P", "only a run that is running can be paused"),
        ("onboard", WorkflowStatus.CANCELLED, "C", "it has ended already"),
    ],
)
async def test_what_cannot_be_done_is_explained_and_not_offered(
    name: str, status: WorkflowStatus, key: str, why: str
) -> None:
    system = still()
    run = _run(system, name, status)
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        await _look_at(pilot, run)
        await pilot.press(key)
        await dialog(pilot)
        assert why in shown(pilot)
        await pilot.press("y")
        assert system.flows.runs[run.id] == run


async def test_read_only_leaves_every_change_off() -> None:
    async with running(place=Place.FLOWS, read_only=True) as pilot:
        for action in ACTIONS:
            if action.mutates and Place.FLOWS in action.where:
                await pilot.press(*action.keys)
                assert pilot.app.screen is _screen(pilot)


async def test_another_run_is_drawn_unfolded_and_the_cursor_of_the_list_stays_on_its_run() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        run = _run(system, "digest-run", WorkflowStatus.FAILED)
        await _look_at(pilot, run)
        await pilot.press("z")
        system.flows.begin(ONBOARD)
        screen = _screen(pilot)
        count = len(screen.runs.rows)
        screen.desk.store.resync()
        await eventually(pilot, lambda: len(screen.runs.rows) == count + 1)
        assert screen.runs.selection.cursor == run.id
        assert screen.view.folded
        await pilot.press("j")
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id != run.id)
        assert not screen.view.folded


async def test_a_run_that_is_gone_is_asked_for_no_more_often_than_others() -> None:
    system = still()
    asked = list[object]()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE, hook=_counting(asked)) as pilot:
        run = _run(system, "digest-run", WorkflowStatus.FAILED)
        await _look_at(pilot, run)
        del system.flows.runs[run.id]
        _screen(pilot).desk.store.refresh("run")
        await eventually(pilot, lambda: _screen(pilot).detail is None)
        before = len(asked)
        await settled(pilot)
        assert len(asked) <= before + 1


def _counting(asked: list[object]) -> Callable[[Message], None]:
    def hook(message: Message) -> None:
        if isinstance(message, Fetched) and message.name == "run":
            asked.append(message)

    return hook


async def test_the_tree_looks_as_in_its_picture() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS) as pilot:
        await _look_at(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        await pilot.press("enter")
        await settled(pilot)
        assert "Esc back to the list" in lines(pilot)[-2]
        compare(pilot, "flow-80")


async def test_a_tree_that_is_read_stays_that_of_its_run_when_the_run_leaves_the_list() -> None:
    system = still()
    async with running(Demo(system, pace_s=None), place=Place.FLOWS, size=LARGE) as pilot:
        screen, run = _screen(pilot), _run(system, "digest-run", WorkflowStatus.FAILED)
        screen.filter.show(WorkflowFilter(statuses=("FAILED", "RUNNING")))
        await _look_at(pilot, run)
        await pilot.press("enter")
        system.flows.runs[run.id] = replace(run, status=WorkflowStatus.CANCELLED)
        screen.desk.store.resync()
        await eventually(pilot, lambda: screen.runs.selection.position(run.id) is None)
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.status == "CANCELLED")
        assert screen.run_id == run.id
        await pilot.press("escape")
        assert screen.run_id != run.id
