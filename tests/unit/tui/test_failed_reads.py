from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from horsies.errors import Busy
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import TaskPage
from horsies_tui.data.source import DataSource
from horsies_tui.demo.source import DemoSource
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.tui import eventually, frozen_system, running_app

FAILED = TaskFilter(statuses=("FAILED",))


class Faltering(DemoSource):
    """Fails to list tasks as often as it is told to."""

    failures = 0

    async def list_tasks(self, *args: Any, **options: Any) -> TaskPage:
        if self.failures:
            self.failures -= 1
            raise Busy("too slow today")
        return await super().list_tasks(*args, **options)

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:  # noqa: ARG002  # an opener's
        yield self


async def _narrowed_while_failing(source: Faltering, *, is_paused: bool) -> None:
    async with running_app(source) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        if is_paused:
            await pilot.press("p")
        source.failures = 1
        screen.apply_filter(FAILED)
        await eventually(pilot, lambda: screen.window.filter == FAILED)
        assert {row.status for row in screen.list.rows} == {"FAILED"}


async def test_a_filter_whose_first_read_fails_is_asked_for_again() -> None:
    await _narrowed_while_failing(Faltering(frozen_system(), read_only=False, pace_s=None), is_paused=False)


async def test_a_filter_whose_first_read_fails_is_asked_for_again_while_the_list_is_frozen() -> None:
    await _narrowed_while_failing(Faltering(frozen_system(), read_only=False, pace_s=None), is_paused=True)
