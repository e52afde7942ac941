"""The ids this process gives out."""

from __future__ import annotations

import os
import threading
import time
from math import inf
from uuid import UUID

from horsies.model.task import format_ids, next_id_value

ID_BATCH_WINDOW_S = 0.01
ID_BATCH_SIZE = 16


class IdGenerator:
    """Mints ids that rise within this process, from any thread; a forked child starts a series of its own.

    One is enough for a process and lives as long as it: each is known to the fork hook for ever.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def next_uuid(self) -> UUID:
        return UUID(self.next_ids(1)[0])

    def next_id(self) -> str:
        """The next id as text, which is how a task's is held and sent.

        Making one takes ten times as long after a pause as in a tight loop, as does everything that is no longer in the
        processor's cache. One that is asked for soon after the last is therefore made together with those after it.
        """
        now = time.monotonic()
        if now >= self._batching_until:
            return self._generate(1, now)
        last, ready = self._ready
        if last != self._last:  # others were given out since, which are above these
            return self._generate(ID_BATCH_SIZE, now)
        try:
            return ready.pop()
        except IndexError:
            return self._generate(ID_BATCH_SIZE, now)

    def next_ids(self, count: int) -> list[str]:
        """So many ids in a row, as text."""
        return format_ids(self._reserve(count), count) if count else []

    def _generate(self, count: int, now: float) -> str:
        first = self._reserve(count)
        made, *ready = format_ids(first, count)
        ready.reverse()
        self._ready, self._batching_until = (
            (first + count - 1, ready),
            now + ID_BATCH_WINDOW_S,
        )  # from here on they are everybody's
        return made

    def _reserve(self, count: int) -> int:
        """The first of so many orders, which nobody else gets.

        A signal handler or a finalizer may come in between, in this very thread, and take some too. So what comes after
        an order is settled by one step that nothing interrupts, and whoever comes second goes on from there.
        """
        with self._lock:
            is_outermost, self._is_inside = not self._is_inside, True
            if is_outermost:
                self._after.clear()
            try:
                last = self._last
                while True:
                    first = next_id_value(time.time_ns() // 1_000_000, os.urandom, last)
                    end = first + count - 1
                    last = self._after.setdefault(last, end)
                    if last is end:
                        break
                self._last = end
                while (later := self._after.get(self._last)) is not None:
                    self._last = later
                return first
            finally:
                if is_outermost:
                    self._is_inside = False

    def _reset(self) -> None:
        # Two processes that counted on from the same id would make the same ids; and the lock may have been held
        # by a thread that the child does not have. Its holder may take it again: see `_taken`.
        self._lock = threading.RLock()
        self._last: int | None = None
        self._is_inside = False
        self._after: dict[int | None, int] = {}
        """The last of the orders that were taken after this one, while somebody is inside `_taken`."""
        self._ready: tuple[int | None, list[str]] = None, []
        """Ids that were made together, the next one at the end, and the order of the last of them."""
        self._batching_until = -inf


ID_GENERATOR = IdGenerator()
