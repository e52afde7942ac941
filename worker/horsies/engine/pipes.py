"""What a child writes past Python, on its descriptors 1 and 2: C code, programs that tasks start, a fatal traceback."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TURN_BYTES: Final = 16 * 1024
"""So much a turn of the loop: other children have something to say too."""
PIPE_BYTES: Final = 64 * 1024
"""As much as a pipe holds."""
LONGEST_LINE: Final = 16 * 1024


class PipeLines:
    """Reads a pipe without waiting and hands on its lines."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, say: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._say = say
        self._unfinished = b""
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._read, TURN_BYTES)

    def finish(self) -> None:
        """Hand on what is left of a process that has ended: one pipe full at most, for another may still write there.

        A program that a task has started in a session of its own outlives its child and holds the pipe open.
        """
        self._read(PIPE_BYTES)
        self._loop.remove_reader(self._descriptor)
        if self._unfinished:
            self._say(self._unfinished.decode(errors="replace"))

    def _read(self, most_bytes: int) -> None:
        try:
            data = os.read(self._descriptor, most_bytes)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._descriptor)
            return
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > LONGEST_LINE:
            lines.append(self._unfinished)
            self._unfinished = b""
        for line in lines:
            self._say(line[:LONGEST_LINE].decode(errors="replace"))
