"""What an app sends to its terminal, byte for byte, without one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from textual.drivers.headless_driver import HeadlessDriver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.app import App
    from textual.pilot import Pilot

OWN = re.compile(r"\x1b\[[0-9;]*m|\n?\x1b\[[0-9;]*H|\x1b\[\?2026[hl]|\x1b\]22;[a-z-]*\x07")
"""What Textual itself sends while it draws: colours, places, the bounds of a frame, and the shape of the pointer."""


class Recording(HeadlessDriver):
    """A driver for which everything is drawn, as for a real terminal."""

    written: list[str]

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        self.written.append(data)


async def recorded(app: App[None], size: tuple[int, int], drive: Callable[[Pilot[None]], Awaitable[None]]) -> str:
    """Run the app, let it be driven, and return all that it sent."""
    written: list[str] = []
    app.driver_class = type("Recorder", (Recording,), {"written": written})

    async def then_leave(pilot: Pilot[object]) -> None:
        await drive(cast("Pilot[None]", pilot))
        app.exit()

    await app.run_async(size=size, auto_pilot=then_leave)
    return "".join(written)


def without_own_sequences(sent: str) -> str:
    """What remains are the texts alone; a control in it came from somewhere else."""
    return OWN.sub("", sent)
