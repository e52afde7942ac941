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
        self._since: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: Connection) -> None:
        self._since[connection] = time.monotonic()
        if self._timer is None and self._limit_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._limit_s / TICKS, self._look, self._limit_s)

    def end(self, connection: Connection) -> bool:
        """Whether it was not given up."""
        return self._since.pop(connection, None) is not None

    def stop(self) -> None:
        """Look no more, until the next statement begins; that may be in another event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, limit_s: float) -> None:
        self._timer = None
        oldest = time.monotonic() - limit_s
        for connection in [each for each, since in self._since.items() if since <= oldest]:
            del self._since[connection]
            connection.terminate()
        if self._since:
            self._timer = asyncio.get_running_loop().call_later(limit_s / TICKS, self._look, limit_s)
