"""Where attempts begin and end: the one place that keeps count and reports."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TextIO

from msgspec.structs import replace

from horsies.engine.child.lifetime import exit_with
from horsies.engine.pool.protocol import (
    MAX_COMMAND_BYTES,
    READ_BYTES,
    AttemptKey,
    Command,
    EncodedOutcome,
    ExitStatus,
    FrameReader,
    OutputLine,
    Report,
    Stream,
    TaskBegan,
    TaskEnded,
    decode_command,
    encode,
    encode_frames,
)


class AttemptReporter:
    """Reports what begins before any of its code runs. An ending waits for the next beginning, or for `flush`."""

    def __init__(self, channel: ParentChannel, begun: RunningTasks, output: OutputCapture) -> None:
        self._channel = channel
        self._begun = begun
        self._output = output
        self._unsent: list[Report] = []
        self._began_at: dict[AttemptKey, float] = {}

    def begin(self, key: AttemptKey) -> None:
        self._begun.add(key)
        self._began_at[key] = time.monotonic()
        self._unsent.append(TaskBegan(key))
        self.flush()

    def end(self, key: AttemptKey, ending: EncodedOutcome) -> None:
        self._output.flush_task(key)
        self._begun.remove(key)
        run_ms = 1000 * (time.monotonic() - self._began_at.pop(key))
        self._unsent.append(TaskEnded(key, replace(ending, run_ms=run_ms)))

    def flush(self) -> None:
        if self._unsent:
            self._channel.send(*self._unsent)
            self._unsent.clear()


# What a child is at work on.

CURRENT_TASK: ContextVar[AttemptKey | None] = ContextVar("horsies_speaker", default=None)
"""The task whose code runs in this context."""


class RunningTasks:
    """What has begun and not ended; other threads may ask at any time."""

    def __init__(self) -> None:
        self._keys: dict[AttemptKey, None] = {}

    @property
    def keys(self) -> tuple[AttemptKey, ...]:
        return tuple(self._keys)

    def add(self, key: AttemptKey) -> None:
        self._keys[key] = None

    def remove(self, key: AttemptKey) -> None:
        del self._keys[key]

    def current_task(self) -> AttemptKey | None:
        """The task whose code asks; for a thread that some task has started, the only one there is, if so."""
        keys = self.keys
        return CURRENT_TASK.get() or (keys[0] if len(keys) == 1 else None)


# What code in a child prints, sent to the worker line by line with the task that printed it.

MAX_LINE_CHARS = 16 * 1024
_STREAM_FDS = {"stdout": 1, "stderr": 2}


class TaskOutputStream(io.TextIOBase):
    """A text stream whose lines are reports; a line is kept until it is whole, for each task by itself.

    A process forked from here has no line to the worker: what it writes goes to the pipe that it inherits.
    """

    def __init__(self, channel: ParentChannel, stream: Stream, speaker: Callable[[], AttemptKey | None]) -> None:
        self._channel = channel
        self._stream: Stream = stream
        self._current_task = speaker
        self._unfinished: dict[AttemptKey | None, str] = {}
        self._write_lock = threading.RLock()
        self._pipe: TextIO | None = None
        self.buffer = _OutputBuffer(self)

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # a property in C as well
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor that programs started from here inherit; the worker reads it too."""
        return _STREAM_FDS[self._stream]

    def write(self, text: str, /) -> int:
        if self._pipe is not None:
            return self._pipe.write(text)
        key = self._current_task()
        with self._write_lock:
            *lines, rest = (self._unfinished.pop(key, "") + text).split("\n")
            while len(rest) > MAX_LINE_CHARS:
                lines.append(rest[:MAX_LINE_CHARS])
                rest = rest[MAX_LINE_CHARS:]
            if rest:
                self._unfinished[key] = rest
        self._send_lines(key, *lines)
        return len(text)

    def flush_task(self, key: AttemptKey) -> None:
        """Send what the task left without an end of line; nothing more comes from it."""
        if rest := self._unfinished.pop(key, ""):
            self._send_lines(key, rest)

    def flush(self) -> None:
        if self._pipe is not None:
            self._pipe.flush()

    def use_pipe(self) -> None:
        """Write past the worker's line from now on, also for handlers of logs that were given this stream before."""
        self._pipe = open(  # noqa: SIM115  # for as long as the process lives
            self.fileno(), "w", buffering=1, errors="backslashreplace", closefd=False
        )

    def _send_lines(self, key: AttemptKey | None, *lines: str) -> None:
        # A lone surrogate has no place in a frame.
        said = [line[:MAX_LINE_CHARS].encode(errors="backslashreplace").decode() for line in lines]
        if said:
            self._channel.send(*(OutputLine(key, self._stream, line) for line in said))


class _OutputBuffer(io.RawIOBase):
    """`sys.stdout.buffer`, for those who write bytes."""

    def __init__(self, lines: TaskOutputStream) -> None:
        self._lines = lines

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        taken = bytes(data)
        self._lines.write(taken.decode(errors="replace"))
        return len(taken)


class OutputCapture:
    """Both streams of this process, from the moment of making."""

    def __init__(self, channel: ParentChannel, speaker: Callable[[], AttemptKey | None]) -> None:
        self._streams = TaskOutputStream(channel, "stdout", speaker), TaskOutputStream(channel, "stderr", speaker)
        sys.stdout, sys.stderr = self._streams
        os.register_at_fork(after_in_child=self._use_pipes)

    def flush_task(self, key: AttemptKey) -> None:
        for stream in self._streams:
            stream.flush_task(key)

    def _use_pipes(self) -> None:
        for stream in self._streams:
            stream.use_pipe()


# The child's end of the line to its worker.


class ParentChannel:
    """Reports from any thread, orders to one of them.

    The worker always reads, so a send that waits for room comes to its end. A process forked from this one is none of
    the worker's children: its end is closed and what it reports goes nowhere.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Re-entrant, for a finalizer may print while a report is on its way.
        self._send_lock = threading.RLock()
        self._is_open = True
        os.register_at_fork(after_in_child=self._close_after_fork)

    def send(self, *reports: Report) -> None:
        """Hand reports over together. Without a line there is nobody to work for: the process ends."""
        data = encode_frames([encode(report) for report in reports])
        with self._send_lock:
            if self._is_open:
                try:
                    self._sock.sendall(data)
                except OSError:
                    exit_with(ExitStatus.CHANNEL_LOST)

    def commands(self) -> Iterator[Command]:
        """Every order until the worker closes its end."""
        reader = FrameReader(max_bytes=MAX_COMMAND_BYTES)
        while data := self._sock.recv(READ_BYTES):
            for frame in reader.feed(data):
                yield decode_command(frame)

    def _close_after_fork(self) -> None:
        self._send_lock = threading.RLock()
        self._is_open = False
        self._sock.close()
