from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from textual.message import Message
from textual.pilot import Pilot

from horsies.model.workflow.plan import WorkflowStatus
from horsies_ops.reads.workflows import WorkflowFilter, WorkflowRecord
from horsies_tui.data.queries import Fetched
from horsies_tui.keys import ACTIONS, ScreenId
from horsies_tui.screens.base import OpenTask
from horsies_tui.screens.tasks.detail import TaskDetailScreen
from horsies_tui.screens.workflows import PAGE_SIZE, WorkflowsScreen
from horsies_tui.widgets.row_list import EDGE_ROWS
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import (
    assert_matches_picture,
    eventually,
    frozen_system,
    lines,
    running_app,
    screen_text,
    until_plan_dialog,
    until_stable,
)

LARGE = (120, 36)


def _screen(pilot: Pilot[None]) -> WorkflowsScreen:
    screen = next(screen for screen in pilot.app.screen_stack if isinstance(screen, WorkflowsScreen))
    assert isinstance(screen, WorkflowsScreen)
    return screen


def _run(system: FakeSystem, name: str, status: WorkflowStatus) -> WorkflowRecord:
    return next(run for run in system.runs.values() if (run.name, run.status) == (name, status))


async def _select_run(pilot: Pilot[None], run: WorkflowRecord) -> None:
    """Move the list cursor to a run and wait for its tree."""
    screen = _screen(pilot)
    await eventually(pilot, lambda: screen.run_list.selection.index_of(run.id) is not None)
    screen.run_list.move_to(screen.run_list.selection.index_of(run.id) or 0)
    await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id == run.id)
    await until_stable(pilot)


async def test_tree_follows_list_cursor() -> None:
    async with running_app(screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        screen = _screen(pilot)
        await pilot.press("j", "j")
        await eventually(
            pilot, lambda: screen.detail is not None and screen.detail.run.id == screen.run_list.rows[2].id
        )
        assert screen.run_id == screen.run_list.rows[2].id


async def test_bar_of_a_run_is_full_only_where_nodes_completed() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        await _select_run(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        assert f"{'━' * 12}{'┄' * 8} 6/10 done" in screen_text(pilot)


async def test_narrow_terminal_shows_list_or_tree() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS) as pilot:
        await _select_run(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        assert "[1] scrape.page" not in screen_text(pilot)
        await pilot.press("enter")
        await until_stable(pilot)
        assert "[3] etl.load  needs [0], [1] and [2]" in screen_text(pilot)
        assert "6/10 done" in screen_text(pilot)
        assert "skipped: [1] failed" in screen_text(pilot)
        await pilot.press("escape")
        await until_stable(pilot)
        assert "onboard" in screen_text(pilot)


async def test_tree_updates_while_run_advances() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        run = system.start_run("onboard")
        _screen(pilot).context.queries.invalidate_all()
        await _select_run(pilot, run)
        assert "○ [0] billing.charge" in screen_text(pilot)
        system.advance_run(run)
        _screen(pilot).context.queries.invalidate_all()
        await eventually(pilot, lambda: "◎ [0] billing.charge" in screen_text(pilot))


async def test_enter_on_node_opens_its_task() -> None:
    system, messages = frozen_system(), list[Message]()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE, hook=messages.append) as pilot:
        await _select_run(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        await pilot.press("enter", "enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TaskDetailScreen))
        opened = next(message for message in messages if isinstance(message, OpenTask))
        assert opened.task_id == opened.sibling_ids[0]
        assert len(opened.sibling_ids) == 7


async def test_enter_opens_sub_workflow_and_esc_returns() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        outer, inner = _run(system, "etl-night", WorkflowStatus.RUNNING), _run(system, "crawl", WorkflowStatus.RUNNING)
        await _select_run(pilot, outer)
        screen = _screen(pilot)
        await pilot.press("enter")
        screen.node_list.move_to(screen.node_list.selection.index_of(6) or 0)
        await pilot.press("enter")
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id == inner.id)
        await until_stable(pilot)
        assert "×130 scrape.page" in screen_text(pilot)
        await pilot.press("escape")
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id == outer.id)


async def test_folding_keeps_cursor_on_its_node() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        await _select_run(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        screen = _screen(pilot)
        await pilot.press("enter", "h")
        assert "[0] scrape.page  (7 below)" in screen_text(pilot)
        assert screen.node_list.selection.cursor == 0
        await pilot.press("l", "z")
        assert len(screen.node_list.rows) == 3
        await pilot.press("z", "j", "j", "h", "h")
        assert screen.node_list.selection.cursor == 3


async def test_layers_view_and_hiding_healthy_nodes() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        await _select_run(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        await pilot.press("b")
        assert "layer 0   3 nodes   ✓ 2  ✗ 1" in screen_text(pilot)
        await pilot.press("b", "x")
        assert "[2] scrape.page" not in screen_text(pilot)
        assert "[1] scrape.page" in screen_text(pilot)


async def test_filter_limits_the_run_list() -> None:
    async with running_app(screen_id=ScreenId.WORKFLOWS) as pilot:
        await pilot.press("slash", *"status:paused,failed", "enter")
        screen = _screen(pilot)
        await eventually(pilot, lambda: {run.status for run in screen.run_list.rows} == {"PAUSED", "FAILED"})
        assert pilot.app.focused is screen.run_list
        await pilot.press("escape")
        await eventually(pilot, lambda: len(screen.run_list.rows) > 2)


@pytest.mark.parametrize(
    ("name", "before", "key", "after"),
    [
        ("digest-run", WorkflowStatus.FAILED, "R", WorkflowStatus.RUNNING),
        ("digest-run", WorkflowStatus.RUNNING, "P", WorkflowStatus.PAUSED),
        ("etl-night", WorkflowStatus.PAUSED, "P", WorkflowStatus.RUNNING),
        ("digest-run", WorkflowStatus.RUNNING, "C", WorkflowStatus.CANCELLED),
    ],
)
async def test_run_changes_after_preview_is_confirmed(
    name: str, before: WorkflowStatus, key: str, after: WorkflowStatus
) -> None:
    system = frozen_system()
    run = _run(system, name, before)
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        await _select_run(pilot, run)
        await pilot.press(key)
        await until_plan_dialog(pilot)
        assert system.runs[run.id].status == before
        await pilot.press("y")
        await eventually(pilot, lambda: "operator log" in screen_text(pilot) and "Enter back" in screen_text(pilot))
        assert system.runs[run.id].status == after


async def test_cancel_with_kill_requires_typed_count() -> None:
    system = frozen_system()
    run = _run(system, "digest-run", WorkflowStatus.RUNNING)
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        await _select_run(pilot, run)
        await pilot.press("C")
        await until_plan_dialog(pilot)
        await pilot.press("e")
        await eventually(pilot, lambda: "--kill" in screen_text(pilot))
        await pilot.press("y")
        assert system.runs[run.id].status == WorkflowStatus.RUNNING
        await pilot.press("6", "enter")
        await eventually(pilot, lambda: system.runs[run.id].status == WorkflowStatus.CANCELLED)


@pytest.mark.parametrize(
    ("name", "status", "key", "reason"),
    [
        ("onboard", WorkflowStatus.COMPLETED, "R", "no node of it failed"),
        ("onboard", WorkflowStatus.RUNNING, "R", "only a finished run can be retried"),
        ("onboard", WorkflowStatus.COMPLETED, "P", "only a running run can be paused"),
        ("onboard", WorkflowStatus.CANCELLED, "C", "the run has already finished"),
    ],
)
async def test_impossible_action_is_explained_and_not_offered(
    name: str, status: WorkflowStatus, key: str, reason: str
) -> None:
    system = frozen_system()
    run = _run(system, name, status)
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        await _select_run(pilot, run)
        await pilot.press(key)
        await until_plan_dialog(pilot)
        assert reason in screen_text(pilot)
        await pilot.press("y")
        assert system.runs[run.id] == run


async def test_read_only_disables_all_actions() -> None:
    async with running_app(screen_id=ScreenId.WORKFLOWS, read_only=True) as pilot:
        for action in ACTIONS:
            if action.mutates and ScreenId.WORKFLOWS in action.scopes:
                await pilot.press(*action.keys)
                assert pilot.app.screen is _screen(pilot)


async def test_next_run_is_unfolded_and_list_cursor_stays() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        run = _run(system, "digest-run", WorkflowStatus.FAILED)
        await _select_run(pilot, run)
        await pilot.press("z")
        system.start_run("onboard")
        screen = _screen(pilot)
        count = len(screen.run_list.rows)
        screen.context.queries.invalidate_all()
        await eventually(pilot, lambda: len(screen.run_list.rows) == count + 1)
        assert screen.run_list.selection.cursor == run.id
        assert screen.view.folded
        await pilot.press("j")
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.id != run.id)
        assert not screen.view.folded


async def test_newer_runs_above_the_screen_are_counted() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=(80, 15)) as pilot:
        await eventually(pilot, lambda: len(_screen(pilot).run_list.rows) > 1)
        await pilot.press("j")
        system.start_run("onboard")
        _screen(pilot).context.queries.invalidate_all()
        await eventually(pilot, lambda: "1 newer, g follows" in screen_text(pilot))
        await pilot.press("g")
        await eventually(pilot, lambda: "newer" not in screen_text(pilot))


async def test_cursor_stays_on_its_run_while_many_others_start() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=(80, 15)) as pilot:
        screen = _screen(pilot)
        await eventually(pilot, lambda: len(screen.run_list.rows) > 1)
        await pilot.press("j")
        run_id = screen.run_list.selection.cursor
        for _ in range(3 * PAGE_SIZE // EDGE_ROWS):
            started = {system.start_run("onboard").id for _ in range(EDGE_ROWS // 2)}
            screen.context.queries.invalidate_all()
            await eventually(pilot, lambda started=started: started <= {run.id for run in screen.run_list.rows})
            await until_stable(pilot)
        assert screen.run_list.selection.cursor == run_id


async def test_deleted_run_is_not_queried_more_often() -> None:
    system = frozen_system()
    results = list[object]()
    async with running_app(
        FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE, hook=_collect_results(results)
    ) as pilot:
        run = _run(system, "digest-run", WorkflowStatus.FAILED)
        await _select_run(pilot, run)
        del system.runs[run.id]
        _screen(pilot).context.queries.refresh("run")
        await eventually(pilot, lambda: _screen(pilot).detail is None)
        before = len(results)
        await until_stable(pilot)
        assert len(results) <= before + 1


def _collect_results(results: list[object]) -> Callable[[Message], None]:
    def hook(message: Message) -> None:
        if isinstance(message, Fetched) and message.name == "run":
            results.append(message)

    return hook


async def test_tree_matches_picture() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS) as pilot:
        await _select_run(pilot, _run(system, "digest-run", WorkflowStatus.FAILED))
        await pilot.press("enter")
        await until_stable(pilot)
        assert "Esc back to the list" in lines(pilot)[-2]
        assert_matches_picture(pilot, "run-80")


async def test_open_tree_stays_when_run_leaves_list() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), screen_id=ScreenId.WORKFLOWS, size=LARGE) as pilot:
        screen, run = _screen(pilot), _run(system, "digest-run", WorkflowStatus.FAILED)
        screen.filter_bar.set_filter(WorkflowFilter(statuses=("FAILED", "RUNNING")))
        await eventually(pilot, lambda: len(screen.run_list.rows) == 6)
        await _select_run(pilot, run)
        await pilot.press("enter")
        system.runs[run.id] = replace(run, status=WorkflowStatus.CANCELLED)
        screen.context.queries.invalidate_all()
        await eventually(pilot, lambda: screen.run_list.selection.index_of(run.id) is None)
        await eventually(pilot, lambda: screen.detail is not None and screen.detail.run.status == "CANCELLED")
        assert screen.run_id == run.id
        await pilot.press("escape")
        assert screen.run_id != run.id
