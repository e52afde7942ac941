from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from horsies.model.settings import TuiConfig
from horsies_ops.source import DataSource
from horsies_tui.app import HorsiesApp
from horsies_tui.screens import SCREENS
from tests.support.fake_system import FakeOpener
from tests.support.tui import eventually, frozen_system, running_app, screen_text

LIST_MODULES = """
import sys
from horsies_tui.keys import ScreenId
from horsies_tui.app import HorsiesApp
from horsies_tui.screens import screen_class
screen_class(ScreenId.DASHBOARD)
print(*sys.modules)
"""


async def test_screen_is_drawn_before_database_answers() -> None:
    may_connect = asyncio.Event()
    fake = FakeOpener(frozen_system(50))

    @asynccontextmanager
    async def slow(*, read_only: bool) -> AsyncGenerator[DataSource]:
        await may_connect.wait()
        async with fake(read_only=read_only) as source:
            yield source

    async with HorsiesApp(slow, TuiConfig(), database_name="db1/app").run_test() as pilot:
        await eventually(pilot, lambda: "CONNECTING" in screen_text(pilot))
        assert "[3Tasks]" in screen_text(pilot) or "[1Dash]" in screen_text(pilot)
        may_connect.set()
        await eventually(pilot, lambda: "LIVE" in screen_text(pilot))


async def test_theme_change_is_drawn_immediately() -> None:
    async with running_app(size=(80, 24)) as pilot:
        before = pilot.app.theme
        ground = pilot.app.screen.styles.background
        await pilot.press("t")
        await eventually(pilot, lambda: pilot.app.theme != before and pilot.app.screen.styles.background != ground)


def test_first_screen_imports_neither_driver_nor_other_screens() -> None:
    done = subprocess.run([sys.executable, "-c", LIST_MODULES], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    screens = {f"horsies_tui.screens.{name.rpartition('.')[0]}" for name in SCREENS.values()}
    assert loaded & screens == {"horsies_tui.screens.dashboard"}
    assert not loaded & {"asyncpg", "horsies_ops.ops", "horsies_tui.screens.tasks.detail"}
