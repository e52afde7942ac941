"""What one child has been handed and not given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.engine.frames import ProtocolFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horsies.engine.messages import Assignment, Key


class Hand:
    """Keys in the order they were handed over. A child that speaks of any other is out of its mind: `ProtocolFault`."""

    def __init__(self) -> None:
        self._has_begun: dict[Key, bool] = {}

    def __len__(self) -> int:
        return len(self._has_begun)

    def has_several(self) -> bool:
        return len(self._has_begun) > 1

    @property
    def begun(self) -> tuple[Key, ...]:
        return tuple(key for key, has_begun in self._has_begun.items() if has_begun)

    @property
    def unbegun(self) -> tuple[Key, ...]:
        return tuple(key for key, has_begun in self._has_begun.items() if not has_begun)

    def give(self, assignments: Iterable[Assignment]) -> None:
        """The only task of an idle child counts as begun: one that kills by being read must not go round for ever."""
        keys = [each.key for each in assignments]
        is_only_one = not self._has_begun and len(keys) == 1
        self._has_begun |= dict.fromkeys(keys, is_only_one)

    def begin(self, key: Key) -> None:
        self._check(key)
        self._has_begun[key] = True

    def take_back(self, *keys: Key) -> None:
        for key in keys:
            self._check(key)
            del self._has_begun[key]

    def _check(self, key: Key) -> None:
        if key not in self._has_begun:
            raise ProtocolFault(f"it speaks of task {key.task_id}, which it was not given")
