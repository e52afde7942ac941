"""What changes, as it changes: notifications for as long as they arrive, a steady tick where they do not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from horsies.errors import HorsiesError
from horsies.store.listen import EVENTS, TASK_DONE, TASK_NEW, WORKFLOW_DONE, Listener, say
from horsies_ops.reads.changes import Change, Feed, Topic, of_done_tasks, of_event, of_new_task, of_workflow
from horsies_ops.reads.server import ping

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from horsies.store.connection import Link
    from horsies.store.database import Database

MOST_WAITING: Final = 10_000
"""Changes kept for a reader who is slow; what comes beyond is dropped, for each is only a hint to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often the feed doubts itself, and what it does meanwhile; seconds."""

    probe_s: float = 15.0
    answer_s: float = 5.0
    poll_s: float = 5.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0


USUAL_PACE: Final = Pace()


async def listen(database: Database, direct: Link, *, pace: Pace = USUAL_PACE) -> AsyncGenerator[Change]:
    """Changes until the generator is closed; `direct` goes past a pooler.

    Comes back by itself from whatever happens to its connection, and says so on the topic FEED.
    """
    feed = _Feed(database, direct, pace)
    work = asyncio.gather(feed.hear(), feed.watch())
    work.add_done_callback(lambda _: feed.end())
    try:
        while (change := await feed.changes.get()) is not None:
            yield change
        await work  # which raises what ended it
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


class _Feed:
    """A listener that is doubted: by a message to itself while it hears, by asking the database while it does not."""

    def __init__(self, database: Database, direct: Link, pace: Pace) -> None:
        self.changes: asyncio.Queue[Change | None] = asyncio.Queue()
        self._database = database
        self._pace = pace
        self._probe_channel = f"horsies_probe_{uuid4().hex}"
        self._probed = asyncio.Event()
        self._is_hearing = False
        self._has_heard = False
        self._turned = asyncio.Event()
        channels: dict[str, Callable[[str], None]] = {
            TASK_NEW: lambda queue: self._put(of_new_task(queue, _now())),
            TASK_DONE: lambda payload: self._put(of_done_tasks(payload, _now())),
            WORKFLOW_DONE: lambda payload: self._put(of_workflow(payload, _now())),
            EVENTS: lambda payload: self._put(of_event(payload, _now())),
            self._probe_channel: lambda _: self._probed.set(),
        }
        self._listener = Listener(
            direct,
            channels,
            on_change=self._turn,
            first_pause_s=pace.first_pause_s,
            longest_pause_s=pace.longest_pause_s,
        )

    async def hear(self) -> None:
        """Listen until cancelled."""
        await self._listener.run()

    def end(self) -> None:
        """No more changes will come."""
        self.changes.put_nowait(None)

    async def watch(self) -> None:
        """Doubt what is heard, and tick while nothing can be, until cancelled."""
        while True:
            await self._wait(self._pace.probe_s if self._is_hearing else self._pace.poll_s)
            if self._is_hearing:
                await self._probe()
            else:
                await self._poll()

    async def _wait(self, longest_s: float) -> None:
        """Until the time is over, or the listener has begun or ceased to hear."""
        self._turned.clear()
        try:
            async with asyncio.timeout(longest_s):
                await self._turned.wait()
        except TimeoutError:
            return

    async def _probe(self) -> None:
        self._probed.clear()
        try:
            async with asyncio.timeout(self._pace.answer_s):
                await say(self._database, self._probe_channel)
                await self._probed.wait()
        except (TimeoutError, HorsiesError):
            self._listener.reconnect()

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(self._pace.answer_s):
                await ping(self._database)
        except (TimeoutError, HorsiesError) as error:
            self._tell(Feed.LOST, error.message if isinstance(error, HorsiesError) else "no answer in time")
        else:
            if not self._is_hearing:
                self._tell(Feed.POLLING, self._listener.failure)

    def _turn(self, is_hearing: bool) -> None:  # noqa: FBT001  # the listener's one message
        if is_hearing:
            self._tell(Feed.RESTORED if self._has_heard else Feed.LIVE)
            self._has_heard = True
        elif self._is_hearing:
            self._tell(Feed.LOST, self._listener.failure)
        self._is_hearing = is_hearing
        self._turned.set()

    def _tell(self, kind: Feed, detail: str | None = None) -> None:
        self._put(Change(topic=Topic.FEED, kind=kind, at=_now(), detail=detail))

    def _put(self, change: Change | None) -> None:
        if change is not None and self.changes.qsize() < MOST_WAITING:
            self.changes.put_nowait(change)


def _now() -> datetime:
    return datetime.now(UTC)
