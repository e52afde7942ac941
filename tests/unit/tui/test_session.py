from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from horsies.errors import ConfigurationError, DatabaseUnreachable, ErrorCode, HorsiesError
from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_ops.source import DataSource
from horsies_tui.data.queries import LiveQueries
from horsies_tui.data.session import ConnectionState, ConnectionStatus, Session, connection_text
from tests.support.fake_system.source import FakeSource
from tests.support.tui import NOON, frozen_clock, frozen_system


class ScriptedSource(FakeSource):
    """A source whose feed and errors are controlled by the test."""

    def __init__(self) -> None:
        super().__init__(frozen_system(10), read_only=False)
        self.feed: asyncio.Queue[Change] = asyncio.Queue()
        self.errors: list[HorsiesError] = []

    async def database_time(self) -> datetime:
        if self.errors:
            raise self.errors.pop(0)
        return await super().database_time()

    async def listen(self) -> AsyncIterator[Change]:
        while True:
            yield await self.feed.get()

    def send_status(self, kind: FeedStatus, detail: str | None = None) -> None:
        self.feed.put_nowait(Change(topic=Topic.FEED, kind=kind, at=NOON, detail=detail))


class SessionHarness:
    """A session over a scripted source, and every status it reported."""

    def __init__(self, *errors: HorsiesError) -> None:
        self.source = ScriptedSource()
        self.statuses: asyncio.Queue[ConnectionStatus] = asyncio.Queue()
        self.opened_read_only: list[bool] = []
        self._open_errors = list(errors)
        self.session = Session(self._open, LiveQueries(), frozen_clock(), self.statuses.put_nowait, read_only=True)

    @asynccontextmanager
    async def _open(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        self.opened_read_only.append(read_only)
        if self._open_errors:
            raise self._open_errors.pop(0)
        yield self.source

    async def until(self, state: ConnectionState) -> ConnectionStatus:
        while (connection := await asyncio.wait_for(self.statuses.get(), 5)).state is not state:
            pass
        return connection


@asynccontextmanager
async def _running(harness: SessionHarness) -> AsyncGenerator[None]:
    task = asyncio.create_task(harness.session.run())
    try:
        yield
    finally:
        task.cancel()


async def test_live_feed_sets_status_and_latency() -> None:
    harness = SessionHarness()
    async with _running(harness):
        harness.source.send_status(FeedStatus.STARTED)
        live = await harness.until(ConnectionState.LIVE)
        assert live.is_up
        assert live.latency is not None
        assert harness.opened_read_only == [True]


async def test_unreachable_database_is_retried() -> None:
    harness = SessionHarness(DatabaseUnreachable("nobody there"))
    async with _running(harness):
        lost = await harness.until(ConnectionState.LOST)
        assert (lost.reason, lost.failed_tries, lost.is_up) == ("nobody there", 1, False)
        harness.session.retry_now()
        harness.source.send_status(FeedStatus.STARTED)
        assert (await harness.until(ConnectionState.LIVE)).is_up


async def test_failed_connections_back_off() -> None:
    harness = SessionHarness()
    harness.source.errors = [DatabaseUnreachable("wrong password") for _ in range(3)]
    async with _running(harness):
        tries: list[tuple[int, timedelta | None]] = []
        for _ in range(3):
            lost = await harness.until(ConnectionState.LOST)
            tries.append((lost.failed_tries, lost.retry_in))
            harness.session.retry_now()
        assert tries == [(number, timedelta(seconds=pause_s)) for number, pause_s in ((1, 0.5), (2, 1.0), (3, 2.0))]


async def test_failed_queries_do_not_count_as_connection_attempts() -> None:
    harness = SessionHarness()
    async with _running(harness):
        harness.source.send_status(FeedStatus.STARTED)
        await harness.until(ConnectionState.LIVE)
        harness.source.errors = [DatabaseUnreachable("gone")]
        for _ in range(3):
            harness.session.report_error(DatabaseUnreachable("gone"))
        assert [(await harness.until(ConnectionState.LOST)).failed_tries for _ in range(2)] == [0, 1]


async def test_lost_and_restored_feed_are_reported() -> None:
    harness = SessionHarness()
    async with _running(harness):
        harness.source.send_status(FeedStatus.STARTED)
        await harness.until(ConnectionState.LIVE)
        harness.source.send_status(FeedStatus.LOST, "server closed the connection\nhint: is it up?")
        assert (await harness.until(ConnectionState.LOST)).reason == "server closed the connection"
        harness.source.send_status(FeedStatus.RESTORED)
        await harness.until(ConnectionState.LIVE)


async def test_polling_allows_actions() -> None:
    harness = SessionHarness()
    async with _running(harness):
        harness.source.send_status(FeedStatus.POLLING)
        assert (await harness.until(ConnectionState.POLLING)).is_up


async def test_incompatible_schema_is_refused_until_manual_retry() -> None:
    refusal = ConfigurationError("schema version 5, expected 9", code=ErrorCode.SCHEMA_NOT_MIGRATED, hint="run it")
    harness = SessionHarness(refusal)
    async with _running(harness):
        refused = await harness.until(ConnectionState.REFUSED)
        assert ("schema" in refused.reason, refused.hint, refused.retry_in) == (True, "run it", None)
        harness.session.retry_now()
        harness.source.send_status(FeedStatus.STARTED)
        await harness.until(ConnectionState.LIVE)


def test_header_shows_connection_status() -> None:
    lost = ConnectionStatus(state=ConnectionState.LIVE).after_failure("gone", NOON)
    assert connection_text(lost, poll_s=0.25) == "○ RECONNECTING"
    retrying = lost.after_failure("gone", NOON, failed_tries=2, retry_in=timedelta(seconds=0.5))
    assert connection_text(retrying, poll_s=0.25) == "○ RECONNECTING in 0.5s (2)"
    assert connection_text(ConnectionStatus(), poll_s=0.25) == "◌ CONNECTING"
    assert connection_text(ConnectionStatus(state=ConnectionState.POLLING), poll_s=5) == "◐ POLLING 5s"


async def test_timed_out_query_makes_connection_slow_not_lost() -> None:
    harness = SessionHarness()
    async with _running(harness):
        harness.source.send_status(FeedStatus.STARTED)
        await harness.until(ConnectionState.LIVE)
        error = DatabaseUnreachable("no answer in time")
        error.__cause__ = TimeoutError()
        harness.session.report_error(error)
        assert (harness.session.connection.is_up, harness.session.connection.is_slow) == (True, True)
        harness.session.report_error(DatabaseUnreachable("refused"))
        assert harness.session.connection.state is ConnectionState.LOST
