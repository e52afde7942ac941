from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from horsies.errors import DatabaseUnreachable
from horsies_ops.actions.plan import Plan
from horsies_ops.actions.report import ActionProgress, ActionReport
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.source import DataSource
from horsies_tui.keys import ScreenId, actions_in
from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.fake_system.source import FakeSource
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_plan_dialog, until_stable


class SlowSource(FakeSource):
    """Plans only after `may_plan` is set."""

    def __init__(self) -> None:
        super().__init__(frozen_system(), read_only=False)
        self.may_plan = asyncio.Event()
        self.plan_calls = 0

    async def plan(self, *args: Any, **options: Any) -> Plan:
        self.plan_calls += 1
        await self.may_plan.wait()
        return await super().plan(*args, **options)

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:  # noqa: ARG002  # signature of an opener
        yield self


# The keys of the dashboard depend on the line under the cursor; its own tests press them.
@pytest.mark.parametrize("screen_id", [screen_id for screen_id in ScreenId if screen_id is not ScreenId.DASHBOARD])
async def test_every_changing_key_opens_a_preview(screen_id: ScreenId) -> None:
    async with running_app(screen_id=screen_id) as pilot:
        screen = pilot.app.screen
        for action in actions_in(screen_id):
            if action.mutates:
                await pilot.press(*action.keys)
                dialog = await until_plan_dialog(pilot)
                dialog.dismiss(None)
                await eventually(pilot, lambda: pilot.app.screen is screen)


async def test_key_pressed_twice_opens_one_preview() -> None:
    source = SlowSource()
    async with running_app(source) as pilot:
        await pilot.press("R", "R", "F")
        source.may_plan.set()
        await until_plan_dialog(pilot)
        await until_stable(pilot)
        assert source.plan_calls == 1
        assert [type(screen) for screen in pilot.app.screen_stack].count(ProposalDialog) == 1


async def test_key_opens_next_preview_after_close() -> None:
    source = SlowSource()
    source.may_plan.set()
    async with running_app(source) as pilot:
        for _ in range(2):
            await pilot.press("R")
            await until_plan_dialog(pilot)
            await pilot.press("enter")
        assert source.plan_calls == 2


class FailingSource(SlowSource):
    """Loses the connection after the first task of an action."""

    async def apply(self, plan: Plan, **options: Any) -> ActionReport:
        first, *_ = plan.targets
        options["progress"](ActionProgress(done=1, total=2, affected=1, skipped=0, task_ids=(first.id,)))
        raise DatabaseUnreachable("gone")


async def test_tasks_changed_before_failure_are_unmarked() -> None:
    source = FailingSource()
    source.may_plan.set()
    async with running_app(source) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        screen.apply_filter(TaskFilter(statuses=("PENDING",), due_later=True))
        await eventually(pilot, lambda: {row.status for row in screen.list.rows} == {"PENDING"})
        await until_stable(pilot)
        await pilot.press("space", "space", "C")
        await until_plan_dialog(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "Failed" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: pilot.app.screen is screen)
        assert len(screen.list.selection.marks) == 1


async def test_too_small_terminal_ignores_all_but_exit_keys() -> None:
    source = SlowSource()
    async with running_app(source, size=(59, 24), until="needs 60") as pilot:
        await pilot.press("R", "F", "2", "space")
        await until_stable(pilot)
        assert source.plan_calls == 0
        assert pilot.app.current_mode == ScreenId.TASKS
        await pilot.press("q")
        assert not pilot.app.is_running
