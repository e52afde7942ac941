from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from horsies.errors import Busy
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import TaskPage
from horsies_ops.source import DataSource
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.fake_system.source import FakeSource
from tests.support.tui import eventually, frozen_system, running_app

FAILED = TaskFilter(statuses=("FAILED",))


class FailingSource(FakeSource):
    """Fails to list tasks `failures` times."""

    failures = 0

    async def list_tasks(self, *args: Any, **options: Any) -> TaskPage:
        if self.failures:
            self.failures -= 1
            raise Busy("statement timeout")
        return await super().list_tasks(*args, **options)

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:  # noqa: ARG002  # required by the protocol
        yield self


async def _filter_while_failing(source: FailingSource, *, is_paused: bool) -> None:
    async with running_app(source) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        if is_paused:
            await pilot.press("p")
        source.failures = 1
        screen.apply_filter(FAILED)
        await eventually(pilot, lambda: screen.window.filter == FAILED)
        assert {row.status for row in screen.list.rows} == {"FAILED"}


async def test_filter_is_read_again_after_failure() -> None:
    await _filter_while_failing(FailingSource(frozen_system(), read_only=False), is_paused=False)


async def test_filter_is_read_again_after_failure_while_paused() -> None:
    await _filter_while_failing(FailingSource(frozen_system(), read_only=False), is_paused=True)
