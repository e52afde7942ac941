"""The child's side of the channel to the worker: reports, commands, and captured output of tasks."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from horsies.engine.child.execution import Attempt
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
    encode_frame,
)
from horsies.registry.invocation import CURRENT_TASK

MAX_LINE_CHARS = 16 * 1024
MAX_LINES_PER_SEND = 256
"""Keeps a message of output lines below `MAX_REPORT_BYTES`."""
LARGE_DOCUMENT_CHARS = 10_000
"""Larger documents are sent alone: with those of 1,000 coroutines, a message would exceed `MAX_REPORT_BYTES`."""
_STREAM_FDS = {"stdout": 1, "stderr": 2}


class ParentChannel:
    """Sends reports from any thread; delivers commands to one thread.

    `send` may block until the worker reads, which it always does. In a process forked from this one the channel is
    closed and reports are dropped.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Re-entrant: a finalizer that runs during a send may print, which sends again.
        self._send_lock = threading.RLock()
        self._is_open = True
        os.register_at_fork(after_in_child=self._close_after_fork)

    def send(self, *reports: Report) -> None:
        """Send reports in one write; exits the process if the channel is broken."""
        data = encode_frame(encode(reports))
        with self._send_lock:
            if self._is_open:
                try:
                    self._sock.sendall(data)
                except OSError:
                    exit_with(ExitStatus.CHANNEL_LOST)

    def commands(self) -> Iterator[Command]:
        """Yield commands until the worker closes its end."""
        reader = FrameReader(max_bytes=MAX_COMMAND_BYTES)
        while data := self._sock.recv(READ_BYTES):
            for frame in reader.feed(data):
                yield decode_command(frame)

    def _close_after_fork(self) -> None:
        self._send_lock = threading.RLock()
        self._is_open = False
        self._sock.close()


class AttemptReporter:
    """Reports the start and end of attempts.

    A start is sent before any code of the task runs. An end is buffered until the next start or `flush`, which saves
    one write per task, unless its document is large.
    """

    def __init__(self, channel: ParentChannel, running: RunningTasks, output: OutputCapture) -> None:
        self._channel = channel
        self._running = running.attempts
        self._output = output
        self._unsent: list[Report] = []

    def begin(self, attempt: Attempt) -> None:
        self._running.add(attempt)
        self._unsent.append(TaskBegan(attempt.chunk, attempt.position))
        self.flush()
        attempt.began_at = time.monotonic()

    def end(self, attempt: Attempt, outcome: EncodedOutcome) -> None:
        run_ms = 1000 * (time.monotonic() - attempt.began_at)
        self._running.discard(attempt)
        if self._output.partial_lines:
            self._output.flush_task(attempt.key)
        is_large = len(outcome.document) > LARGE_DOCUMENT_CHARS
        if is_large:
            self.flush()
        self._unsent.append(TaskEnded(attempt.chunk, attempt.position, outcome, run_ms))
        if is_large:
            self.flush()

    def flush(self) -> None:
        if self._unsent:
            self._channel.send(*self._unsent)
            self._unsent.clear()


class RunningTasks:
    """The attempts that have begun and not ended; may be read from any thread."""

    def __init__(self) -> None:
        self.attempts: set[Attempt] = set()

    def current_key(self) -> AttemptKey | None:
        """The task of the calling code; in a thread started by a task, the only running task, if there is just one."""
        if isinstance(attempt := CURRENT_TASK.get(), Attempt):
            return attempt.key
        attempts = tuple(self.attempts)
        return attempts[0].key if len(attempts) == 1 else None


class OutputCapture:
    """Replaces sys.stdout and sys.stderr with streams that send each line to the worker."""

    def __init__(self, channel: ParentChannel, current_key: Callable[[], AttemptKey | None]) -> None:
        self.partial_lines: dict[tuple[Stream, AttemptKey | None], str] = {}
        """The unfinished last lines of each task."""
        self._streams = (
            TaskOutputStream(channel, "stdout", current_key, self.partial_lines),
            TaskOutputStream(channel, "stderr", current_key, self.partial_lines),
        )
        sys.stdout, sys.stderr = self._streams
        os.register_at_fork(after_in_child=self._use_pipes)

    def flush_task(self, key: AttemptKey) -> None:
        for stream in self._streams:
            stream.flush_task(key)

    def _use_pipes(self) -> None:
        for stream in self._streams:
            stream.use_pipe()


class TaskOutputStream(io.TextIOBase):
    """A text stream that sends complete lines to the worker, tagged with the task that printed them.

    A process forked by a task has no channel: its output goes to the inherited pipe instead.
    """

    def __init__(
        self,
        channel: ParentChannel,
        stream: Stream,
        current_key: Callable[[], AttemptKey | None],
        partial_lines: dict[tuple[Stream, AttemptKey | None], str],
    ) -> None:
        self._channel = channel
        self._stream: Stream = stream
        self._current_key = current_key
        self._partial_lines = partial_lines
        self._write_lock = threading.RLock()
        self._pipe: TextIO | None = None
        self.buffer = _OutputBuffer(self)

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # a property in C as well
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor that programs started by tasks inherit; the worker reads its pipe too."""
        return _STREAM_FDS[self._stream]

    def write(self, text: str, /) -> int:
        if self._pipe is not None:
            return self._pipe.write(text)
        key = self._current_key()
        with self._write_lock:
            *lines, rest = (self._partial_lines.pop((self._stream, key), "") + text).split("\n")
            while len(rest) > MAX_LINE_CHARS:
                lines.append(rest[:MAX_LINE_CHARS])
                rest = rest[MAX_LINE_CHARS:]
            if rest:
                self._partial_lines[self._stream, key] = rest
        self._send_lines(key, *lines)
        return len(text)

    def flush_task(self, key: AttemptKey) -> None:
        """Send the task's last line if it does not end with a newline."""
        if rest := self._partial_lines.pop((self._stream, key), ""):
            self._send_lines(key, rest)

    def flush(self) -> None:
        if self._pipe is not None:
            self._pipe.flush()

    def use_pipe(self) -> None:
        """Write to the pipe from now on, also for logging handlers that hold this stream."""
        self._pipe = open(  # noqa: SIM115  # for as long as the process lives
            self.fileno(), "w", buffering=1, errors="backslashreplace", closefd=False
        )

    def _send_lines(self, key: AttemptKey | None, *lines: str) -> None:
        # Lone surrogates cannot be encoded in a message.
        encodable = [line[:MAX_LINE_CHARS].encode(errors="backslashreplace").decode() for line in lines]
        for start in range(0, len(encodable), MAX_LINES_PER_SEND):
            lines_sent = encodable[start : start + MAX_LINES_PER_SEND]
            self._channel.send(*(OutputLine(key, self._stream, line) for line in lines_sent))


class _OutputBuffer(io.RawIOBase):
    """`sys.stdout.buffer`, for code that writes bytes."""

    def __init__(self, stream: TaskOutputStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        written = bytes(data)
        self._stream.write(written.decode(errors="replace"))
        return len(written)
