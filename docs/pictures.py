"""`python docs/pictures.py`: every screen of the invented system as SVG, for README and docs.

The system stands still at one moment and its chance comes from a seed, so a picture changes when a screen does.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.app import HorsiesApp
from horsies_tui.data.context import DatabaseClock
from horsies_tui.demo import DemoOpener
from horsies_tui.demo.system import DemoSystem
from horsies_tui.keys import Place
from horsies_tui.screens import SCREENS
from horsies_tui.screens.tasks.screen import TasksScreen

if TYPE_CHECKING:
    from textual.pilot import Pilot

FOLDER: Final = Path(__file__).parent / "pictures"
NOON: Final = datetime(2026, 11, 14, 12, 4, 31, tzinfo=UTC)
SIZE: Final = (110, 30)
FAILED_MAIL: Final = TaskFilter(statuses=("FAILED",), queues=("mail",))
KEYS: Final = {
    "flows": (Place.WORKFLOWS, "j", "j", "j"),
    "task": (Place.STALE, "enter"),
    "preview": (Place.TASKS, "space", "space", "R"),
}
"""What more is worth showing, by the keys that lead there."""

# Names of styles and cells are made from what is drawn; these would make every picture differ from every other.
_UNIQUE: Final = re.compile(r"terminal-\d+")
# A picture in a page may load nothing, and whoever looks at one should not be seen doing so.
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


async def picture(place: Place, *keys: str) -> str:
    """The screen as it is after these keys."""
    system = DemoSystem.with_history(lambda: NOON, size=1500)
    app = HorsiesApp(
        DemoOpener(system, pace_s=None),
        TuiConfig(env="prod"),
        database_name="db1/app",
        start=place,
        clock=DatabaseClock(ticks=lambda: 0.0, local=lambda: NOON),
    )
    async with app.run_test(size=SIZE) as pilot:
        await _settled(pilot)
        if keys and isinstance(app.screen, TasksScreen):
            app.screen.apply_filter(FAILED_MAIL)
            await _settled(pilot)
        await pilot.press(*keys)
        await _settled(pilot)
        drawn = app.export_screenshot(title="horsies tui", simplify=True)
        return _FONTS.sub("", _UNIQUE.sub("terminal", drawn))


async def _settled(pilot: Pilot[None]) -> None:
    """Until what is shown stays the same."""
    before = ""
    while before != (before := pilot.app.export_screenshot()) or "LIVE" not in before:
        await pilot.pause(0.1)


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    wanted = {str(place): (place,) for place in SCREENS} | KEYS
    for name, (place, *keys) in wanted.items():
        (FOLDER / f"{name}.svg").write_text(await picture(place, *keys), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
