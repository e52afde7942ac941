"""Connections to one database, made when needed and used again.

Taking one and giving it back costs no task, no timer and no round trip: a send holds a connection for one statement,
and the driver's own pool spent two timers and a task on that, a sixth of the whole send.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from horsies.errors import DatabaseUnreachable
from horsies.store.failures import LOST_CONNECTION

if TYPE_CHECKING:
    from horsies.store.link import Connection, Link

CHECK_AFTER_IDLE_S = 30.0
CHECK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """How many connections, how long to wait for one, and how long an idle one is kept."""

    smallest: int = 0
    largest: int = 15
    wait_s: float = 30.0
    idle_s: float = 1800.0
    check_idle: bool = True
    setting: str = "broker.pool_size"
    """What an operator would raise to have more of them."""


class Pool:
    """At most `largest` connections, the one used last first, so that the others can grow old and be closed.

    `smallest` are kept however long they lie idle; none is made before it is needed. Nothing is reset at release,
    since no session state is kept; a connection that lay idle for half a minute is asked whether it still lives.
    """

    def __init__(self, link: Link, size: PoolSize) -> None:
        self._link = link
        self._size = size
        self._free = size.largest
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: deque[tuple[Connection, float]] = deque()
        """Those that wait for work, each with the time since when; the one used last is on the right."""
        self._ageing: asyncio.TimerHandle | None = None
        self._is_closed = False

    def at_once(self) -> Connection | None:
        """As `acquire`, where that needs no waiting: a connection that was given back a moment ago; else None."""
        idle = self._idle
        if not self._free or not idle or time.monotonic() - idle[-1][1] >= CHECK_AFTER_IDLE_S:
            return None
        connection, _ = idle.pop()
        if connection.is_closed():
            return None
        self._free -= 1
        return connection

    async def acquire(self) -> Connection:
        """A connection of the caller's own until `release`; DatabaseUnreachable when all are in use for too long."""
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_turn()
        try:
            return await self._alive() or await self._link.connect()
        except BaseException:
            self._hand_on()
            raise

    def release(self, connection: Connection) -> None:
        """Take one back in whatever state it is."""
        if connection.is_closed():  # asked first: of one that was given up the driver knows nothing else
            self._hand_on()
        elif connection.is_in_transaction():
            self._hand_on()
            connection.terminate()
        else:
            self.give_back(connection)

    def give_back(self, connection: Connection) -> None:
        """The same for one whose last statement was answered, and which is therefore in order."""
        if self._waiting:
            self._hand_on()
        else:
            self._free += 1
        if self._is_closed:
            connection.terminate()
            return
        self._idle.append((connection, time.monotonic()))
        if self._ageing is None:
            self._watch_age()

    async def close(self) -> None:
        """Close what is idle; a connection in use is closed when it is released."""
        self._is_closed = True
        self._stop_watching()
        while self._idle:
            connection, _ = self._idle.pop()
            await _close(connection)

    def terminate(self) -> None:
        """Drop what is idle without a word; for a process that is going down or was forked."""
        self._is_closed = True
        self._stop_watching()
        while self._idle:
            connection, _ = self._idle.pop()
            connection.terminate()

    def _hand_on(self) -> None:
        """The turn goes to whoever waits longest; it is free only where nobody waits, so that nobody is overtaken."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _wait_for_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._size.wait_s):
                await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self._hand_on()  # it came in the very moment in which it was given up
            if not isinstance(error, TimeoutError):
                raise
            raise DatabaseUnreachable(
                f"all {self._size.largest} connections are in use, for {self._size.wait_s:g} s",
                hint=f"raise {self._size.setting} or broker.pool_timeout",
            ) from None

    async def _alive(self) -> Connection | None:
        """An idle connection, as far as can be known; a restarted server leaves only dead ones, which are dropped."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_closed():
                continue
            is_fresh = time.monotonic() - since < CHECK_AFTER_IDLE_S
            if is_fresh or not self._size.check_idle or await _answers(connection):
                return connection
        return None

    def _watch_age(self) -> None:
        self._ageing = asyncio.get_running_loop().call_later(self._size.idle_s, self._drop_old)

    def _stop_watching(self) -> None:
        if self._ageing is not None:
            self._ageing.cancel()
            self._ageing = None

    def _drop_old(self) -> None:
        self._ageing = None
        oldest_kept = time.monotonic() - self._size.idle_s
        while len(self._idle) > self._size.smallest and self._idle[0][1] <= oldest_kept:
            connection, _ = self._idle.popleft()
            connection.terminate()
        if self._idle:
            self._watch_age()


async def _answers(connection: Connection) -> bool:
    try:
        await connection.execute("SELECT 1", timeout=CHECK_TIMEOUT_S)
    except (asyncpg.PostgresError, *LOST_CONNECTION):
        connection.terminate()
        return False
    return True


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=CHECK_TIMEOUT_S)
    except (asyncpg.PostgresError, *LOST_CONNECTION):
        connection.terminate()
