from __future__ import annotations

from datetime import timedelta

from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input

from horsies.model.task import TaskStatus
from horsies_tui.demo import DemoOpener
from horsies_tui.keys import Place
from horsies_tui.messages import OpenTask
from horsies_tui.screens.stale import StaleScreen
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog


def _screen(pilot: Pilot[None]) -> StaleScreen:
    return next(each for each in pilot.app.screen_stack if isinstance(each, StaleScreen))


async def _type_limit(pilot: Pilot[None], text: str) -> None:
    await pilot.press("comma")
    await eventually(pilot, lambda: isinstance(pilot.app.focused, Input))
    await pilot.press(*text, "enter")


async def test_what_is_typed_while_the_question_for_the_limit_opens_goes_into_it() -> None:
    async with running_app(place=Place.STALE) as pilot:
        for key in ("comma", *"90s"):
            pilot.app.simulate_key(key)
        await eventually(pilot, lambda: isinstance(pilot.app.focused, Input))
        line = pilot.app.focused
        assert isinstance(line, Input)
        await eventually(pilot, lambda: line.value == "90s")


async def test_near_tasks_stand_apart_below_those_that_are_stale() -> None:
    async with running_app(place=Place.STALE) as pilot:
        listed = [(each.task.task_name, each.is_near_threshold) for each in _screen(pilot).list.rows]
        assert sum(not is_near for _, is_near in listed) == 7
        assert listed[-1] == ("etl.load", True)
        assert "1 task less than 30s from stale" in screen_text(pilot)


async def test_a_sweep_needs_its_number_typed_while_some_owner_still_reports_and_leaves_nothing_stale() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.STALE) as pilot:
        await pilot.press("S")
        await until_plan_dialog(pilot)
        assert "2 of these are silent but their worker still sends heartbeats" in screen_text(pilot)
        await pilot.press("y")
        assert len(_screen(pilot).list.rows) == 8
        await pilot.press("7", "enter")
        await eventually(pilot, lambda: "Swept" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: "0 stale" in screen_text(pilot))
        assert [row.action for row in system.audit_log.rows][-1] == "sweep"


async def test_a_dry_run_offers_no_way_to_go_on_and_is_there_when_read_only() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.STALE, read_only=True) as pilot:
        before = dict(system.tasks)
        await pilot.press("d")
        await until_plan_dialog(pilot)
        assert "dry run" in screen_text(pilot)
        await pilot.press("c")
        assert pilot.app.clipboard.endswith(" --dry-run")
        await pilot.press("y", "7", "enter")
        assert system.tasks == before
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        await pilot.press("S")
        await pilot.pause()
        assert pilot.app.screen is _screen(pilot)


async def test_requeueing_a_task_whose_worker_still_reports_warns_and_needs_the_number() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.STALE) as pilot:
        alive = next(index for index, each in enumerate(_screen(pilot).list.rows) if each.has_live_owner)
        _screen(pilot).list.move_to(alive)
        task_id = _screen(pilot).list.rows[alive].id
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert "1 silent though the worker still reports" in screen_text(pilot)
        await pilot.press("y")
        assert system.tasks[task_id].status == TaskStatus.RUNNING
        await pilot.press("1", "enter")
        await eventually(pilot, lambda: "changed 1" in screen_text(pilot))
        assert system.tasks[task_id].status == TaskStatus.PENDING


async def test_a_dry_run_of_marked_rows_is_about_these_alone() -> None:
    async with running_app(place=Place.STALE) as pilot:
        await pilot.press("space", "space", "d")
        await until_plan_dialog(pilot)
        assert "Requeue 2 tasks — dry run" in screen_text(pilot)


async def test_marked_rows_are_failed_together_and_marks_of_rows_that_are_gone_go() -> None:
    system = frozen_system()
    async with running_app(DemoOpener(system, pace_s=None), place=Place.STALE) as pilot:
        first, second = [each.id for each in _screen(pilot).list.rows[:2]]
        await pilot.press("space", "space", "F")
        await until_plan_dialog(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "changed 2" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: not _screen(pilot).list.selection.marks)
        assert {system.tasks[each].status for each in (first, second)} == {TaskStatus.FAILED}


async def test_another_limit_holds_for_this_session_and_for_its_sweep() -> None:
    async with running_app(place=Place.STALE) as pilot:
        await _type_limit(pilot, "10m")
        await eventually(pilot, lambda: "this session" in screen_text(pilot))
        assert _screen(pilot).options.sweep_threshold == timedelta(minutes=10)
        assert "1 stale" in screen_text(pilot)
        await pilot.press("S")
        await until_plan_dialog(pilot)
        assert "Sweep 1 task" in screen_text(pilot)
        assert "--threshold 600s" in screen_text(pilot)


async def test_a_limit_that_makes_no_sense_is_said_and_changes_nothing() -> None:
    async with running_app(place=Place.STALE, notifies=True) as pilot:
        await _type_limit(pilot, "soon")
        await eventually(pilot, lambda: "invalid duration" in screen_text(pilot))
        assert _screen(pilot).options.sweep_threshold is None


async def test_a_row_is_opened_with_the_others_of_its_list() -> None:
    heard: list[Message] = []
    async with running_app(place=Place.STALE, hook=heard.append) as pilot:
        rows = tuple(each.id for each in _screen(pilot).list.rows)
        await pilot.press("j", "enter")
        await eventually(pilot, lambda: any(isinstance(each, OpenTask) for each in heard))
        wanted = next(each for each in heard if isinstance(each, OpenTask))
        assert (wanted.task_id, wanted.sibling_ids) == (rows[1], rows)


async def test_the_evidence_follows_the_cursor() -> None:
    async with running_app(place=Place.STALE) as pilot:
        rows = _screen(pilot).list.rows
        await pilot.press("j")
        await eventually(pilot, lambda: f"Why {str(rows[1].id)[-8:]}" in screen_text(pilot))
        await eventually(pilot, lambda: "retries used" in screen_text(pilot))
