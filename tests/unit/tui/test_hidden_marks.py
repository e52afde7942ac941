"""Rows that were marked before the filter left them out."""

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


async def _narrow(pilot: Pilot[None], screen: TasksScreen, wanted: TaskFilter) -> None:
    screen.apply_filter(wanted)
    await eventually(pilot, lambda: screen.window.filter == wanted)
    await until_stable(pilot)


@asynccontextmanager
async def _two_hidden() -> AsyncGenerator[tuple[Pilot[None], TasksScreen]]:
    async with running_app(notifies=True) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        await _narrow(pilot, screen, FAILED_MAIL)
        await pilot.press("space", "space")
        await _narrow(pilot, screen, OTHERS)
        yield pilot, screen


async def test_they_are_counted_as_such() -> None:
    async with _two_hidden() as (pilot, _):
        assert "2 marked, 2 not in this list" in screen_text(pilot)


async def test_what_fits_them_is_proposed() -> None:
    async with _two_hidden() as (pilot, _):
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert "Retry 2 tasks" in screen_text(pilot)


async def test_they_are_copied_whole() -> None:
    async with _two_hidden() as (pilot, screen):
        await pilot.press("Y")
        await eventually(pilot, lambda: "copied as JSON" in screen_text(pilot))
        assert {each["id"] for each in json.loads(pilot.app.clipboard)} == set(map(str, screen.selected_ids))
