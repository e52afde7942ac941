"""The ids this process gives out."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

from horsies.model.ids import RANDOM_BYTES, mint, series


class IdSource:
    """Mints ids that rise within this process, from any thread; a forked child starts a series of its own.

    One is enough for a process and lives as long as it: each is known to the fork hook for ever.
    """

    def __init__(self) -> None:
        self._start_afresh()
        os.register_at_fork(after_in_child=self._start_afresh)

    def next(self) -> UUID:
        with self._lock:
            return self._minted()

    def take(self, count: int) -> list[str]:
        """So many ids in a row, as text."""
        with self._lock:
            taken = series(self._minted(), count)
            self._last = UUID(taken[-1]) if taken else self._last
            return taken

    def _minted(self) -> UUID:
        self._last = mint(time.time_ns() // 1_000_000, os.urandom(RANDOM_BYTES), self._last)
        return self._last

    def _start_afresh(self) -> None:
        # Two processes that counted on from the same id would make the same ids; and the lock may have been held
        # by a thread that the child does not have.
        self._lock = threading.Lock()
        self._last: UUID | None = None


IDS = IdSource()
