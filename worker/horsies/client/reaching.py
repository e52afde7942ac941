"""A database within reach of all event loops of a process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.store.open import Links, Reached


class SharedReach:
    """What sessions share: an embedded server is let go of when this is closed and the last of them has left."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self.lease = reached.lease
        self._sharing = threading.Lock()
        self._sessions = 0
        self._is_closed = False

    @property
    def links(self) -> Links:
        return self._reached.links

    @property
    def is_lost(self) -> bool:
        """Whether the server was let go of under the sessions, as at interpreter exit; reach it again."""
        return self.lease is not None and not self.lease.is_held

    def join(self) -> bool:
        """Count one session in; False when this was closed meanwhile."""
        with self._sharing:
            self._sessions += not self._is_closed
            return not self._is_closed

    def leave(self) -> bool:
        """Count one session out; True for the last of a closed one, which has to `release` it."""
        with self._sharing:
            self._sessions -= 1
            return self._is_closed and not self._sessions

    def close(self) -> bool:
        """Let nobody else in; True when nobody is left who would `release` it."""
        with self._sharing:
            self._is_closed = True
            return not self._sessions

    def release(self) -> None:
        """Let go of an embedded server; blocks while it stops, and again is harmless."""
        self._reached.release()
