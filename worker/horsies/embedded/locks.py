"""File locks that the kernel drops with their process, so that no count can go stale."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Generator[int]:
    """Wait for the lock and hold it; a program that is given the descriptor holds it with us, and after us."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        # Said aloud because a process forked meanwhile has the descriptor too and would hold the lock for its life.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


class Share:
    """A share of the lock; it lasts until it is closed here and in every process that was forked meanwhile."""

    def __init__(self, path: Path) -> None:
        self._lock: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give it up. Again is harmless: the number of a closed descriptor may be another file's by then."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def is_held(path: Path) -> bool:
    """Whether anyone holds the lock or a share of it. Never creates the file."""
    with _attempt(path) as obtained:
        return not obtained


def is_held_while(gate: Path, path: Path) -> bool:
    """As `is_held`, holding `gate` meanwhile so that our look is not taken for a user; a closed gate counts as held."""
    with _attempt(gate) as obtained:
        return not obtained or is_held(path)


@contextmanager
def _attempt(path: Path) -> Generator[bool]:
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _locked_at_once(lock)
    finally:
        os.close(lock)


def _locked_at_once(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
