"""A program on a pseudo-terminal, and the text that the terminal shows."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.cells import cell_len

SEQUENCE = re.compile(
    r"\x1b\[([?<>=]?[0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_].*?\x1b\\|\x1b[=>()78cDEHM]"
)
UNFINISHED = re.compile(r"\x1b(?:\[[?<>=]?[0-9;]*|\][^\x07\x1b]*|[PX^_][^\x1b]*)?$")


class Terminal:
    """The cells of a terminal; knows the sequences that move the cursor and erase, and ignores all others."""

    def __init__(self, width: int, height: int) -> None:
        self._cells: dict[tuple[int, int], str] = {}
        self._rest = ""
        self._x = self._y = 0
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells.clear()

    def feed(self, data: str) -> None:
        data = self._rest + data
        cut = UNFINISHED.search(data)
        self._rest = data[cut.start() :] if cut else ""
        end = 0
        text = data[: cut.start()] if cut else data
        for found in SEQUENCE.finditer(text):
            self._write(text[end : found.start()])
            end = found.end()
            self._control(found.group(1) or "", found.group(2) or "")
        self._write(text[end:])

    def _control(self, parameters: str, final: str) -> None:
        match final:
            case "H":
                row, _, column = parameters.partition(";")
                self._y, self._x = int(row or 1) - 1, int(column or 1) - 1
            case "J":
                self._cells.clear()
            case _:
                return  # colours and modes

    def _write(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._y += 1
            elif character == "\r":
                self._x = 0
            else:
                self._cells[self._y, self._x] = character
                self._x += cell_len(character)

    @property
    def lines(self) -> list[str]:
        return ["".join(self._cells.get((y, x), " ") for x in range(self.width)) for y in range(self.height)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class TerminalProgram:
    """A program that draws on a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, terminal: Terminal) -> None:
        self.process = process
        self.terminal = terminal
        self._master = master
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int) -> None:
        self.terminal.resize(width, height)
        _set_size(self._master, width, height)

    def close_terminal(self) -> None:
        """Like closing the window: the kernel sends SIGHUP to the program."""
        os.close(self._master)
        self._master = -1

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            self.close_terminal()

    def wait_until(self, condition: Callable[[str], bool], *, within_s: float = 30.0) -> None:
        """Read the output until what the terminal shows meets the condition."""
        deadline = time.monotonic() + within_s
        while not condition(self.terminal.text):
            assert time.monotonic() < deadline, f"the terminal shows:\n{self.terminal.text}"
            assert self.process.poll() is None, f"the program ended, and the terminal shows:\n{self.terminal.text}"
            if select.select([self._master], [], [], 0.2)[0]:
                self.terminal.feed(self._decoder.decode(os.read(self._master, 65_536)))


def _set_size(descriptor: int, width: int, height: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


@contextmanager
def on_terminal(
    module: str,
    *arguments: str,
    size: tuple[int, int] = (120, 36),
    pass_fds: Sequence[int] = (),
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Generator[TerminalProgram]:
    """Run a module of Python on a new pseudo-terminal; it is killed at the end."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    own = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": os.pathsep.join(sys.path)}
    master, slave = pty.openpty()
    _set_size(slave, *size)
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        pass_fds=pass_fds,
        cwd=cwd,
        env=inherited | own | dict(environment or {}),
        # Its own session with this terminal, so that it gets the signal of a resize.
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),  # noqa: PLW1509
    )
    os.close(slave)
    program = TerminalProgram(process, master, Terminal(*size))
    try:
        yield program
    finally:
        program.end()
