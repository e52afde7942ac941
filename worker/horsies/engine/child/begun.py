"""What a child is at work on."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.engine.messages import Key

SPEAKER: ContextVar[Key | None] = ContextVar("horsies_speaker", default=None)
"""The task whose code runs in this context."""


class Begun:
    """What has begun and not ended; other threads may ask at any time."""

    def __init__(self) -> None:
        self._keys: dict[Key, None] = {}

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(self._keys)

    def add(self, key: Key) -> None:
        self._keys[key] = None

    def remove(self, key: Key) -> None:
        del self._keys[key]

    def speaker(self) -> Key | None:
        """The task whose code asks; for a thread that some task has started, the only one there is, if so."""
        keys = self.keys
        return SPEAKER.get() or (keys[0] if len(keys) == 1 else None)
