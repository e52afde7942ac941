"""Where files of a test run are made fastest."""

from __future__ import annotations

import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")  # named by Linux
NEEDED_BYTES = 4 * 2**30


def roomy_memory() -> Path | None:
    """The machine's file system in memory, if it has room for a run; None means the usual place.

    A database for a test is some 300 new files: 30 ms there, and up to a second on a slow disk.
    """
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= NEEDED_BYTES
    return MEMORY if has_room else None
