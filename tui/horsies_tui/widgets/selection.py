"""Cursor and marks of a list, held by key and never by position: rows come, go and change places under them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Selection(Generic[K]):
    """Which row the cursor is on and which are marked. A mark belongs to an id, also while its row is not loaded."""

    def __init__(self) -> None:
        self.keys: tuple[K, ...] = ()
        self.cursor: K | None = None
        self.marks: set[K] = set()
        self.range_from: K | None = None
        self._position: dict[K, int] = {}

    @property
    def line(self) -> int:
        """Where the cursor's row stands; 0 in an empty list."""
        return 0 if self.cursor is None else self._position.get(self.cursor, 0)

    @property
    def chosen(self) -> tuple[K, ...]:
        """What an action would be about: the marked rows, those that are shown first; else the cursor's."""
        if self.marks:
            shown = [key for key in self.keys if key in self.marks]
            return (*shown, *(key for key in self.marks if key not in self._position))
        return () if self.cursor is None else (self.cursor,)

    def position(self, key: K) -> int | None:
        return self._position.get(key)

    def show(self, keys: Sequence[K]) -> None:
        """Take the rows as they are now. The cursor stays on its row, or goes to the one that took its place."""
        line = self.line
        self.keys = tuple(keys)
        self._position = {key: index for index, key in enumerate(self.keys)}
        if self.cursor not in self._position:
            self.cursor = self.keys[min(line, len(self.keys) - 1)] if self.keys else None
        if self.range_from not in self._position:
            self.range_from = None

    def move_to(self, line: int) -> None:
        """Put the cursor on a line, the nearest there is; an open range follows it."""
        if self.keys:
            self.cursor = self.keys[max(0, min(line, len(self.keys) - 1))]

    def toggle(self) -> None:
        """Mark the cursor's row, or take its mark away."""
        if self.cursor is not None:
            self.marks ^= {self.cursor}

    def mark_range(self) -> None:
        """Start a range at the cursor; the second time, mark all from there to the cursor."""
        if self.range_from is None:
            self.range_from = self.cursor
            return
        first, last = sorted((self._position[self.range_from], self.line))
        self.marks |= set(self.keys[first : last + 1])
        self.range_from = None

    def mark_all(self) -> None:
        """Mark every row that is loaded."""
        self.marks |= set(self.keys)

    def unmark(self, keys: Sequence[K] | None = None) -> None:
        """Take these marks away, or all."""
        self.marks -= set(self.marks if keys is None else keys)
        self.range_from = None
