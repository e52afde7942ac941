"""From the feed to the screen: what is visible is fetched when something touched it, and never twice at once.

Each want has one loop of its own: wait until it is touched, or until its poll is due; ask once; tell the screen; rest.
However many changes arrive while it asks or rests, they make one further question. The rest is a tick, or four times
what the answer took where that is longer, so a slow database is asked less and not more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from textual.message import Message

from horsies.errors import HorsiesError
from horsies_ops.reads.changes import Change, Topic
from horsies_tui.data.source import DataSource
from horsies_tui.messages import Fetched, FetchFailed

# The newest changes that were heard, kept whichever screen is seen, so that Events can show what has just been.

MAX_CHANGES: Final = 2_000
MINUTE_S: Final = 60

_LOGGED_TOPICS: Final = frozenset({Topic.TASK_NEW, Topic.STATUS_CHANGE, Topic.WORKFLOW, Topic.FEED})
"""Beats are too many and say too little; ends of tasks are heard as moves too; events are read as rows."""


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change, and the how-manieth it was."""

    number: int
    change: Change


class ChangeLog:
    """The last 2,000; nothing is written to disk."""

    def __init__(self, max_changes: int = MAX_CHANGES) -> None:
        self._changes: deque[LoggedChange] = deque(maxlen=max_changes)
        self._number = 0
        self._per_second: Counter[int] = Counter()

    def append(self, change: Change) -> None:
        if change.topic in _LOGGED_TOPICS:
            self._number += 1
            self._changes.append(LoggedChange(self._number, change))
            self._per_second[_second(change.at)] += change.count

    def per_minute(self, now: datetime) -> int:
        """How much was heard in the last minute, also of what is no longer kept; `now` as changes have it."""
        since = _second(now) - MINUTE_S
        for second in [each for each in self._per_second if each <= since]:
            del self._per_second[second]
        return self._per_second.total()

    @property
    def changes(self) -> tuple[LoggedChange, ...]:
        """All that is kept, the oldest first."""
        return tuple(self._changes)


def _second(at: datetime) -> int:
    return int(at.timestamp())


log = logging.getLogger("horsies.tui")

REST_FACTOR: Final = 4
"""The rest between two questions is at least so many times what the answer took."""

MAX_REST_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveQuery:
    """Something that a screen shows: how to ask for it, and which changes make it out of date."""

    name: str
    fetch: Callable[[DataSource], Awaitable[object]]
    invalidated_by: frozenset[Topic]
    poll_s: float = 15.0
    """Asked for again after this long even if nothing was heard."""
    min_interval_s: float = 0.0
    """Not asked for more often than this, where that is less than the store's tick allows."""


class LiveQueries:
    """Asks for what the visible screen wants."""

    def __init__(self, *, tick_s: float = 0.25) -> None:
        self.refresh_s = tick_s
        self.is_paused = False
        self.pending_changes = 0
        """Changes that were heard while paused and are not yet shown."""
        self.change_log = ChangeLog()
        """What was heard last."""
        self._source: DataSource | None = None
        self._loops: list[_QueryLoop] = []
        self._queries: tuple[LiveQuery, ...] = ()
        self._post: Callable[[Message], object] = lambda _: None

    def connect(self, source: DataSource | None) -> None:
        """Ask there from now on, or nobody."""
        self._source = source
        self._restart()

    def set_queries(self, wants: Sequence[LiveQuery], post: Callable[[Message], object]) -> None:
        """This is what is visible now; answers go to `tell`."""
        self._queries, self._post = tuple(wants), post
        self._restart()

    def invalidate(self, topic: Topic, count: int = 1) -> None:
        """Something changed: what it touches is asked for again as soon as its rest is over."""
        touched = [loop for loop in self._loops if topic in loop.query.invalidated_by]
        if touched and self.is_paused:
            self.pending_changes += count
        for loop in touched:
            loop.invalidate()

    def invalidate_all(self) -> None:
        """Anything may have changed; everything is asked for again, unless paused."""
        for loop in self._loops:
            loop.invalidate()

    def refresh(self, name: str | None = None) -> None:
        """Ask at once, paused or not: for everything, or for one want."""
        if name is None:
            self.pending_changes = 0
        for loop in self._loops:
            if name in (None, loop.query.name):
                loop.run_now()

    def pause(self) -> None:
        """Freeze what is shown."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.refresh()

    async def disconnect(self) -> None:
        """Ask nobody from now on; returns when no question is under way any more."""
        under_way = [loop.task for loop in self._loops]
        self.connect(None)
        await asyncio.gather(*under_way, return_exceptions=True)

    def _restart(self) -> None:
        for loop in self._loops:
            loop.stop()
        source = self._source
        self._loops = [] if source is None else [_QueryLoop(self, want, source, self._post) for want in self._queries]


class _QueryLoop:
    """One want of the visible screen, its dirtiness, and the one question about it that may be under way."""

    def __init__(
        self, store: LiveQueries, want: LiveQuery, source: DataSource, tell: Callable[[Message], object]
    ) -> None:
        self.query = want
        self._store = store
        self._source = source
        self._post = tell
        self._is_dirty = False
        self._is_urgent = True
        self._is_fetching = False
        self._is_stopped = False
        self._failures = 0
        self._woken = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"want {want.name}")

    def invalidate(self) -> None:
        """What is shown may be out of date."""
        self._is_dirty = True
        self._woken.set()

    def run_now(self) -> None:
        """Somebody waits for it."""
        self._is_urgent = True
        self._woken.set()

    def stop(self) -> None:
        """Ask no more, and keep an answer that is under way to itself."""
        self._is_stopped = True
        # A question is left to end: the driver gives up the connection of one that is cancelled.
        if not self._is_fetching:
            self.task.cancel()

    async def _run(self) -> None:
        while not self._is_stopped:
            await self._wait_until_due()
            was_urgent = self._is_urgent
            self._is_dirty = self._is_urgent = False
            asked = time.monotonic()
            await self._fetch()
            await self._throttle(time.monotonic() - asked)
            # Somebody still waits for what could not be answered, also while everything else is frozen.
            self._is_urgent |= was_urgent and self._failures > 0

    async def _wait_until_due(self) -> None:
        """Until it was touched or the poll is due; while paused, until it is asked for by hand."""
        deadline = time.monotonic() + self.query.poll_s
        while not self._is_due(deadline):
            await self._wait(max(deadline - time.monotonic(), self._store.refresh_s))

    def _is_due(self, deadline: float) -> bool:
        is_out_of_date = self._is_dirty or time.monotonic() >= deadline
        return self._is_urgent or (is_out_of_date and not self._store.is_paused)

    async def _fetch(self) -> None:
        self._is_fetching = True
        try:
            told: Message = Fetched(self.query.name, await self.query.fetch(self._source))
            self._failures = 0
        except Exception as error:  # noqa: BLE001  # the edge: one want that fails must not go silent for good
            told = FetchFailed(self.query.name, _as_horsies_error(error))
            self._failures += 1
            self._is_dirty = True
        finally:
            self._is_fetching = False
        if not self._is_stopped:
            self._post(told)

    async def _throttle(self, took_s: float) -> None:
        after_failures = 0.25 * 2**self._failures if self._failures else 0.0
        longest = max(MAX_REST_S, self._store.refresh_s)
        deadline = time.monotonic() + min(
            max(self._store.refresh_s, self.query.min_interval_s, REST_FACTOR * took_s, after_failures), longest
        )
        while not self._is_urgent and time.monotonic() < deadline:
            await self._wait(deadline - time.monotonic())

    async def _wait(self, timeout_s: float) -> None:
        """Until something happens to this want, but no longer than that."""
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), timeout_s)


def _as_horsies_error(error: Exception) -> HorsiesError:
    """What went wrong, in words for the screen; where it is a fault of ours, the log has where it happened."""
    if isinstance(error, HorsiesError):
        return error
    log.error("a read of the screens failed", exc_info=error)
    return HorsiesError(f"{type(error).__name__}: {error}")
