"""The connection of the screens: opened, listened to, measured, and opened again when it is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.errors import BrokerErrorCode, ConfigurationError, DatabaseUnreachable, HorsiesError
from horsies_tui.connection import Connection, State, steady
from horsies_tui.feed import hear

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies_tui.clock import DatabaseClock
    from horsies_tui.source import Opener, Source
    from horsies_tui.store import Store

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 10.0
MOST_DOUBLINGS: Final = 10
MEASURED_EVERY_S: Final = 15.0
GIVEN_UP_AFTER: Final = timedelta(seconds=3)
"""A question that ran out of time took at least so long."""


class Session:
    """Keeps the store connected; every change of how that stands goes to `tell`."""

    def __init__(
        self,
        opener: Opener,
        store: Store,
        clock: DatabaseClock,
        tell: Callable[[Connection], object],
        *,
        read_only: bool,
    ) -> None:
        self.read_only = read_only
        self.connection = Connection()
        self.source: Source | None = None
        self._opener = opener
        self._store = store
        self._clock = clock
        self._say = tell
        self._feed = State.CONNECTING
        self._again = asyncio.Event()
        self._failed_tries = 0
        """In a row, of connecting or of reaching the database again."""

    def try_now(self) -> None:
        """Do not wait for the next try."""
        self._again.set()

    def failed(self, error: HorsiesError) -> None:
        """A question got no answer; where nobody answers at all the connection is lost, whatever the feed says."""
        if not isinstance(error, DatabaseUnreachable) or not self.connection.is_up:
            return
        if isinstance(error.__cause__, TimeoutError):
            # A question too heavy for the time it has. Whether anybody is there at all, the next measurement tells.
            self._tell(replace(self.connection, latency=GIVEN_UP_AFTER))
        else:
            self._lose(error.message)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            try:
                async with self._opener(read_only=self.read_only) as source:
                    await self._use(source)
                raise DatabaseUnreachable("the feed has ended")
            except HorsiesError as error:
                if _is_final(error):
                    self._refuse(error)
                    await self._until_asked(None)
                else:
                    await self._until_asked(self._missed(error))

    def _refuse(self, error: HorsiesError) -> None:
        why = error.message if error.code is None else f"{error.code} {error.message}"
        self._tell(Connection(state=State.REFUSED, why=why, hint=error.help_text or ""))

    def _missed(self, error: HorsiesError) -> float:
        """One more try has failed; returns how many seconds to rest before the next, ever longer."""
        self._failed_tries += 1
        wait_s = min(FIRST_RETRY_S * 2 ** min(self._failed_tries - 1, MOST_DOUBLINGS), LAST_RETRY_S)
        retry_in = timedelta(seconds=wait_s)
        now = self._clock.now()
        self._tell(self.connection.lost(error.message, now, attempt=self._failed_tries, retry_in=retry_in))
        return wait_s

    def _lose(self, why: str) -> None:
        """The connection is gone; whether it can be had again is tried at once."""
        self._tell(self.connection.lost(why, self._clock.now(), attempt=self._failed_tries))
        self.try_now()

    async def _use(self, source: Source) -> None:
        self.source, self._feed = source, State.CONNECTING
        await self._measure(source)
        self._store.connect(source)
        measuring = asyncio.create_task(self._keep_measuring(source))
        try:
            await hear(source, self._store, self._heard)
        finally:
            measuring.cancel()
            self.source = None
            await self._store.disconnect()

    def _heard(self, state: State, detail: str) -> None:
        """The feed says how it stands."""
        self._feed = state
        if state is State.LOST:
            if self.connection.is_up:
                self._lose(detail)
        elif state is not self.connection.state:
            self._failed_tries = 0
            self._tell(Connection(state=state, latency=self.connection.latency))

    async def _keep_measuring(self, source: Source) -> None:
        wait_s = MEASURED_EVERY_S
        while True:
            await self._until_asked(wait_s)
            try:
                await self._measure(source)
            except HorsiesError as error:
                wait_s = self._missed(error)
            else:
                wait_s = MEASURED_EVERY_S if self.connection.is_up else 1.0

    async def _measure(self, source: Source) -> None:
        """Set our clock by the database's, and see how long it takes to answer."""
        asked = self._clock.ticks()
        at = await source.clock()
        latency = timedelta(seconds=self._clock.ticks() - asked)
        self._clock.heard(at, delay=latency)
        self._failed_tries = 0
        if self._feed is not State.LOST:
            self._tell(Connection(state=self._feed, latency=steady(self.connection.latency, latency)))

    def _tell(self, connection: Connection) -> None:
        self.connection = replace(connection, has_been_up=connection.is_up or self.connection.has_been_up)
        self._say(self.connection)

    async def _until_asked(self, timeout_s: float | None) -> None:
        self._again.clear()
        # Not `wait_for`, which forgets that it was cancelled where the event came first.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._again.wait()


def _is_final(error: HorsiesError) -> bool:
    """Another schema, or settings that cannot be right: trying again would not help."""
    return isinstance(error, ConfigurationError) or error.code is BrokerErrorCode.SCHEMA_INIT_FAILED
