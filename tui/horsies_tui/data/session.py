"""The connection of the screens: opened, listened to, measured, and opened again when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from horsies.errors import BrokerErrorCode, ConfigurationError, DatabaseUnreachable, HorsiesError
from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_tui.data.context import DatabaseClock
from horsies_tui.data.queries import LiveQueries
from horsies_tui.data.source import DataSource, Opener
from horsies_tui.format import format_elapsed, format_seconds, sanitize
from horsies_tui.theme import Glyphs

# How the connection stands. The header always says it, and actions depend on it.

SLOW_LATENCY: Final = timedelta(seconds=1)
LATENCY_TOLERANCE: Final = timedelta(milliseconds=5)


class ConnectionState(StrEnum):
    CONNECTING = "CONNECTING"
    LIVE = "LIVE"
    """Changes are told as they happen."""
    POLLING = "POLLING"
    """Queries work, notifications do not."""
    LOST = "RECONNECTING"
    REFUSED = "REFUSED"
    """Trying again would not help: another schema, no rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatus:
    state: ConnectionState = ConnectionState.CONNECTING
    latency: timedelta | None = None
    """Of the last answer."""
    reason: str = ""
    """What happened to it, where it is not up."""
    hint: str = ""
    """What a person can do about it."""
    lost_since: datetime | None = None
    failed_tries: int = 0
    """Tries to connect that have failed since."""
    retry_in: timedelta | None = None
    """How long after the last of them the next one comes."""
    has_been_up: bool = False
    """Whether there are rows on the screen that it brought."""

    @property
    def is_up(self) -> bool:
        """Whether rows are fresh and actions possible."""
        return self.state in (ConnectionState.LIVE, ConnectionState.POLLING)

    @property
    def is_slow(self) -> bool:
        return self.is_up and self.latency is not None and self.latency > SLOW_LATENCY

    def after_failure(
        self, why: str, since: datetime, *, attempt: int = 0, retry_in: timedelta | None = None
    ) -> ConnectionStatus:
        """The same connection after a failure; it has been away since the first."""
        return ConnectionStatus(
            state=ConnectionState.LOST,
            reason=why,
            lost_since=self.lost_since if self.state is ConnectionState.LOST else since,
            failed_tries=attempt,
            retry_in=retry_in,
        )


def smooth_latency(shown: timedelta | None, measured: timedelta) -> timedelta:
    """The latency to show: as before, unless it has changed by so much that somebody would care."""
    if shown is None or (measured > SLOW_LATENCY) is not (shown > SLOW_LATENCY):
        return measured
    return measured if abs(measured - shown) > max(shown / 2, LATENCY_TOLERANCE) else shown


def connection_text(connection: ConnectionStatus, glyphs: Glyphs, *, poll_s: float) -> str:
    """What the header says: `● LIVE 12ms`, `◐ POLLING 5s`, `○ RECONNECTING in 4s (3)`."""
    latency = format_elapsed(connection.latency) if connection.latency is not None else ""
    if connection.is_slow:
        return f"{glyphs.slow} SLOW {latency}"
    match connection.state:
        case ConnectionState.CONNECTING:
            return f"{glyphs.connecting} CONNECTING"
        case ConnectionState.LIVE:
            return f"{glyphs.live} LIVE {latency}".rstrip()
        case ConnectionState.POLLING:
            return f"{glyphs.polling} POLLING {poll_s:g}s {latency}".rstrip()
        case ConnectionState.LOST:
            soon = f" in {format_seconds(connection.retry_in)}" if connection.retry_in else ""
            tries = f" ({connection.failed_tries})" if connection.failed_tries else ""
            return f"{glyphs.lost} RECONNECTING{soon}{tries}"
        case ConnectionState.REFUSED:
            return f"{glyphs.bad} {sanitize(connection.reason, limit=40)}"


# What `listen()` says, passed on: changes touch what the store shows, words about the feed go to the session.


async def forward_changes(
    source: DataSource, store: LiveQueries, on_state: Callable[[ConnectionState, str], object]
) -> None:
    """Pass on what is heard until the feed ends.

    What was notified while nobody listened is gone, so a feed that begins or comes back has everything asked for.
    """
    async for change in source.listen():
        store.change_log.append(change)
        if change.topic is Topic.FEED:
            _forward_feed_state(change, store, on_state)
        else:
            # Only the fact that something changed is used; what it is now is for the database to say.
            store.invalidate(change.topic, change.count)


def _forward_feed_state(change: Change, store: LiveQueries, say: Callable[[ConnectionState, str], object]) -> None:
    match FeedStatus(change.kind):
        case FeedStatus.LIVE | FeedStatus.RESTORED:
            say(ConnectionState.LIVE, "")
            store.invalidate_all()
        case FeedStatus.POLLING:
            say(ConnectionState.POLLING, "")
            store.invalidate_all()
        case FeedStatus.LOST:
            # What to do about it stands on further lines, for commands; here there is room for what happened.
            say(ConnectionState.LOST, (change.detail or "the connection is gone").splitlines()[0])


FIRST_RETRY_S: Final = 0.5
MAX_RETRY_S: Final = 10.0
MOST_DOUBLINGS: Final = 10
MEASURE_INTERVAL_S: Final = 15.0
TIMED_OUT_LATENCY: Final = timedelta(seconds=3)
"""A question that ran out of time took at least so long."""


class Session:
    """Keeps the store connected; every change of how that stands goes to `tell`."""

    def __init__(
        self,
        opener: Opener,
        store: LiveQueries,
        clock: DatabaseClock,
        on_change: Callable[[ConnectionStatus], object],
        *,
        read_only: bool,
    ) -> None:
        self.read_only = read_only
        self.connection = ConnectionStatus()
        self.source: DataSource | None = None
        self._opener = opener
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._feed_state = ConnectionState.CONNECTING
        self._retry_event = asyncio.Event()
        self._failed_tries = 0
        """In a row, of connecting or of reaching the database again."""

    def retry_now(self) -> None:
        """Do not wait for the next try."""
        self._retry_event.set()

    def report_error(self, error: HorsiesError) -> None:
        """A question got no answer; where nobody answers at all the connection is lost, whatever the feed says."""
        if not isinstance(error, DatabaseUnreachable) or not self.connection.is_up:
            return
        if isinstance(error.__cause__, TimeoutError):
            # A question too heavy for the time it has. Whether anybody is there at all, the next measurement tells.
            self._set_connection(replace(self.connection, latency=TIMED_OUT_LATENCY))
        else:
            self._mark_lost(error.message)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            try:
                async with self._opener(read_only=self.read_only) as source:
                    await self._run_connected(source)
                raise DatabaseUnreachable("the feed has ended")
            except HorsiesError as error:
                if _is_final(error):
                    self._set_refused(error)
                    await self._wait_for_retry(None)
                else:
                    await self._wait_for_retry(self._count_failure(error))

    def _set_refused(self, error: HorsiesError) -> None:
        why = error.message if error.code is None else f"{error.code} {error.message}"
        self._set_connection(ConnectionStatus(state=ConnectionState.REFUSED, reason=why, hint=error.help_text or ""))

    def _count_failure(self, error: HorsiesError) -> float:
        """One more try has failed; returns how many seconds to rest before the next, ever longer."""
        self._failed_tries += 1
        wait_s = min(FIRST_RETRY_S * 2 ** min(self._failed_tries - 1, MOST_DOUBLINGS), MAX_RETRY_S)
        retry_in = timedelta(seconds=wait_s)
        now = self._clock.now()
        self._set_connection(
            self.connection.after_failure(error.message, now, attempt=self._failed_tries, retry_in=retry_in)
        )
        return wait_s

    def _mark_lost(self, why: str) -> None:
        """The connection is gone; whether it can be had again is tried at once."""
        self._set_connection(self.connection.after_failure(why, self._clock.now(), attempt=self._failed_tries))
        self.retry_now()

    async def _run_connected(self, source: DataSource) -> None:
        self.source, self._feed_state = source, ConnectionState.CONNECTING
        await self._measure_latency(source)
        self._store.connect(source)
        measuring = asyncio.create_task(self._measure_periodically(source))
        try:
            await forward_changes(source, self._store, self._on_feed_state)
        finally:
            measuring.cancel()
            self.source = None
            await self._store.disconnect()

    def _on_feed_state(self, state: ConnectionState, detail: str) -> None:
        """The feed says how it stands."""
        self._feed_state = state
        if state is ConnectionState.LOST:
            if self.connection.is_up:
                self._mark_lost(detail)
        elif state is not self.connection.state:
            self._failed_tries = 0
            self._set_connection(ConnectionStatus(state=state, latency=self.connection.latency))

    async def _measure_periodically(self, source: DataSource) -> None:
        wait_s = MEASURE_INTERVAL_S
        while True:
            await self._wait_for_retry(wait_s)
            try:
                await self._measure_latency(source)
            except HorsiesError as error:
                wait_s = self._count_failure(error)
            else:
                wait_s = MEASURE_INTERVAL_S if self.connection.is_up else 1.0

    async def _measure_latency(self, source: DataSource) -> None:
        """Set our clock by the database's, and see how long it takes to answer."""
        asked = self._clock.monotonic()
        at = await source.database_time()
        latency = timedelta(seconds=self._clock.monotonic() - asked)
        self._clock.synchronize(at, round_trip=latency)
        self._failed_tries = 0
        if self._feed_state is not ConnectionState.LOST:
            self._set_connection(
                ConnectionStatus(state=self._feed_state, latency=smooth_latency(self.connection.latency, latency))
            )

    def _set_connection(self, connection: ConnectionStatus) -> None:
        self.connection = replace(connection, has_been_up=connection.is_up or self.connection.has_been_up)
        self._on_change(self.connection)

    async def _wait_for_retry(self, timeout_s: float | None) -> None:
        self._retry_event.clear()
        # Not `wait_for`, which forgets that it was cancelled where the event came first.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._retry_event.wait()


def _is_final(error: HorsiesError) -> bool:
    """Another schema, or settings that cannot be right: trying again would not help."""
    return isinstance(error, ConfigurationError) or error.code is BrokerErrorCode.SCHEMA_INIT_FAILED
