"""What a child writes past Python, on its descriptors 1 and 2: C code, programs that tasks start, a fatal traceback."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

TURN_BYTES: Final = 2 * 1024
"""So much a turn of the loop, which may be a thousand lines: others have to have their turns too."""
PIPE_BYTES: Final = 64 * 1024
"""As much as a pipe holds."""
MOST_LAST_LINES: Final = 1_000
LONGEST_LINE: Final = 16 * 1024


class PipeLines:
    """Reads a pipe without waiting and hands on its lines."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, say: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._say = say
        self._unfinished = b""
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._take_turn)

    def finish(self) -> None:
        """Hand on what is left of a process that has ended: one pipe full at most, for another may still write there.

        A program that a task has started in a session of its own outlives its child and holds the pipe open.
        """
        lines = self._read(PIPE_BYTES)
        self._loop.remove_reader(self._descriptor)
        if self._unfinished:
            lines.append(self._unfinished)
        if len(lines) > MOST_LAST_LINES:
            self._say(f"({len(lines) - MOST_LAST_LINES} lines are left out here)")
        self._pass_on(lines[-MOST_LAST_LINES:])

    def _take_turn(self) -> None:
        self._pass_on(self._read(TURN_BYTES))

    def _read(self, most_bytes: int) -> list[bytes]:
        """The lines that are there."""
        try:
            data = os.read(self._descriptor, most_bytes)
        except BlockingIOError:
            return []
        if not data:
            self._loop.remove_reader(self._descriptor)
            return []
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > LONGEST_LINE:
            lines.append(self._unfinished)
            self._unfinished = b""
        return lines

    def _pass_on(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._say(line[:LONGEST_LINE].decode(errors="replace"))
