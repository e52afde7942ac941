"""What a child writes past Python, on its descriptors 1 and 2: C code, programs that tasks start, a fatal traceback."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_READ_BYTES: Final = 64 * 1024
LONGEST_LINE: Final = 16 * 1024


class PipeLines:
    """Reads a pipe without waiting and hands on its lines."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, say: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._say = say
        self._unfinished = b""
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self.read)

    def read(self) -> bool:
        """Hand on what is there; False when there is no more for now, or for good."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._descriptor)
            return False
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > LONGEST_LINE:
            lines.append(self._unfinished)
            self._unfinished = b""
        for line in lines:
            self._say(line[:LONGEST_LINE].decode(errors="replace"))
        return True

    def finish(self) -> None:
        """Hand on what is left of a process that has ended."""
        while self.read():
            pass
        self._loop.remove_reader(self._descriptor)
        if self._unfinished:
            self._say(self._unfinished.decode(errors="replace"))
