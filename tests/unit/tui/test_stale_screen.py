from __future__ import annotations

from datetime import timedelta

from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input

from horsies.model.task import TaskStatus
from horsies_tui.keys import ScreenId
from horsies_tui.screens.base import OpenTask
from horsies_tui.screens.stale import StaleScreen
from tests.support.fake_system import FakeOpener
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog


def _screen(pilot: Pilot[None]) -> StaleScreen:
    return next(screen for screen in pilot.app.screen_stack if isinstance(screen, StaleScreen))


async def _enter_threshold(pilot: Pilot[None], text: str) -> None:
    await pilot.press("comma")
    await eventually(pilot, lambda: isinstance(pilot.app.focused, Input))
    await pilot.press(*text, "enter")


async def test_keys_typed_while_prompt_opens_go_into_it() -> None:
    async with running_app(screen_id=ScreenId.STALE) as pilot:
        for key in ("comma", *"90s"):
            pilot.app.simulate_key(key)
        await eventually(pilot, lambda: isinstance(pilot.app.focused, Input))
        line = pilot.app.focused
        assert isinstance(line, Input)
        await eventually(pilot, lambda: line.value == "90s")


async def test_silent_tasks_are_listed_below_stale_ones() -> None:
    async with running_app(screen_id=ScreenId.STALE) as pilot:
        listed = [(row.task.task_name, row.due_at is not None) for row in _screen(pilot).list.rows]
        assert sum(not is_silent for _, is_silent in listed) == 7
        assert listed[-1] == ("etl.load", True)
        assert "1 silent task: recovered when due, unless a heartbeat arrives" in screen_text(pilot)
        assert "in 19s" in screen_text(pilot)


async def test_sweep_with_live_owners_requires_typed_count() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.STALE) as pilot:
        await pilot.press("S")
        await until_plan_dialog(pilot)
        assert "2 of these are silent but their worker still sends heartbeats" in screen_text(pilot)
        await pilot.press("y")
        assert len(_screen(pilot).list.rows) == 8
        await pilot.press("7", "enter")
        await eventually(pilot, lambda: "Swept" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: "0 stale" in screen_text(pilot))
        assert [row.action for row in system.audit_log][-1] == "sweep"


async def test_dry_run_cannot_be_applied_and_works_read_only() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.STALE, read_only=True) as pilot:
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


async def test_requeue_with_live_owner_warns_and_requires_count() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.STALE) as pilot:
        alive = next(index for index, row in enumerate(_screen(pilot).list.rows) if row.has_live_owner)
        _screen(pilot).list.move_to(alive)
        task_id = _screen(pilot).list.rows[alive].id
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert "1 silent, but the worker still reports" in screen_text(pilot)
        await pilot.press("y")
        assert system.tasks[task_id].status == TaskStatus.RUNNING
        await pilot.press("1", "enter")
        await eventually(pilot, lambda: "changed 1" in screen_text(pilot))
        assert system.tasks[task_id].status == TaskStatus.PENDING


async def test_dry_run_covers_only_marked_rows() -> None:
    async with running_app(screen_id=ScreenId.STALE) as pilot:
        await pilot.press("space", "space", "d")
        await until_plan_dialog(pilot)
        assert "Requeue 2 tasks — dry run" in screen_text(pilot)


async def test_marked_rows_are_failed_together_and_unmarked() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.STALE) as pilot:
        first, second = [row.id for row in _screen(pilot).list.rows[:2]]
        await pilot.press("space", "space", "F")
        await until_plan_dialog(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "changed 2" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: not _screen(pilot).list.selection.marks)
        assert {system.tasks[task_id].status for task_id in (first, second)} == {TaskStatus.FAILED}


async def test_session_threshold_applies_to_list_and_sweep() -> None:
    async with running_app(screen_id=ScreenId.STALE) as pilot:
        await _enter_threshold(pilot, "10m")
        await eventually(pilot, lambda: "this session" in screen_text(pilot))
        assert _screen(pilot).options.sweep_threshold == timedelta(minutes=10)
        assert "1 stale" in screen_text(pilot)
        await pilot.press("S")
        await until_plan_dialog(pilot)
        assert "Sweep 1 task" in screen_text(pilot)
        assert "--threshold 600s" in screen_text(pilot)


async def test_invalid_threshold_is_reported_and_ignored() -> None:
    async with running_app(screen_id=ScreenId.STALE, notifies=True) as pilot:
        await _enter_threshold(pilot, "soon")
        await eventually(pilot, lambda: "invalid duration" in screen_text(pilot))
        assert _screen(pilot).options.sweep_threshold is None


async def test_enter_opens_task_with_its_siblings() -> None:
    messages: list[Message] = []
    async with running_app(screen_id=ScreenId.STALE, hook=messages.append) as pilot:
        rows = tuple(row.id for row in _screen(pilot).list.rows)
        await pilot.press("j", "enter")
        await eventually(pilot, lambda: any(isinstance(message, OpenTask) for message in messages))
        opened = next(message for message in messages if isinstance(message, OpenTask))
        assert (opened.task_id, opened.sibling_ids) == (rows[1], rows)


async def test_evidence_follows_cursor() -> None:
    async with running_app(screen_id=ScreenId.STALE) as pilot:
        rows = _screen(pilot).list.rows
        await pilot.press("j")
        await eventually(pilot, lambda: f"Why {str(rows[1].id)[-8:]}" in screen_text(pilot))
        await eventually(pilot, lambda: "retries used" in screen_text(pilot))
