"""Snapshots of each screen: two sizes, dark and light, and rare states."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from horsies.errors import DatabaseUnreachable
from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.source import DataSource
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.screens import SCREENS
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import NOON, assert_matches_picture, eventually, lines, running_app, screen_text, until_stable

SMALL, LARGE = (80, 24), (120, 36)


@asynccontextmanager
async def _unreachable(*, read_only: bool) -> AsyncGenerator[DataSource]:
    raise DatabaseUnreachable("cannot reach db1: connection refused")
    yield


@pytest.mark.parametrize("theme", ["horsies-dark", "horsies-light"])
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("screen_id", SCREENS)
async def test_screen_matches_picture(screen_id: ScreenId, size: tuple[int, int], theme: str) -> None:
    async with running_app(screen_id=screen_id, size=size, settings=TuiConfig(theme=theme, env="prod")) as pilot:
        await eventually(pilot, lambda: "· " in lines(pilot)[-2])
        await until_stable(pilot)
        assert_matches_picture(pilot, f"{screen_id}-{size[0]}-{theme.removeprefix('horsies-')}")


async def test_preview_matches_picture() -> None:
    async with running_app(size=SMALL) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        screen.apply_filter(TaskFilter(statuses=("FAILED",), queues=("mail",)))
        await eventually(pilot, lambda: bool(screen.window.filter.statuses))
        await pilot.press("space", "space", "R")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, ProposalDialog))
        await until_stable(pilot)
        assert_matches_picture(pilot, "preview-80")


async def test_empty_list_matches_picture() -> None:
    async with running_app(FakeOpener(FakeSystem(lambda: NOON)), until="no tasks yet") as pilot:
        assert_matches_picture(pilot, "empty-80")


async def test_read_only_matches_picture() -> None:
    async with running_app(read_only=True) as pilot:
        assert_matches_picture(pilot, "read-only-80")


async def test_ascii_mode_matches_picture() -> None:
    async with running_app(settings=TuiConfig(ascii=True)) as pilot:
        assert_matches_picture(pilot, "ascii-80")


async def test_too_small_terminal_matches_picture() -> None:
    async with running_app(size=(50, 12), until="needs 60 × 15") as pilot:
        assert_matches_picture(pilot, "too-small-50")


async def test_unreachable_database_matches_picture() -> None:
    async with running_app(_unreachable, until="Cannot connect") as pilot:
        assert "RECONNECTING" in screen_text(pilot)


async def test_each_line_of_a_long_connection_error_is_indented() -> None:
    @asynccontextmanager
    async def opener(*, read_only: bool) -> AsyncGenerator[DataSource]:
        raise DatabaseUnreachable("cannot reach " + " ".join(["postgresql://db1/app"] * 6))
        yield

    async with running_app(opener, until="Cannot connect") as pilot:
        notice = [line for line in lines(pilot) if "postgresql://" in line]
        assert len(notice) > 1
        assert all(line.startswith(" ") for line in notice)
