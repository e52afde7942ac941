"""What changes, as it changes: notifications for as long as they arrive, a steady tick where they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from horsies.errors import HorsiesError
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.listen import (
    EVENTS_CHANNEL,
    TASK_DONE_CHANNEL,
    TASK_NEW_CHANNEL,
    WORKFLOW_DONE_CHANNEL,
    Listener,
    send_probe,
)
from horsies_ops.reads.changes import (
    Change,
    FeedStatus,
    Topic,
    parse_event,
    parse_task_done,
    parse_task_new,
    parse_workflow_done,
)
from horsies_ops.reads.server import measure_latency

MAX_QUEUED_CHANGES: Final = 10_000
"""Changes kept for a reader who is slow; what comes beyond is dropped, for each is only a hint to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedTiming:
    """How often the feed doubts itself, and what it does meanwhile; seconds."""

    probe_interval_s: float = 15.0
    answer_timeout_s: float = 5.0
    poll_interval_s: float = 5.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0


DEFAULT_TIMING: Final = FeedTiming()


async def listen(
    database: Database, direct_spec: ConnectionSpec, *, timing: FeedTiming = DEFAULT_TIMING
) -> AsyncGenerator[Change]:
    """Changes until the generator is closed; `direct` goes past a pooler.

    Comes back by itself from whatever happens to its connection, and says so on the topic FEED.
    """
    feed = _ChangeFeed(database, direct_spec, timing)
    work = asyncio.gather(feed.listen(), feed.probe_and_poll())
    work.add_done_callback(lambda _: feed.close())
    try:
        while (change := await feed.changes.get()) is not None:
            yield change
        await work  # which raises what ended it
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


class _ChangeFeed:
    """A listener that is doubted: by a message to itself while it hears, by asking the database while it does not."""

    def __init__(self, database: Database, direct: ConnectionSpec, pace: FeedTiming) -> None:
        self.changes: asyncio.Queue[Change | None] = asyncio.Queue()
        self._database = database
        self._timing = pace
        self._probe_channel = f"horsies_probe_{uuid4().hex}"
        self._probe_received = asyncio.Event()
        self._is_listening = False
        self._has_listened = False
        self._listener_changed = asyncio.Event()
        channels: dict[str, Callable[[str], None]] = {
            TASK_NEW_CHANNEL: lambda queue: self._put(parse_task_new(queue, _now())),
            TASK_DONE_CHANNEL: lambda payload: self._put(parse_task_done(payload, _now())),
            WORKFLOW_DONE_CHANNEL: lambda payload: self._put(parse_workflow_done(payload, _now())),
            EVENTS_CHANNEL: lambda payload: self._put(parse_event(payload, _now())),
            self._probe_channel: lambda _: self._probe_received.set(),
        }
        self._listener = Listener(
            direct,
            channels,
            on_change=self._on_listener_change,
            initial_backoff_s=pace.first_pause_s,
            max_backoff_s=pace.longest_pause_s,
        )

    async def listen(self) -> None:
        """Listen until cancelled."""
        await self._listener.run()

    def close(self) -> None:
        """No more changes will come."""
        self.changes.put_nowait(None)

    async def probe_and_poll(self) -> None:
        """Doubt what is heard, and tick while nothing can be, until cancelled."""
        while True:
            await self._wait(self._timing.probe_interval_s if self._is_listening else self._timing.poll_interval_s)
            if self._is_listening:
                await self._probe()
            else:
                await self._poll()

    async def _wait(self, longest_s: float) -> None:
        """Until the time is over, or the listener has begun or ceased to hear."""
        self._listener_changed.clear()
        try:
            async with asyncio.timeout(longest_s):
                await self._listener_changed.wait()
        except TimeoutError:
            return

    async def _probe(self) -> None:
        self._probe_received.clear()
        try:
            async with asyncio.timeout(self._timing.answer_timeout_s):
                await send_probe(self._database, self._probe_channel)
                await self._probe_received.wait()
        except (TimeoutError, HorsiesError):
            self._listener.reconnect()

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(self._timing.answer_timeout_s):
                await measure_latency(self._database)
        except (TimeoutError, HorsiesError) as error:
            self._put_status(FeedStatus.LOST, error.message if isinstance(error, HorsiesError) else "no answer in time")
        else:
            if not self._is_listening:
                self._put_status(FeedStatus.POLLING, self._listener.failure)

    def _on_listener_change(self, is_hearing: bool) -> None:  # noqa: FBT001  # the listener's one message
        if is_hearing:
            self._put_status(FeedStatus.RESTORED if self._has_listened else FeedStatus.LIVE)
            self._has_listened = True
        elif self._is_listening:
            self._put_status(FeedStatus.LOST, self._listener.failure)
        self._is_listening = is_hearing
        self._listener_changed.set()

    def _put_status(self, kind: FeedStatus, detail: str | None = None) -> None:
        self._put(Change(topic=Topic.FEED, kind=kind, at=_now(), detail=detail))

    def _put(self, change: Change | None) -> None:
        if change is not None and self.changes.qsize() < MAX_QUEUED_CHANGES:
            self.changes.put_nowait(change)


def _now() -> datetime:
    return datetime.now(UTC)
