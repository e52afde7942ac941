"""The ids this process gives out."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

from horsies.model.ids import id_text, id_texts, rising


class IdSource:
    """Mints ids that rise within this process, from any thread; a forked child starts a series of its own.

    One is enough for a process and lives as long as it: each is known to the fork hook for ever.
    """

    def __init__(self) -> None:
        self._start_afresh()
        os.register_at_fork(after_in_child=self._start_afresh)

    def next(self) -> UUID:
        return UUID(self.text())

    def text(self) -> str:
        """The next id as text, which is how a task's is held and sent."""
        return id_text(self._taken(1))

    def take(self, count: int) -> list[str]:
        """So many ids in a row, as text."""
        return id_texts(self._taken(count), count)

    def _taken(self, count: int) -> int:
        """The first of so many orders, which nobody else gets."""
        with self._lock:
            while True:
                last = self._last
                first = rising(time.time_ns() // 1_000_000, os.urandom, last)
                # A signal handler or a finalizer may have come in between, in this very thread, and taken the same.
                if self._last is last:
                    self._last = first + count - 1
                    return first

    def _start_afresh(self) -> None:
        # Two processes that counted on from the same id would make the same ids; and the lock may have been held
        # by a thread that the child does not have. Its holder may take it again: see `_taken`.
        self._lock = threading.RLock()
        self._last: int | None = None


IDS = IdSource()
