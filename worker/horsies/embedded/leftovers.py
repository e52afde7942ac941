"""What a killed server leaves behind, and what must be gone before a new one starts on the same data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def server_processes(data: Path) -> list[int]:
    """Pids of the processes of a server on the data: each works in its folder, where a person's shell may stand too."""
    import psutil

    ours = {"name": "postgres", "cwd": str(data)}
    return [process.pid for process in psutil.process_iter(list(ours)) if process.info == ours]


def recorded_pid(record: Path) -> int | None:
    """The pid that a server wrote into a lock file of its own; it may be anybody's by now."""
    try:
        return int(record.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def forget_stranger(record: Path) -> None:
    """Remove a lock file whose pid has become a zombie or another program, which PostgreSQL takes for its server.

    Call only when no server answers and no process of one is left. A record of a pid that is gone stays:
    PostgreSQL clears it after a check of its own, which needs the record.
    """
    import psutil

    pid = recorded_pid(record)
    # Elsewhere a process may hide where it works, so that the caller could not have known.
    if sys.platform == "linux" and pid is not None and psutil.pid_exists(pid):
        record.unlink()
