"""Each screen beside its picture: two sizes, dark and light, and the states that are seldom seen."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from horsies.errors import DatabaseUnreachable
from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.demo import Demo
from horsies_tui.demo.system import System
from horsies_tui.proposals.dialog import PlanDialog
from horsies_tui.screens import SCREENS
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.tui import NOON, compare, eventually, lines, running, settled, shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from horsies_tui.data.source import Source
    from horsies_tui.keys import Place

SMALL, LARGE = (80, 24), (120, 36)


@asynccontextmanager
async def _nobody_there(*, read_only: bool) -> AsyncGenerator[Source]:
    raise DatabaseUnreachable("cannot reach db1: connection refused")
    yield


@pytest.mark.parametrize("theme", ["horsies-dark", "horsies-light"])
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("place", SCREENS)
async def test_a_screen_looks_as_in_its_picture(place: Place, size: tuple[int, int], theme: str) -> None:
    async with running(place=place, size=size, settings=TuiConfig(theme=theme, env="prod")) as pilot:
        await eventually(pilot, lambda: "· " in lines(pilot)[-2])
        await settled(pilot)
        compare(pilot, f"{place}-{size[0]}-{theme.removeprefix('horsies-')}")


async def test_a_preview_looks_as_in_its_picture() -> None:
    async with running(size=SMALL) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        screen.show_only(TaskFilter(statuses=("FAILED",), queues=("mail",)))
        await eventually(pilot, lambda: bool(screen.window.filter.statuses))
        await pilot.press("space", "space", "R")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, PlanDialog))
        await settled(pilot)
        compare(pilot, "preview-80")


async def test_nothing_to_show_looks_as_in_its_picture() -> None:
    async with running(Demo(System(lambda: NOON), pace_s=None), until="no tasks yet") as pilot:
        compare(pilot, "empty-80")


async def test_read_only_looks_as_in_its_picture() -> None:
    async with running(read_only=True) as pilot:
        compare(pilot, "read-only-80")


async def test_ascii_looks_as_in_its_picture() -> None:
    async with running(settings=TuiConfig(ascii=True)) as pilot:
        compare(pilot, "ascii-80")


async def test_too_small_a_terminal_is_told_so() -> None:
    async with running(size=(50, 12), until="needs 60 × 15") as pilot:
        compare(pilot, "too-small-50")


async def test_a_database_that_is_away_looks_as_in_its_picture() -> None:
    async with running(_nobody_there, until="Cannot connect") as pilot:
        assert "RECONNECTING" in shown(pilot)
