"""The screens without a terminal: an app over a system that stands still, and pictures to compare it with."""

from __future__ import annotations

import os
import pickle
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from string import ascii_letters, digits, punctuation
from typing import TYPE_CHECKING

from rich.cells import cell_len

from horsies.model.settings import TuiConfig
from horsies_tui.app import HorsiesApp
from horsies_tui.data.context import DatabaseClock
from horsies_tui.demo import Demo
from horsies_tui.demo.system import System
from horsies_tui.keys import Place
from horsies_tui.proposals.dialog import PlanDialog
from horsies_tui.theme import NO_OTHERS, UserThemes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from textual.message import Message
    from textual.pilot import Pilot
    from textual.strip import Strip

    from horsies_tui.data.context import Memory
    from horsies_tui.data.source import Opener

ALPHABET = ascii_letters + digits + punctuation

NOON = datetime(2026, 11, 14, 12, 4, 31, tzinfo=UTC)
PICTURES = Path(__file__).parents[1] / "unit" / "tui" / "pictures"


def still(size: int = 400) -> System:
    """A busy system at noon, where no time passes; each caller has one of its own."""
    return pickle.loads(_as_bytes(size))  # noqa: S301  # our own bytes


@cache
def _as_bytes(size: int) -> bytes:
    # To invent a past takes four times as long as to read it back, and hundreds of tests want the same one.
    return pickle.dumps(System.busy(_noon, size=size))


def _noon() -> datetime:
    return NOON


def still_clock() -> DatabaseClock:
    return DatabaseClock(ticks=lambda: 0.0, local=lambda: NOON)


@asynccontextmanager
async def running(
    opener: Opener | None = None,
    *,
    settings: TuiConfig | None = None,
    size: tuple[int, int] = (80, 24),
    read_only: bool = False,
    place: Place = Place.TASKS,
    until: str = "LIVE",
    hook: Callable[[Message], None] | None = None,
    memory: Memory | None = None,
    themes: UserThemes = NO_OTHERS,
    notifies: bool = False,
) -> AsyncGenerator[Pilot[None]]:
    """The app, once its header says `until`; over a still system where no other is given."""
    opener = opener or Demo(still(), pace_s=None)
    app = HorsiesApp(
        opener,
        settings or TuiConfig(),
        database="db1/app",
        read_only=read_only,
        start=place,
        clock=still_clock(),
        memory=memory,
        themes=themes,
    )
    async with app.run_test(size=size, message_hook=hook, notifications=notifies) as pilot:
        await eventually(pilot, lambda: until in shown(pilot))
        await settled(pilot)
        yield pilot


async def eventually(pilot: Pilot[None], is_so: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Let the app work until that is the case."""
    deadline = datetime.now(UTC) + timedelta(seconds=within_s)
    while not is_so():
        assert datetime.now(UTC) < deadline, shown(pilot)
        await pilot.pause()


async def dialog(pilot: Pilot[None]) -> PlanDialog:
    """The preview, once it heeds keys."""
    await eventually(pilot, lambda: isinstance(pilot.app.screen, PlanDialog))
    shown_now = pilot.app.screen
    assert isinstance(shown_now, PlanDialog)
    await shown_now.heeds.wait()
    return shown_now


async def settled(pilot: Pilot[None]) -> None:
    """Let the app work until what it shows stays the same."""
    before = ""
    while before != (before := shown(pilot)):
        await pilot.pause()


def shown(pilot: Pilot[None]) -> str:
    """What is on the screen, line by line."""
    return "\n".join(lines(pilot))


def lines(pilot: Pilot[None]) -> list[str]:
    return [strip.text for strip in _strips(pilot)]


def _strips(pilot: Pilot[None]) -> list[Strip]:
    # There is no public way to what is on the screen but an SVG, which takes long and reads badly.
    return pilot.app.screen._compositor.render_strips()


def picture(pilot: Pilot[None]) -> str:
    """The screen as text, below it the style of each character as a letter, and what the letters mean."""
    letters: dict[str, str] = {}
    styles: list[str] = []
    for strip in _strips(pilot):
        line = ""
        for text, style, _ in strip:
            letter = letters.setdefault(str(style), ALPHABET[len(letters)])
            line += letter * cell_len(text)
        styles.append(line)
    legend = [f"{letter} {style}" for style, letter in letters.items()]
    return "\n".join([*(line.rstrip() for line in lines(pilot)), "", *styles, "", *legend, ""])


def compare(pilot: Pilot[None], name: str) -> None:
    """Whether the screen looks as in the picture of that name; with UPDATE_PICTURES set the picture is made anew."""
    path = PICTURES / f"{name}.txt"
    now = picture(pilot)
    if os.environ.get("UPDATE_PICTURES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(now, encoding="utf-8")
    assert path.exists(), f"there is no {path.name}; UPDATE_PICTURES=1 makes it"
    assert now == path.read_text(encoding="utf-8"), f"{path.name} looks otherwise; UPDATE_PICTURES=1 makes it anew"
