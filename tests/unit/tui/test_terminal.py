"""On a pseudo-terminal: every screen keeps showing the current rows, however often it is left and entered."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from horsies_tui.keys import ScreenId
from tests.support.terminal import TerminalProgram, on_terminal
from tests.support.versioned_tui import FIRST_VERSION

NUMBERS = {screen_id: str(number) for number, screen_id in enumerate(ScreenId, 1)}


class VersionedTui:
    """The TUI over rows with a version."""

    def __init__(self, program: TerminalProgram, pipe: int) -> None:
        self.program = program
        self._pipe = pipe
        self._version = FIRST_VERSION

    def go(self, screen_id: ScreenId) -> None:
        self.program.press(NUMBERS[screen_id])
        self.program.wait_until(lambda text: f"[{NUMBERS[screen_id]}{screen_id.capitalize()}" in text)
        self.check()

    def raise_version(self) -> None:
        """Change all rows, and check that the terminal shows the change."""
        os.write(self._pipe, b"x")
        self._version += 1
        self.check()

    def check(self) -> None:
        """Wait until the terminal shows the current version and no older one."""
        shown = re.compile(r"(?<![\da-f])7,?(0\d\d)(?![\da-f])")
        current = f"{self._version % 1000:03}"
        self.program.wait_until(lambda text: set(shown.findall(text)) == {current}, within_s=20)


@contextmanager
def _versioned_tui(size: tuple[int, int] = (120, 36)) -> Generator[VersionedTui]:
    reader, writer = os.pipe()
    try:
        with on_terminal("tests.support.versioned_tui", str(reader), size=size, pass_fds=[reader]) as program:
            program.wait_until(lambda text: "LIVE" in text, within_s=60)
            yield VersionedTui(program, writer)
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
def test_screens_show_current_rows_when_entered_again(size: tuple[int, int]) -> None:
    with _versioned_tui(size) as tui:
        for _ in range(2):
            for screen_id in ScreenId:
                tui.go(screen_id)
                tui.raise_version()
                tui.raise_version()


@pytest.mark.timeout(300)
def test_screens_show_current_rows_after_resize_and_theme_change() -> None:
    with _versioned_tui() as tui:
        for screen_id in ScreenId:
            tui.go(screen_id)
            tui.program.resize(100, 30)
            tui.raise_version()
            tui.program.press("t")
            tui.raise_version()
            tui.program.resize(120, 36)
            tui.raise_version()
