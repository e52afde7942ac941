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
        with self._lock:
            self._last = order = rising(time.time_ns() // 1_000_000, os.urandom, self._last)
        return id_text(order)

    def take(self, count: int) -> list[str]:
        """So many ids in a row, as text."""
        with self._lock:
            first = rising(time.time_ns() // 1_000_000, os.urandom, self._last)
            self._last = first + count - 1 if count else self._last
        return id_texts(first, count)

    def _start_afresh(self) -> None:
        # Two processes that counted on from the same id would make the same ids; and the lock may have been held
        # by a thread that the child does not have.
        self._lock = threading.Lock()
        self._last: int | None = None


IDS = IdSource()
