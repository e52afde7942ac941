"""Which claims are made for places beside coroutines that run: only coroutines can take them.

A claim takes what is first in line and cannot choose. A function that it brings goes back and is first in line again,
so the next such claim waits until it has found a place of its own. Meanwhile the coroutines that run come to their end
and none joins them, which makes that place.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 60.0
_WIDEST: Final = 1024


@dataclass(slots=True)
class Admission:
    """How many tasks at a time may be claimed for such places. Times are those of one monotonic clock, in seconds."""

    _width: int = 1
    _awaited: UUID | None = None
    """The function that was turned away last."""
    _shut_until: float = -inf
    _pause_s: float = FIRST_PAUSE_S

    def most(self, now: float) -> int:
        """None while a function is awaited, but for a look now and then: another worker may have taken it."""
        return 0 if now < self._shut_until else self._width

    def found(self, task_ids: Iterable[UUID], *, is_last_async: bool, now: float) -> None:
        """A claim has brought these, and none was turned away; one that ends with a coroutine dares twice as many."""
        if self._awaited is not None:
            if self._awaited not in task_ids and not (is_last_async and now >= self._shut_until):
                return
            self._awaited, self._shut_until, self._pause_s = None, -inf, FIRST_PAUSE_S
        if is_last_async:
            self._width = min(_WIDEST, 2 * self._width)

    def turned_away(self, task_id: UUID, now: float) -> float:
        """A function was claimed for such a place; returns the seconds until the next look."""
        pause_s = self._pause_s
        self._width, self._awaited, self._shut_until = 1, task_id, now + pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        return pause_s
