"""Generates task ids (UUIDv7): increasing within a process, safe across threads and forks."""

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
    """Generates increasing ids from any thread; a forked child starts its own sequence.

    Use the module's `ID_GENERATOR`: an instance is never freed, because the fork hook keeps a reference.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def next_uuid(self) -> UUID:
        return UUID(self.next_ids(1)[0])

    def next_id(self) -> str:
        """Return the next id as text.

        With a cold CPU cache, generating an id takes ten times as long as in a tight loop. So an id requested within
        `ID_BATCH_WINDOW_S` of the last one is generated together with the following `ID_BATCH_SIZE` - 1.
        """
        now = time.monotonic()
        if now >= self._batching_until:
            return self._generate(1, now)
        last, ready = self._ready
        if last != self._last:  # `next_ids` reserved ids since; the prepared ones would be out of order
            return self._generate(ID_BATCH_SIZE, now)
        try:
            return ready.pop()
        except IndexError:
            return self._generate(ID_BATCH_SIZE, now)

    def next_ids(self, count: int) -> list[str]:
        """Return `count` consecutive ids as text."""
        return format_ids(self._reserve(count), count) if count else []

    def _generate(self, count: int, now: float) -> str:
        first = self._reserve(count)
        generated, *ready = format_ids(first, count)
        ready.reverse()
        # From here on other threads may take from `ready`.
        self._ready, self._batching_until = (first + count - 1, ready), now + ID_BATCH_WINDOW_S
        return generated

    def _reserve(self, count: int) -> int:
        """Reserve `count` consecutive id values and return the first.

        A signal handler or finalizer may call this again in the same thread, between any two lines. The atomic
        `setdefault` decides which call gets the values after `last`; the other continues after those.
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
        # After a fork, continuing the parent's sequence would generate the same ids, and the lock may be held by a
        # thread that does not exist in the child. Reentrant because of signal handlers: see `_reserve`.
        self._lock = threading.RLock()
        self._last: int | None = None
        self._is_inside = False
        self._after: dict[int | None, int] = {}
        """Last value before a reservation, to the last value of that reservation; used inside `_reserve` only."""
        self._ready: tuple[int | None, list[str]] = None, []
        """Prepared ids in reverse order, and the value of the last of them."""
        self._batching_until = -inf


ID_GENERATOR = IdGenerator()
