"""A small helper process that kills the process groups of the children after the worker has died.

A child dies with its worker (see `horsies.engine.child.lifetime`), but programs started by its tasks would live on. The
helper knows the group of every child and kills those that are left when its standard input closes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Both programs read lines with all current groups. A line that the death of the worker has cut off does not count.
_SHELL_PROGRAM = """
trap "" HUP INT TERM
while read -r line; do groups=$line; done
for group in $groups; do kill -s KILL -- "-$group"; done
"""
_PYTHON_PROGRAM = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
groups = []
for line in sys.stdin:
    if line.endswith("\\n"):
        groups = line.split()
for group in groups:
    try:
        os.killpg(int(group), signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
"""
HELPER_NAME = "horsies-orphan-killer"


def helper_command(shell: Path = Path("/bin/sh")) -> list[str]:
    """The helper as a shell script, which takes 0.3 MB; as a Python program of 4 MB in an image without a shell."""
    if shell.exists():
        return [str(shell), "-c", _SHELL_PROGRAM, HELPER_NAME]
    return [sys.executable, "-I", "-S", "-c", _PYTHON_PROGRAM, HELPER_NAME]


class OrphanKiller:
    """The worker's side. If the helper process was killed, the next change starts a new one."""

    def __init__(self, command: list[str] | None = None) -> None:
        self._command = command or helper_command()
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add_group(self, group: int) -> None:
        self._groups.add(group)
        self._send_groups()

    def remove_group(self, group: int) -> None:
        """Forget an empty group; the kernel may soon reuse its number."""
        self._groups.discard(group)
        self._send_groups()

    def close(self) -> None:
        """Make the helper kill the remaining groups and wait until it has exited."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _send_groups(self) -> None:
        if self._process is None or not self._write(self._process):
            self.close()
            # A session of its own: Ctrl-C in the terminal must not reach the helper. No environment: it could define
            # functions for the shell.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, env={}
            )
            self._write(self._process)

    def _write(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.stdin is not None  # noqa: S101
        try:
            os.write(process.stdin.fileno(), f"{' '.join(map(str, sorted(self._groups)))}\n".encode())
        except BrokenPipeError:
            return False
        return True
