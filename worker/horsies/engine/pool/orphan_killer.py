"""A small process that outlives its worker by a moment, to kill what tasks have started in the groups of its children.

A child dies with its worker by itself, but then nobody is left to end its group: a program that a task has started
would run on. The warden is told of every group and kills those that are left when its standard input closes.

This file is also the program, run without the rest of the package so that it starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys


class OrphanKiller:
    """The worker's end. A warden that was killed is replaced as soon as there is something to tell it."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add_group(self, group: int) -> None:
        self._groups.add(group)
        self._send(f"+{group}\n")

    def remove_group(self, group: int) -> None:
        """The group is empty; its number may soon belong to a stranger."""
        self._groups.discard(group)
        self._send(f"-{group}\n")

    def close(self) -> None:
        """Let it kill what is left, and wait until it has."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _send(self, line: str) -> None:
        if self._process is None or not self._write(line):
            self.close()
            self._process = _spawn()
            self._write("".join(f"+{group}\n" for group in sorted(self._groups)))

    def _write(self, text: str) -> bool:
        assert self._process is not None  # noqa: S101
        assert self._process.stdin is not None  # noqa: S101
        try:
            os.write(self._process.stdin.fileno(), text.encode())
        except BrokenPipeError:
            return False
        return True


def _spawn() -> subprocess.Popen[bytes]:
    # Out of the terminal's reach: the interrupt that ends the worker must not end its warden.
    return subprocess.Popen([sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
