"""The connection of the screens: opened, listened to, measured, and opened again when it is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from horsies.errors import BrokerErrorCode, ConfigurationError, DatabaseUnreachable, HorsiesError
from horsies_ops.reads.changes import Feed, Topic
from horsies_tui.format import clean, seconds, took

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from horsies_ops.reads.changes import Change
    from horsies_tui.data.context import DatabaseClock
    from horsies_tui.data.queries import Store
    from horsies_tui.data.source import Opener, Source
    from horsies_tui.theme import Glyphs


# How the connection stands. The header always says it, and actions depend on it.

SLOW: Final = timedelta(seconds=1)
NEGLIGIBLE: Final = timedelta(milliseconds=5)


class State(StrEnum):
    CONNECTING = "CONNECTING"
    LIVE = "LIVE"
    """Changes are told as they happen."""
    POLLING = "POLLING"
    """Queries work, notifications do not."""
    LOST = "RECONNECTING"
    REFUSED = "REFUSED"
    """Trying again would not help: another schema, no rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    state: State = State.CONNECTING
    latency: timedelta | None = None
    """Of the last answer."""
    why: str = ""
    """What happened to it, where it is not up."""
    hint: str = ""
    """What a person can do about it."""
    since: datetime | None = None
    attempt: int = 0
    """Tries to connect that have failed since."""
    retry_in: timedelta | None = None
    """How long after the last of them the next one comes."""
    has_been_up: bool = False
    """Whether there are rows on the screen that it brought."""

    @property
    def is_up(self) -> bool:
        """Whether rows are fresh and actions possible."""
        return self.state in (State.LIVE, State.POLLING)

    @property
    def is_slow(self) -> bool:
        return self.is_up and self.latency is not None and self.latency > SLOW

    def lost(self, why: str, since: datetime, *, attempt: int = 0, retry_in: timedelta | None = None) -> Connection:
        """The same connection after a failure; it has been away since the first."""
        return Connection(
            state=State.LOST,
            why=why,
            since=self.since if self.state is State.LOST else since,
            attempt=attempt,
            retry_in=retry_in,
        )


def steady(shown: timedelta | None, measured: timedelta) -> timedelta:
    """The latency to show: as before, unless it has changed by so much that somebody would care."""
    if shown is None or (measured > SLOW) is not (shown > SLOW):
        return measured
    return measured if abs(measured - shown) > max(shown / 2, NEGLIGIBLE) else shown


def described(connection: Connection, glyphs: Glyphs, *, poll_s: float) -> str:
    """What the header says: `● LIVE 12ms`, `◐ POLLING 5s`, `○ RECONNECTING in 4s (3)`."""
    latency = took(connection.latency) if connection.latency is not None else ""
    if connection.is_slow:
        return f"{glyphs.slow} SLOW {latency}"
    match connection.state:
        case State.CONNECTING:
            return f"{glyphs.connecting} CONNECTING"
        case State.LIVE:
            return f"{glyphs.live} LIVE {latency}".rstrip()
        case State.POLLING:
            return f"{glyphs.polling} POLLING {poll_s:g}s {latency}".rstrip()
        case State.LOST:
            soon = f" in {seconds(connection.retry_in)}" if connection.retry_in else ""
            tries = f" ({connection.attempt})" if connection.attempt else ""
            return f"{glyphs.lost} RECONNECTING{soon}{tries}"
        case State.REFUSED:
            return f"{glyphs.bad} {clean(connection.why, limit=40)}"


# What `listen()` says, passed on: changes touch what the store shows, words about the feed go to the session.


async def hear(source: Source, store: Store, say: Callable[[State, str], object]) -> None:
    """Pass on what is heard until the feed ends.

    What was notified while nobody listened is gone, so a feed that begins or comes back has everything asked for.
    """
    async for change in source.listen():
        store.tape.hear(change)
        if change.topic is Topic.FEED:
            _about_the_feed(change, store, say)
        else:
            # Only the fact that something changed is used; what it is now is for the database to say.
            store.touch(change.topic, change.count)


def _about_the_feed(change: Change, store: Store, say: Callable[[State, str], object]) -> None:
    match Feed(change.kind):
        case Feed.LIVE | Feed.RESTORED:
            say(State.LIVE, "")
            store.resync()
        case Feed.POLLING:
            say(State.POLLING, "")
            store.resync()
        case Feed.LOST:
            # What to do about it stands on further lines, for commands; here there is room for what happened.
            say(State.LOST, (change.detail or "the connection is gone").splitlines()[0])


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
