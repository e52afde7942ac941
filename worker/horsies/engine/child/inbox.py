"""What a child has been handed and has not begun."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horsies.engine.messages import Assignment, Key


class Inbox:
    """Assignments in order. One that was taken begins; one that was recalled never does; none is both.

    One thread takes and waits, another puts and recalls. Plain locks, since this stands in the way of every task: a
    condition costs several times as much.
    """

    def __init__(self) -> None:
        self._waiting: deque[Assignment] = deque()
        self._changing = threading.Lock()
        self._silence = threading.Lock()
        """Held while nothing has changed since the last look."""
        self._is_closed = False
        self._listener: Callable[[], object] | None = None

    def put(self, assignments: Iterable[Assignment]) -> None:
        with self._changing:
            self._waiting.extend(assignments)
            self._tell()

    def close(self) -> None:
        """No more will come."""
        with self._changing:
            self._is_closed = True
            self._tell()

    def recall(self, key: Key | None = None) -> tuple[Key, ...]:
        """Take out what waits, or the one called `key` if it does."""
        with self._changing:
            recalled = tuple(each.key for each in self._waiting if key is None or each.key == key)
            self._waiting = deque(each for each in self._waiting if each.key not in recalled)
            return recalled

    def take(self, *, suits: Callable[[Assignment], bool]) -> Assignment | None:
        """The first in line if it is there and suits; never waits."""
        with self._changing:
            return self._waiting.popleft() if self._waiting and suits(self._waiting[0]) else None

    def is_next(self, suits: Callable[[Assignment], bool]) -> bool:
        """Whether the first in line is there and suits."""
        with self._changing:
            return bool(self._waiting) and suits(self._waiting[0])

    @property
    def is_over(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return self._is_closed and not self._waiting

    def wait(self) -> None:
        """Until something waits, or nothing will come any more."""
        while not self._waiting and not self._is_closed:
            self._silence.acquire()

    def on_change(self, listener: Callable[[], object] | None) -> None:
        """Call `listener`, in the thread that made the change, for what arrives from now on."""
        with self._changing:
            self._listener = listener

    def _tell(self) -> None:
        if self._silence.locked():
            self._silence.release()
        if self._listener is not None:
            self._listener()
