"""What code in a child prints, sent to the worker line by line with the task that printed it."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, TextIO

from horsies.engine.messages import Said

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.engine.child.channel import Channel
    from horsies.engine.messages import Key, Stream

LONGEST_LINE = 16 * 1024
_FD = {"stdout": 1, "stderr": 2}


class Lines(io.TextIOBase):
    """A text stream whose lines are reports; a line is kept until it is whole, for each task by itself.

    A process forked from here has no line to the worker: what it writes goes to the pipe that it inherits.
    """

    def __init__(self, channel: Channel, stream: Stream, speaker: Callable[[], Key | None]) -> None:
        self._channel = channel
        self._stream: Stream = stream
        self._speaker = speaker
        self._unfinished: dict[Key | None, str] = {}
        self._writing = threading.RLock()
        self._pipe: TextIO | None = None
        self.buffer = _Bytes(self)

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # a property in C as well
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor that programs started from here inherit; the worker reads it too."""
        return _FD[self._stream]

    def write(self, text: str, /) -> int:
        if self._pipe is not None:
            return self._pipe.write(text)
        key = self._speaker()
        with self._writing:
            *lines, rest = (self._unfinished.pop(key, "") + text).split("\n")
            while len(rest) > LONGEST_LINE:
                lines.append(rest[:LONGEST_LINE])
                rest = rest[LONGEST_LINE:]
            if rest:
                self._unfinished[key] = rest
        self._say(key, *lines)
        return len(text)

    def finish(self, key: Key) -> None:
        """Send what the task left without an end of line; nothing more comes from it."""
        if rest := self._unfinished.pop(key, ""):
            self._say(key, rest)

    def flush(self) -> None:
        if self._pipe is not None:
            self._pipe.flush()

    def use_pipe(self) -> None:
        """Write past the worker's line from now on, also for handlers of logs that were given this stream before."""
        self._pipe = open(  # noqa: SIM115  # for as long as the process lives
            self.fileno(), "w", buffering=1, errors="backslashreplace", closefd=False
        )

    def _say(self, key: Key | None, *lines: str) -> None:
        # A lone surrogate has no place in a frame.
        said = [line[:LONGEST_LINE].encode(errors="backslashreplace").decode() for line in lines]
        if said:
            self._channel.send(*(Said(key, self._stream, line) for line in said))


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`, for those who write bytes."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        taken = bytes(data)
        self._lines.write(taken.decode(errors="replace"))
        return len(taken)


class Output:
    """Both streams of this process, from the moment of making."""

    def __init__(self, channel: Channel, speaker: Callable[[], Key | None]) -> None:
        self._streams = Lines(channel, "stdout", speaker), Lines(channel, "stderr", speaker)
        sys.stdout, sys.stderr = self._streams
        os.register_at_fork(after_in_child=self._use_pipes)

    def finish(self, key: Key) -> None:
        for stream in self._streams:
            stream.finish(key)

    def _use_pipes(self) -> None:
        for stream in self._streams:
            stream.use_pipe()
