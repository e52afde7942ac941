"""The newest changes that were heard, kept whichever screen is seen, so that Events can show what has just been."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies_ops.reads.changes import Topic

if TYPE_CHECKING:
    from datetime import datetime

    from horsies_ops.reads.changes import Change

LENGTH: Final = 2_000
MINUTE_S: Final = 60

_RECORDED: Final = frozenset({Topic.TASK_NEW, Topic.TASKS, Topic.WORKFLOW, Topic.FEED})
"""Beats are too many and say too little; ends of tasks are heard as moves too; events are read as rows."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A change, and the how-manieth it was."""

    number: int
    change: Change


class Tape:
    """The last 2,000; nothing is written to disk."""

    def __init__(self, length: int = LENGTH) -> None:
        self._heard: deque[Heard] = deque(maxlen=length)
        self._number = 0
        self._per_second: Counter[int] = Counter()

    def hear(self, change: Change) -> None:
        if change.topic in _RECORDED:
            self._number += 1
            self._heard.append(Heard(self._number, change))
            self._per_second[_second(change.at)] += change.count

    def per_minute(self, now: datetime) -> int:
        """How much was heard in the last minute, also of what is no longer kept; `now` as changes have it."""
        since = _second(now) - MINUTE_S
        for second in [each for each in self._per_second if each <= since]:
            del self._per_second[second]
        return self._per_second.total()

    @property
    def heard(self) -> tuple[Heard, ...]:
        """All that is kept, the oldest first."""
        return tuple(self._heard)


def _second(at: datetime) -> int:
    return int(at.timestamp())
