"""The connection of the screens: opened, listened to, measured, and opened again when it is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.errors import ConfigurationError, DatabaseUnreachable, HorsiesError
from horsies_tui.connection import Connection, State, steady
from horsies_tui.feed import hear

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies_tui.clock import DatabaseClock
    from horsies_tui.source import Opener, Source
    from horsies_tui.store import Store

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 10.0
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
            self._tell(self.connection.lost(error.message, self._clock.now()))

    async def run(self) -> None:
        """Stay connected until cancelled."""
        failures = 0
        while True:
            try:
                async with self._opener(read_only=self.read_only) as source:
                    failures = 0
                    await self._use(source)
                raise DatabaseUnreachable("the feed has ended")
            except ConfigurationError as error:
                # Another schema, or settings that cannot be right: only a person can help.
                self._tell(Connection(state=State.REFUSED, why=f"{error.code} {error.message}"))
                await self._until_asked(LAST_RETRY_S)
            except HorsiesError as error:
                failures += 1
                wait_s = min(FIRST_RETRY_S * 2 ** (failures - 1), LAST_RETRY_S)
                self._tell(self.connection.lost(error.message, self._clock.now(), retry_in=timedelta(seconds=wait_s)))
                await self._until_asked(wait_s)

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
            self._tell(self.connection.lost(detail, self._clock.now()))
        elif state is not self.connection.state:
            self._tell(Connection(state=state, latency=self.connection.latency))

    async def _keep_measuring(self, source: Source) -> None:
        while True:
            await asyncio.sleep(MEASURED_EVERY_S if self.connection.is_up else 1.0)
            try:
                await self._measure(source)
            except HorsiesError as error:
                self._tell(self.connection.lost(error.message, self._clock.now()))

    async def _measure(self, source: Source) -> None:
        """Set our clock by the database's, and see how long it takes to answer."""
        asked = self._clock.ticks()
        at = await source.clock()
        latency = timedelta(seconds=self._clock.ticks() - asked)
        self._clock.heard(at, delay=latency)
        if self._feed is not State.LOST:
            self._tell(Connection(state=self._feed, latency=steady(self.connection.latency, latency)))

    def _tell(self, connection: Connection) -> None:
        self.connection = connection
        self._say(connection)

    async def _until_asked(self, timeout_s: float) -> None:
        self._again.clear()
        try:
            await asyncio.wait_for(self._again.wait(), timeout_s)
        except TimeoutError:
            return
