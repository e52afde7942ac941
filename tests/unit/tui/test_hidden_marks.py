"""Marked rows that the current filter hides."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from horsies_ops.reads.filters import TaskFilter
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.tui import eventually, running_app, screen_text, until_plan_dialog, until_stable

FAILED_MAIL = TaskFilter(statuses=("FAILED",), queues=("mail",))
OTHERS = TaskFilter(statuses=("PENDING",))


async def _apply_filter(pilot: Pilot[None], screen: TasksScreen, task_filter: TaskFilter) -> None:
    screen.apply_filter(task_filter)
    await eventually(pilot, lambda: screen.window.filter == task_filter)
    await until_stable(pilot)


@asynccontextmanager
async def _two_hidden_marks() -> AsyncGenerator[tuple[Pilot[None], TasksScreen]]:
    async with running_app(notifies=True) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        await _apply_filter(pilot, screen, FAILED_MAIL)
        await pilot.press("space", "space")
        await _apply_filter(pilot, screen, OTHERS)
        yield pilot, screen


async def test_hidden_marks_are_counted() -> None:
    async with _two_hidden_marks() as (pilot, _):
        assert "2 marked, 2 not in this list" in screen_text(pilot)


async def test_action_fits_status_of_hidden_rows() -> None:
    async with _two_hidden_marks() as (pilot, _):
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert "Retry 2 tasks" in screen_text(pilot)


async def test_hidden_rows_are_copied() -> None:
    async with _two_hidden_marks() as (pilot, screen):
        await pilot.press("Y")
        await eventually(pilot, lambda: "copied as JSON" in screen_text(pilot))
        assert {row["id"] for row in json.loads(pilot.app.clipboard)} == set(map(str, screen.selected_ids))
