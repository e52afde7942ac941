"""What moved, added up for those who watch: few small messages, however many tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from horsies.model.task import TaskStatus

LONGEST_PAYLOAD_BYTES: Final = 7_900
MOST_IDS: Final = 16
INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A move that some tasks of one queue made; `kind` is its name in `model.task.MOVES`. New tasks have no source."""

    kind: str
    queue: str
    source: TaskStatus | None
    target: TaskStatus


@dataclass(slots=True)
class _Sum:
    count: int
    ids: list[str]


class Summary:
    """Adds up moves until they are told, four times a second at most. Instants are seconds of any steady clock."""

    def __init__(self) -> None:
        self._sums: dict[Moved, _Sum] = {}
        self._told_at: float | None = None

    def add(self, moved: Moved, task_ids: Collection[str]) -> None:
        """Count tasks that moved, and remember the first of their ids."""
        total = self._sums.setdefault(moved, _Sum(0, []))
        total.count += len(task_ids)
        room = MOST_IDS - len(total.ids)
        if room > 0:
            total.ids += list(task_ids)[:room]

    def due_at(self) -> float | None:
        """From when `take` has something to say; None while nothing moved, minus infinity for at once."""
        if not self._sums:
            return None
        return float("-inf") if self._told_at is None else self._told_at + INTERVAL_S

    def take(self, now: float) -> list[str]:
        """The payloads to send now, one for each kind of move; none before the time has come."""
        due_at = self.due_at()
        if due_at is None or now < due_at:
            return []
        sums, self._sums, self._told_at = self._sums, {}, now
        return [_payload(moved, total) for moved, total in sums.items()]


def _payload(moved: Moved, total: _Sum) -> str:
    payload = _message(moved, total.count, total.ids)
    # Names come from rows that anyone may have written; a true count is worth more than a few ids.
    return payload if len(payload) <= LONGEST_PAYLOAD_BYTES else _message(moved, total.count, [])


def _message(moved: Moved, count: int, ids: list[str]) -> str:
    """ASCII, so that characters are bytes."""
    message = {"kind": moved.kind, "queue": moved.queue, "from": moved.source, "to": moved.target}
    return json.dumps(message | {"count": count, "ids": ids}, separators=(",", ":"))
