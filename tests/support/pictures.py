"""Render every screen over the fake system as SVG for README and docs: `make pictures`.

Clock and random seed are fixed, so a picture changes only when its screen does.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.app import HorsiesApp
from horsies_tui.keys import ScreenId
from horsies_tui.screens import SCREENS
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.fake_system import FakeOpener
from tests.support.tui import frozen_clock, frozen_system

if TYPE_CHECKING:
    from textual.pilot import Pilot

FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures"
SIZE: Final = (110, 30)
FAILED_MAIL: Final = TaskFilter(statuses=("FAILED",), queues=("mail",))
KEYS: Final = {
    "flows": (ScreenId.WORKFLOWS, "j", "j", "j"),
    "task": (ScreenId.STALE, "enter"),
    "preview": (ScreenId.TASKS, "space", "space", "R"),
}
"""Further pictures: start screen and the keys to press there."""

# Textual derives style names from the content, so that any change would touch every line of a picture.
_UNIQUE: Final = re.compile(r"terminal-\d+")
# Pictures must not load fonts from the web, which would also reveal who views the page.
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


async def picture(screen_id: ScreenId, *keys: str) -> str:
    """Return the screen after these keys as SVG."""
    app = HorsiesApp(
        FakeOpener(frozen_system(1500)),
        TuiConfig(env="prod"),
        database_name="db1/app",
        start=screen_id,
        clock=frozen_clock(),
    )
    async with app.run_test(size=SIZE) as pilot:
        await _until_stable(pilot)
        if keys and isinstance(app.screen, TasksScreen):
            app.screen.apply_filter(FAILED_MAIL)
            await _until_stable(pilot)
        await pilot.press(*keys)
        await _until_stable(pilot)
        svg = app.export_screenshot(title="horsies tui", simplify=True)
        return _FONTS.sub("", _UNIQUE.sub("terminal", svg))


async def _until_stable(pilot: Pilot[None]) -> None:
    """Wait until the screen no longer changes."""
    before = ""
    while before != (before := pilot.app.export_screenshot()) or "LIVE" not in before:
        await pilot.pause(0.1)


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    pictures = {str(screen_id): (screen_id,) for screen_id in SCREENS} | KEYS
    for name, (screen_id, *keys) in pictures.items():
        (FOLDER / f"{name}.svg").write_text(await picture(screen_id, *keys), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
