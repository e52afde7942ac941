"""JSON logs of a service: every line that the process writes to stdout or stderr becomes one JSON object."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TextIO

from horsies.errors import HorsiesError
from horsies.log import configure_logging
from horsies_ops.cli.output import error_document

_OPTION: Final = "--log-format"

logger = logging.getLogger("horsies")


class _ReentryGuard(threading.local):
    """Per thread: whether a record is being written."""

    is_writing = False


class LogStream(io.RawIOBase):
    """A stream that logs each line as a record, regardless of the log level. A flush ends the current line."""

    def __init__(self, name: str, level: int, handler: logging.Handler, descriptor: int) -> None:
        self.name = name
        self._level = level
        self._handler = handler
        self._descriptor = descriptor
        self._unfinished = b""
        # Guards _unfinished. Never held while the handler runs, because the handler has a lock of its own.
        self._buffer_lock = threading.RLock()
        self._reentry_guard = _ReentryGuard()

    def as_text(self) -> TextIO:
        return io.TextIOWrapper(self, encoding="utf-8", errors="backslashreplace", write_through=True)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return the descriptor that subprocesses inherit; they bypass the log."""
        return self._descriptor

    def write(self, data: Any, /) -> int:
        written = bytes(data)
        with self._buffer_lock:
            *lines, self._unfinished = (self._unfinished + written).split(b"\n")
        self._log(lines)
        return len(written)

    def flush(self) -> None:
        with self._buffer_lock:
            rest, self._unfinished = self._unfinished, b""
        self._log([rest])

    def _log(self, lines: Sequence[bytes]) -> None:
        if self._reentry_guard.is_writing:
            return  # the handler reports its own failures to stderr, which would recurse
        self._reentry_guard.is_writing = True
        try:
            for line in filter(None, lines):
                text = line.decode(errors="replace")
                self._handler.handle(logging.LogRecord(self.name, self._level, "", 0, "%s", (text,), None))
        finally:
            self._reentry_guard.is_writing = False


def is_on() -> bool:
    """Return whether the streams of this process are redirected already."""
    return isinstance(getattr(sys.stderr, "buffer", None), LogStream)


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Return whether the command line or the environment asks for JSON; needed before settings can be read."""
    formats = [value for option, value in pairwise(arguments) if option == _OPTION]
    formats += [argument.removeprefix(f"{_OPTION}=") for argument in arguments if argument.startswith(f"{_OPTION}=")]
    # The last one wins, as typer decides.
    return (formats or [os.environ.get("HORSIES_LOG__FORMAT", "")])[-1] == "json"


def redirect_streams() -> None:
    """Replace stdout and stderr, so that printed lines and Python warnings become log records too."""
    (handler,) = logger.handlers
    logging.captureWarnings(capture=True)
    warnings = logging.getLogger("py.warnings")
    # Not propagated: a handler of the root logger could print the warning again as text.
    warnings.handlers[:], warnings.propagate = [handler], False
    sys.stdout = LogStream("stdout", logging.INFO, handler, 1).as_text()
    sys.stderr = LogStream("stderr", logging.WARNING, handler, 2).as_text()


def log_error(error: HorsiesError) -> None:
    """Log an error, one record for each of its faults."""
    if not is_on():
        configure_logging(form="json")
    for fault in error.faults:
        fields = {name: value for name, value in error_document(fault).items() if name != "message"}
        exception = error if logger.isEnabledFor(logging.DEBUG) else None
        logger.error("%s", fault.message, extra=fields, exc_info=exception)
