"""The TUI's database session: connects, forwards changes, measures latency and reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from horsies.errors import BrokerErrorCode, ConfigurationError, DatabaseUnreachable, HorsiesError
from horsies_ops.reads.changes import FeedStatus, Topic
from horsies_ops.source import DataSource, Opener
from horsies_tui.data.context import DatabaseClock
from horsies_tui.data.queries import LiveQueries
from horsies_tui.format import format_elapsed, format_seconds, sanitize
from horsies_tui.theme import Glyph

SLOW_LATENCY: Final = timedelta(seconds=1)
LATENCY_TOLERANCE: Final = timedelta(milliseconds=5)
FIRST_RETRY_S: Final = 0.5
MAX_RETRY_S: Final = 10.0
MAX_DOUBLINGS: Final = 10
MEASURE_INTERVAL_S: Final = 15.0
TIMED_OUT_LATENCY: Final = timedelta(seconds=3)
"""Latency to show after a query timed out: it took at least this long."""


class ConnectionState(StrEnum):
    CONNECTING = "CONNECTING"
    LIVE = "LIVE"
    """Notifications arrive."""
    POLLING = "POLLING"
    """Queries work, notifications do not arrive."""
    LOST = "RECONNECTING"
    REFUSED = "REFUSED"
    """A retry would not help: incompatible schema or invalid settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatus:
    """Shown in the header; actions are enabled only while it is up."""

    state: ConnectionState = ConnectionState.CONNECTING
    latency: timedelta | None = None
    """Round-trip time of the last measurement."""
    reason: str = ""
    """Why it is not up."""
    hint: str = ""
    """How to fix it."""
    lost_since: datetime | None = None
    failed_tries: int = 0
    """Failed attempts to reconnect since then."""
    retry_in: timedelta | None = None
    """Delay between the last failed attempt and the next."""
    has_been_up: bool = False
    """Whether the screens may show rows from an earlier connection."""

    @property
    def is_up(self) -> bool:
        """Whether the screens are up to date and actions possible."""
        return self.state in (ConnectionState.LIVE, ConnectionState.POLLING)

    @property
    def is_slow(self) -> bool:
        return self.is_up and self.latency is not None and self.latency > SLOW_LATENCY

    def after_failure(
        self, reason: str, now: datetime, *, failed_tries: int = 0, retry_in: timedelta | None = None
    ) -> ConnectionStatus:
        """The status after another failure; `lost_since` stays that of the first."""
        return ConnectionStatus(
            state=ConnectionState.LOST,
            reason=reason,
            lost_since=self.lost_since if self.state is ConnectionState.LOST else now,
            failed_tries=failed_tries,
            retry_in=retry_in,
        )


class Session:
    """Keeps the live queries connected; each new status goes to `on_change`."""

    def __init__(
        self,
        opener: Opener,
        queries: LiveQueries,
        clock: DatabaseClock,
        on_change: Callable[[ConnectionStatus], object],
        *,
        read_only: bool,
    ) -> None:
        self.read_only = read_only
        self.connection = ConnectionStatus()
        self.source: DataSource | None = None
        self._opener = opener
        self._queries = queries
        self._clock = clock
        self._on_change = on_change
        self._feed_state = ConnectionState.CONNECTING
        self._retry_event = asyncio.Event()
        self._failed_tries = 0
        """Consecutive failures to connect or to reach the database."""

    def retry_now(self) -> None:
        """Retry without waiting for the next attempt."""
        self._retry_event.set()

    def report_error(self, error: HorsiesError) -> None:
        """Update the status after a failed query: the database may be unreachable although the feed is still up."""
        if not isinstance(error, DatabaseUnreachable) or not self.connection.is_up:
            return
        if isinstance(error.__cause__, TimeoutError):
            # The query was too slow. The next measurement shows whether the database is reachable.
            self._set_connection(replace(self.connection, latency=TIMED_OUT_LATENCY))
        else:
            self._mark_lost(error.message)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            try:
                async with self._opener(read_only=self.read_only) as source:
                    await self._run_connected(source)
                raise DatabaseUnreachable("the feed ended")
            except HorsiesError as error:
                if _is_final(error):
                    reason = error.message if error.code is None else f"{error.code} {error.message}"
                    hint = error.help_text or ""
                    self._set_connection(ConnectionStatus(state=ConnectionState.REFUSED, reason=reason, hint=hint))
                    # No timeout: the operator has to fix the cause first.
                    await self._wait_for_retry(None)
                else:
                    await self._wait_for_retry(self._count_failure(error))

    def _count_failure(self, error: HorsiesError) -> float:
        """Count a failed attempt; returns the seconds until the next, with exponential backoff."""
        self._failed_tries += 1
        wait_s = min(FIRST_RETRY_S * 2 ** min(self._failed_tries - 1, MAX_DOUBLINGS), MAX_RETRY_S)
        retry_in = timedelta(seconds=wait_s)
        now = self._clock.now()
        self._set_connection(
            self.connection.after_failure(error.message, now, failed_tries=self._failed_tries, retry_in=retry_in)
        )
        return wait_s

    def _mark_lost(self, reason: str) -> None:
        """Set the status to LOST and measure again at once, which shows whether the database is reachable."""
        self._set_connection(self.connection.after_failure(reason, self._clock.now(), failed_tries=self._failed_tries))
        self.retry_now()

    async def _run_connected(self, source: DataSource) -> None:
        self.source, self._feed_state = source, ConnectionState.CONNECTING
        # Before the first query: the ages of its rows need the database clock.
        await self._measure_latency(source)
        self._queries.connect(source)
        measuring = asyncio.create_task(self._measure_periodically(source))
        try:
            await self._forward_changes(source)
        finally:
            measuring.cancel()
            self.source = None
            await self._queries.disconnect()

    async def _forward_changes(self, source: DataSource) -> None:
        """Invalidate live queries on each change, until the feed ends."""
        async for change in source.listen():
            self._queries.change_log.append(change)
            if change.topic is not Topic.FEED:
                # The payload is not used: the current rows are read from the database.
                self._queries.invalidate(change.topic, change.count)
                continue
            match FeedStatus(change.kind):
                case FeedStatus.LOST:
                    # The first line is the error; further lines are hints for the command line.
                    self._on_feed_lost((change.detail or "connection lost").splitlines()[0])
                case FeedStatus.POLLING:
                    self._on_feed_up(ConnectionState.POLLING)
                case FeedStatus.STARTED | FeedStatus.RESTORED:
                    self._on_feed_up(ConnectionState.LIVE)

    def _on_feed_lost(self, reason: str) -> None:
        self._feed_state = ConnectionState.LOST
        if self.connection.is_up:
            self._mark_lost(reason)

    def _on_feed_up(self, state: ConnectionState) -> None:
        self._feed_state = state
        if state is not self.connection.state:
            self._failed_tries = 0
            self._set_connection(ConnectionStatus(state=state, latency=self.connection.latency))
        # Notifications sent while disconnected are lost.
        self._queries.invalidate_all()

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
        """Query the database time: synchronizes the clock and measures the latency."""
        started = self._clock.monotonic()
        at = await source.database_time()
        latency = timedelta(seconds=self._clock.monotonic() - started)
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
        # Not `wait_for`: it swallows a cancellation that arrives together with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._retry_event.wait()


def _is_final(error: HorsiesError) -> bool:
    """Whether a retry cannot help: incompatible schema or invalid settings."""
    return isinstance(error, ConfigurationError) or error.code is BrokerErrorCode.SCHEMA_INIT_FAILED


def smooth_latency(shown: timedelta | None, measured: timedelta) -> timedelta:
    """The latency to show: the old value unless the new one differs noticeably, to avoid repaints."""
    if shown is None or (measured > SLOW_LATENCY) is not (shown > SLOW_LATENCY):
        return measured
    return measured if abs(measured - shown) > max(shown / 2, LATENCY_TOLERANCE) else shown


def connection_text(connection: ConnectionStatus, *, poll_s: float) -> str:
    """The status as shown in the header: `● LIVE 12ms`, `◐ POLLING 5s`, `○ RECONNECTING in 4s (3)`."""
    latency = format_elapsed(connection.latency) if connection.latency is not None else ""
    if connection.is_slow:
        return f"{Glyph.SLOW} SLOW {latency}"
    match connection.state:
        case ConnectionState.CONNECTING:
            return f"{Glyph.CONNECTING} CONNECTING"
        case ConnectionState.LIVE:
            return f"{Glyph.LIVE} LIVE {latency}".rstrip()
        case ConnectionState.POLLING:
            return f"{Glyph.POLLING} POLLING {poll_s:g}s {latency}".rstrip()
        case ConnectionState.LOST:
            retry_in = f" in {format_seconds(connection.retry_in)}" if connection.retry_in else ""
            tries = f" ({connection.failed_tries})" if connection.failed_tries else ""
            return f"{Glyph.LOST} RECONNECTING{retry_in}{tries}"
        case ConnectionState.REFUSED:
            return f"{Glyph.BAD} {sanitize(connection.reason, limit=40)}"
