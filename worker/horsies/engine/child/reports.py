"""The child's side of the channel to the worker: reports, commands, and captured output of tasks."""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, TextIO

from horsies.engine.child import lifetime
from horsies.engine.child.lifetime import exit_with
from horsies.engine.child.runner import Attempt
from horsies.engine.pool.protocol import (
    MAX_COMMAND_BYTES,
    OUTPUT_LEVELS,
    OUTPUT_LOGGER,
    READ_BYTES,
    Command,
    EncodedOutcome,
    ExitStatus,
    FrameReader,
    LogLine,
    Report,
    TaskBegan,
    TaskCompleted,
    TaskFailed,
    TaskLabel,
    decode_command,
    encode,
    encode_frame,
    parse_details,
)
from horsies.log import enable_loggers, extras
from horsies.model.task import TaskAttemptOutcome
from horsies.model.task_result import safe_stringify
from horsies.registry.invocation import CURRENT_TASK

MAX_LINE_CHARS = 16 * 1024
MAX_TRACEBACK_CHARS = 64 * 1024
MAX_FIELDS = 256
"""Further fields of a log record are left out."""
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
            self._output.flush_task(attempt)
        is_large = len(outcome.document) > LARGE_DOCUMENT_CHARS
        if is_large:
            self.flush()
        if outcome.outcome is TaskAttemptOutcome.COMPLETED:
            self._unsent.append(TaskCompleted(attempt.chunk, attempt.position, outcome.document, run_ms))
        else:
            self._unsent.append(TaskFailed(attempt.chunk, attempt.position, outcome, run_ms))
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

    def current(self) -> Attempt | None:
        """The task of the calling code; in a thread started by a task, the only running task, if there is just one."""
        if isinstance(attempt := CURRENT_TASK.get(), Attempt):
            return attempt
        attempts = tuple(self.attempts)
        return attempts[0] if len(attempts) == 1 else None


class OutputCapture:
    """Sends printed lines and log records of the child to the worker, tagged with their task.

    Replaces sys.stdout and sys.stderr when it is created. `add_log_handler` comes later, after the user's code has
    configured logging.
    """

    def __init__(self, channel: ParentChannel, current_task: Callable[[], Attempt | None]) -> None:
        self._channel = channel
        self._current_task = current_task
        self.partial_lines: dict[tuple[str, Attempt | None], str] = {}
        """The unfinished last lines of each task, by stream."""
        self.streams = TaskOutputStream("stdout", self), TaskOutputStream("stderr", self)
        sys.stdout, sys.stderr = self.streams
        os.register_at_fork(after_in_child=self._use_pipes)

    def add_log_handler(self, level: int) -> None:
        """Send records that reach the root logger to the worker; set its level unless the user's code has done so."""
        enable_loggers()
        root = logging.getLogger()
        if not root.handlers and root.level == logging.WARNING:
            root.setLevel(level)
        worker = TaskLogHandler(self)
        for handler in root.handlers:
            worker.forward(handler)
        root.addHandler(worker)

    def send(self, attempt: Attempt | None, level: int, logger: str, *messages: str) -> None:
        label = _label(attempt)
        for start in range(0, len(messages), MAX_LINES_PER_SEND):
            sent = messages[start : start + MAX_LINES_PER_SEND]
            self._channel.send(*(LogLine(label, level, logger, encodable(message)) for message in sent))

    def send_record(
        self, record: logging.LogRecord, text: str, exception: str | None, *, fields: Mapping[str, object]
    ) -> None:
        self._channel.send(
            LogLine(
                _label(self._current_task()),
                record.levelno,
                encodable(record.name),
                encodable(text),
                encodable(exception, limit=MAX_TRACEBACK_CHARS) if exception else None,
                {encodable(name): _field(value) for name, value in islice(fields.items(), MAX_FIELDS)},
            )
        )

    def write(self, stream: str, text: str) -> None:
        """Send the complete lines of `text` and keep the rest; the caller holds the lock of its stream."""
        attempt = self._current_task()
        *lines, rest = (self.partial_lines.pop((stream, attempt), "") + text).split("\n")
        while len(rest) > MAX_LINE_CHARS:
            lines.append(rest[:MAX_LINE_CHARS])
            rest = rest[MAX_LINE_CHARS:]
        if rest:
            self.partial_lines[stream, attempt] = rest
        self.send(attempt, OUTPUT_LEVELS[stream], OUTPUT_LOGGER, *lines)

    def flush_task(self, attempt: Attempt) -> None:
        """Send the task's last lines if they do not end with a newline."""
        for stream, level in OUTPUT_LEVELS.items():
            if rest := self.partial_lines.pop((stream, attempt), ""):
                self.send(attempt, level, OUTPUT_LOGGER, rest)

    def _use_pipes(self) -> None:
        for stream in self.streams:
            stream.use_pipe()


def _label(attempt: Attempt | None) -> TaskLabel | None:
    if attempt is None:
        return None
    task = attempt.assignment
    return TaskLabel(task.task_id, task.task_name, parse_details(task.details).attempts + 1)


def encodable(text: str, *, limit: int = MAX_LINE_CHARS) -> str:
    """Truncate, and escape lone surrogates, which cannot be encoded in a message."""
    return text[:limit].encode(errors="backslashreplace").decode()


def _field(value: object) -> str | bool | int | float | None:
    if value is None or isinstance(value, bool | float):
        return value
    # Larger integers cannot be encoded.
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    return encodable(safe_stringify(str, value))


class TaskLogHandler(logging.Handler):
    """Sends log records to the worker, except those that a console handler of the user shows."""

    def __init__(self, output: OutputCapture) -> None:
        super().__init__()
        self._output = output
        self._tracebacks = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if any(map(self._is_console, _handlers_of(record.name))):
                return
            message, exception = record.getMessage(), None
            if record.exc_info or record.stack_info:
                exception = self._tracebacks.format(record).removeprefix(f"{message}\n")
            if lifetime.is_forked:  # has no channel
                lines = [f"{record.levelname} {record.name}  {message}", *filter(None, [exception])]
                sys.stderr.write("".join(f"{line}\n" for line in lines))
            else:
                self._output.send_record(record, message, exception, fields=extras(record))
        except Exception:  # noqa: BLE001  # as all handlers do: logging must not fail a task
            self.handleError(record)

    def forward(self, handler: logging.Handler) -> None:
        """Send what a console handler formats as records: with their level, and a traceback in one record."""
        if type(handler).emit is logging.StreamHandler[TextIO].emit and self._is_console(handler):
            handler.addFilter(partial(self._send_formatted, handler))

    def _send_formatted(self, handler: logging.Handler, record: logging.LogRecord) -> bool:
        """A filter that sends the record in the format of the handler, which then does not write it."""
        if lifetime.is_forked:
            return True
        try:
            message, exception = handler.format(record), None
            if record.exc_info:
                message, _, exception = message.partition("\n")
            self._output.send_record(record, message, exception, fields={})
        except Exception:  # noqa: BLE001  # as in emit
            handler.handleError(record)
        return False

    def _is_console(self, handler: logging.Handler) -> bool:
        # That of rich has a console; where the records in a queue go is the user's decision too.
        target = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
        return target in (*self._output.streams, sys.__stdout__, sys.__stderr__) or hasattr(handler, "enqueue")


def _handlers_of(name: str) -> Iterator[logging.Handler]:
    """The handlers that a record of this logger reaches."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


class TaskOutputStream(io.TextIOBase):
    """A text stream whose lines become log lines of the worker.

    A process forked by a task has no channel: its output goes to the inherited pipe instead.
    """

    def __init__(self, name: str, output: OutputCapture) -> None:
        self._name = name
        self._output = output
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
        return _STREAM_FDS[self._name]

    def write(self, text: str, /) -> int:
        if self._pipe is not None:
            return self._pipe.write(text)
        with self._write_lock:
            self._output.write(self._name, text)
        return len(text)

    def flush(self) -> None:
        if self._pipe is not None:
            self._pipe.flush()

    def use_pipe(self) -> None:
        """Write to the pipe from now on, also for logging handlers that hold this stream."""
        self._pipe = open(  # noqa: SIM115  # for as long as the process lives
            self.fileno(), "w", buffering=1, errors="backslashreplace", closefd=False
        )


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
