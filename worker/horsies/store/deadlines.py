"""Giving up on statements that take too long."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.store.link import Connection

TICKS = 10
"""How often within the limit the statements under way are looked at."""


class Deadlines:
    """One timer for all statements under way: the driver's own, one for each, costs a short statement a thirtieth.

    A statement is given up between its limit and a tenth more, and its connection with it. The server's limit, a little
    longer than ours, ends what it may still be doing.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None
        self.under_way: dict[Connection, float] = {}
        """When the statement on a connection began. Whoever begins one puts it here, and takes it away at its end: it
        is no longer there where the connection was given up."""
        self.are_watched = limit_s is None

    def watch(self) -> None:
        """To be called where they are not watched, after one has begun."""
        if self._limit_s is not None:
            self.are_watched = True
            self._timer = asyncio.get_running_loop().call_later(self._limit_s / TICKS, self._look, self._limit_s)

    def stop(self) -> None:
        """Look no more, until the next statement begins; that may be in another event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.are_watched = False

    def _look(self, limit_s: float) -> None:
        self._timer, self.are_watched = None, False
        oldest = time.monotonic() - limit_s
        for connection in [each for each, since in self.under_way.items() if since <= oldest]:
            del self.under_way[connection]
            connection.terminate()
        if self.under_way:
            self.watch()
