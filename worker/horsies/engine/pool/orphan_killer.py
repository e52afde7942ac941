"""A small helper process that kills the process groups of the children after the worker has died.

A child dies with its worker (see `horsies.engine.child.lifetime`), but programs started by its tasks would live on.
The helper knows the group of every child and kills those that are left when its standard input closes.

This file is also the program of that process. It imports nothing of the package and only what the helper needs, so it
starts in a few milliseconds and uses little memory.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    import subprocess


class OrphanKiller:
    """The worker's side. If the helper process was killed, the next change starts a new one."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add_group(self, group: int) -> None:
        self._groups.add(group)
        self._send(f"+{group}\n")

    def remove_group(self, group: int) -> None:
        """Forget an empty group; the kernel may soon reuse its number."""
        self._groups.discard(group)
        self._send(f"-{group}\n")

    def close(self) -> None:
        """Make the helper kill the remaining groups and wait until it has exited."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _send(self, line: str) -> None:
        if self._process is None or not self._write(line):
            import subprocess  # only the worker's side needs it; it takes 1.5 MB

            self.close()
            # A session of its own: Ctrl-C in the terminal must not reach the helper.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True
            )
            self._write("".join(f"+{group}\n" for group in sorted(self._groups)))

    def _write(self, text: str) -> bool:
        assert self._process is not None  # noqa: S101
        assert self._process.stdin is not None  # noqa: S101
        try:
            os.write(self._process.stdin.fileno(), text.encode())
        except BrokenPipeError:
            return False
        return True


def main() -> None:
    """Read group changes from standard input until it closes, then kill the remaining groups."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        try:  # noqa: SIM105  # contextlib is not imported
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


if __name__ == "__main__":
    main()
