"""While nothing changes, nothing is written to the terminal, which may be a slow connection."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, cast

import pytest
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.app import HorsiesApp
from horsies_tui.data.context import DatabaseClock
from horsies_tui.data.session import smooth_latency
from horsies_tui.keys import ScreenId
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.widgets.frame import AppHeader
from tests.support.fake_system import FakeOpener
from tests.support.tui import NOON, eventually, frozen_system, screen_text, until_stable

NO_TASK = TaskFilter(names=("no.such.task",))


class RecordingDriver(HeadlessDriver):
    """Records the output."""

    sent: ClassVar[list[str]] = []

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        self.sent.append(data)


async def test_unchanged_results_are_not_repainted() -> None:
    elapsed_s, painted = [0.0], ["never ran"]
    clock = DatabaseClock(monotonic=lambda: elapsed_s[0], local=lambda: NOON)
    app = HorsiesApp(
        FakeOpener(frozen_system()),
        TuiConfig(),
        database_name="db1/app",
        start=ScreenId.TASKS,
        clock=clock,
    )
    app.driver_class = RecordingDriver

    async def refresh(driven: Pilot[object]) -> None:
        pilot = cast("Pilot[None]", driven)
        await eventually(pilot, lambda: "LIVE" in screen_text(pilot))
        cast("TasksScreen", app.screen).apply_filter(NO_TASK)
        await eventually(pilot, lambda: "0 match" in screen_text(pilot))
        await until_stable(pilot)
        RecordingDriver.sent.clear()
        elapsed_s[0] += 7
        app.context.queries.refresh()
        await eventually(pilot, lambda: app.screen.query_one(AppHeader).as_of == NOON + timedelta(seconds=7))
        await until_stable(pilot)
        painted[:] = RecordingDriver.sent
        app.exit()

    await app.run_async(size=(80, 24), auto_pilot=refresh)
    assert not painted


@pytest.mark.parametrize(
    ("shown_ms", "measured_ms", "expected_ms"), [(None, 3, 3), (1, 5, 1), (1, 9, 9), (40, 55, 40), (900, 1100, 1100)]
)
def test_small_latency_changes_are_not_shown(shown_ms: int | None, measured_ms: int, expected_ms: int) -> None:
    before = None if shown_ms is None else timedelta(milliseconds=shown_ms)
    assert smooth_latency(before, timedelta(milliseconds=measured_ms)) == timedelta(milliseconds=expected_ms)
