"""The log of a service as JSON: whatever its process writes, each line of both its streams is one object."""

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
    """Whether this thread is at it."""

    is_going_on = False


class LogStream(io.RawIOBase):
    """A stream each of whose lines is a record of its own, whatever the level of the log; a flush ends a line."""

    def __init__(self, name: str, level: int, handler: logging.Handler, descriptor: int) -> None:
        self.name = name
        self._level = level
        self._handler = handler
        self._descriptor = descriptor
        self._unfinished = b""
        self._joining = threading.RLock()
        """Never held while the handler works, which has a lock of its own."""
        self._reentry_guard = _ReentryGuard()

    def as_text(self) -> TextIO:
        return io.TextIOWrapper(self, encoding="utf-8", errors="backslashreplace", write_through=True)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """For programs that are given this stream; they write past us."""
        return self._descriptor

    def write(self, data: Any, /) -> int:
        taken = bytes(data)
        with self._joining:
            *lines, self._unfinished = (self._unfinished + taken).split(b"\n")
        self._record(lines)
        return len(taken)

    def flush(self) -> None:
        with self._joining:
            rest, self._unfinished = self._unfinished, b""
        self._record([rest])

    def _record(self, lines: Sequence[bytes]) -> None:
        if self._reentry_guard.is_going_on:
            return  # what the handler says of its own failure would lead back to it
        self._reentry_guard.is_going_on = True
        try:
            for line in filter(None, lines):
                text = line.decode(errors="replace")
                self._handler.handle(logging.LogRecord(self.name, self._level, "", 0, "%s", (text,), None))
        finally:
            self._reentry_guard.is_going_on = False


def is_on() -> bool:
    """Whether every line of this process is an object already."""
    return isinstance(getattr(sys.stderr, "buffer", None), LogStream)


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Whether the command line, or else the environment, wants it: known before any setting could be read."""
    given = [following for option, following in pairwise(arguments) if option == _OPTION]
    given += [each.removeprefix(f"{_OPTION}=") for each in arguments if each.startswith(f"{_OPTION}=")]
    return (given or [os.environ.get("HORSIES_LOG__FORMAT", "")])[-1] == "json"


def redirect_streams() -> None:
    """From here on this process has no other lines: not of modules that print, nor of Python that warns."""
    (handler,) = logger.handlers
    logging.captureWarnings(capture=True)
    warnings = logging.getLogger("py.warnings")
    warnings.handlers[:], warnings.propagate = [handler], False
    sys.stdout = LogStream("stdout", logging.INFO, handler, 1).as_text()
    sys.stderr = LogStream("stderr", logging.WARNING, handler, 2).as_text()


def log_error(error: HorsiesError) -> None:
    """An error as a person would be shown it, one object a fault."""
    if not is_on():
        configure_logging(form="json")
    for each in error.faults:
        shown = {name: value for name, value in error_document(each).items() if name != "message"}
        trace = error if logger.isEnabledFor(logging.DEBUG) else None
        logger.error("%s", each.message, extra=shown, exc_info=trace)
