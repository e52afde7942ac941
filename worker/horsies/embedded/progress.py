"""Shows on stderr why the first command takes longer than later ones."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import cycle

logger = logging.getLogger("horsies.embedded")

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_FRAMES = "|/-\\"
_FRAME_S = 0.1
_CLEAR_LINE = "\r\x1b[K"


@contextmanager
def show_progress(text: str) -> Generator[None]:
    """Show the text while the block runs: with a spinner and the time on a terminal, else as one line.

    Shows nothing if warnings of horsies are not logged, for example with --quiet.
    """
    started = time.monotonic()
    done = threading.Event()
    spinner = threading.Thread(target=_spin, args=(text, done), daemon=True)
    is_shown = logger.isEnabledFor(logging.WARNING)
    is_terminal = is_shown and _is_terminal()
    if is_terminal:
        with suppress(RuntimeError):  # the interpreter is exiting
            spinner.start()
    elif is_shown:
        _write(f"{text}\n")
    try:
        yield
    finally:
        done.set()
        if spinner.ident is not None:
            spinner.join()
        if is_terminal:
            _write(f"{_CLEAR_LINE}{text}: {time.monotonic() - started:.1f} s\n")


def _spin(text: str, done: threading.Event) -> None:
    encoding = (getattr(sys.stderr, "encoding", None) or "ascii").lower()
    width = shutil.get_terminal_size().columns  # a longer line would wrap, and only its last part would be replaced
    for frame in cycle(_FRAMES if encoding.startswith("utf") else _ASCII_FRAMES):
        _write(f"{_CLEAR_LINE}{f'{frame} {text}'[: width - 1]}")
        if done.wait(_FRAME_S):
            return


def _is_terminal() -> bool:
    with suppress(ValueError, AttributeError):  # stderr is closed, or there is none
        return sys.stderr.isatty()
    return False


def _write(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
        sys.stderr.write(text)
        sys.stderr.flush()
