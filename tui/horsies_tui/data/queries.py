"""Live queries: the results the visible screen shows, refreshed when a change invalidates them.

Each query has one loop: wait until it is invalidated or its poll is due, fetch, post the result, pause. All changes
that arrive during a fetch or pause cause one further fetch. The pause is the refresh interval or four times the
duration of the fetch, whichever is longer, so a slow database gets fewer queries, not more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, TypeVar

from textual.message import Message

from horsies.errors import HorsiesError
from horsies_ops.reads.changes import Change, Topic
from horsies_ops.source import DataSource

log = logging.getLogger("horsies.tui")

THROTTLE_FACTOR: Final = 4
"""The pause between two queries is at least this multiple of the query's duration."""
MAX_THROTTLE_S: Final = 10.0
MAX_CHANGES: Final = 2_000
_LOGGED_TOPICS: Final = frozenset({Topic.TASK_NEW, Topic.STATUS_CHANGE, Topic.WORKFLOW, Topic.FEED})
"""Heartbeats are too frequent; finished tasks are also status changes; events are read from their table."""


T = TypeVar("T")


class Fetched(Message):
    """A live query returned a result; `draw` passes it to the query's `on_result`."""

    def __init__(self, name: str, draw: Callable[[], object]) -> None:
        super().__init__()
        self.name = name
        self.draw = draw

    def can_replace(self, message: Message) -> bool:
        # A newer result replaces one that is still in the message queue.
        return isinstance(message, Fetched) and message.name == self.name


class FetchFailed(Message):
    """A live query failed; it will be retried."""

    def __init__(self, name: str, error: HorsiesError) -> None:
        super().__init__()
        self.name = name
        self.error = error


@dataclass(frozen=True, slots=True)
class LiveQuery(Generic[T]):
    """A query of a screen, what draws its result, and the topics whose changes invalidate it."""

    name: str
    fetch: Callable[[DataSource], Awaitable[T]]
    on_result: Callable[[T], object]
    """Called by the visible screen. Results are immutable."""
    invalidated_by: frozenset[Topic] = frozenset()
    _: KW_ONLY
    poll_s: float = 15.0
    """Fetched again after this time even without a change."""
    min_interval_s: float = 0.0
    """Fetched at most this often, if longer than the refresh interval."""


class LiveQueries:
    """Runs the live queries of the visible screen."""

    def __init__(self, *, refresh_s: float = 0.25) -> None:
        self.refresh_s = refresh_s
        self.is_paused = False
        self.pending_changes = 0
        """Changes received while paused that are not shown yet."""
        self.change_log = ChangeLog()
        self._source: DataSource | None = None
        self._loops: list[_QueryLoop] = []
        self._queries: tuple[LiveQuery[Any], ...] = ()
        self._post: Callable[[Message], object] = lambda _: None

    def connect(self, source: DataSource | None) -> None:
        """Run the queries against this source; None stops them."""
        self._source = source
        self._restart()

    def set_queries(self, queries: Sequence[LiveQuery[Any]], post: Callable[[Message], object]) -> None:
        """Replace the queries by those of the screen that is now visible; results go to `post`."""
        self._queries, self._post = tuple(queries), post
        self._restart()

    def invalidate(self, topic: Topic, count: int = 1) -> None:
        """Fetch the queries that depend on this topic again, each after its pause."""
        affected = [loop for loop in self._loops if topic in loop.query.invalidated_by]
        if affected and self.is_paused:
            self.pending_changes += count
        for loop in affected:
            loop.invalidate()

    def invalidate_all(self) -> None:
        """Fetch all queries again, unless paused."""
        for loop in self._loops:
            loop.invalidate()

    def refresh(self, name: str | None = None) -> None:
        """Fetch all queries, or the named one, at once, even while paused."""
        if name is None:
            self.pending_changes = 0
        for loop in self._loops:
            if name in (None, loop.query.name):
                loop.run_now()

    def pause(self) -> None:
        """Freeze the results on screen."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.refresh()

    async def disconnect(self) -> None:
        """Stop all queries; returns when the running ones have ended."""
        tasks = [loop.task for loop in self._loops]
        self.connect(None)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _restart(self) -> None:
        for loop in self._loops:
            loop.stop()
        source = self._source
        self._loops = [] if source is None else [_QueryLoop(self, query, source, self._post) for query in self._queries]


class _QueryLoop:
    """Fetches one live query whenever it is due; at most one fetch runs at a time."""

    def __init__(
        self, owner: LiveQueries, query: LiveQuery[Any], source: DataSource, post: Callable[[Message], object]
    ) -> None:
        self.query = query
        self._owner = owner
        self._source = source
        self._post = post
        self._is_dirty = False
        """Whether to fetch again after the pause."""
        self._is_urgent = True
        """Whether to fetch now, even during the pause or while paused by the user; true for the first fetch."""
        self._is_fetching = False
        self._is_stopped = False
        self._failures = 0
        self._woken = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"live query {query.name}")

    def invalidate(self) -> None:
        """Fetch again after the pause."""
        self._is_dirty = True
        self._woken.set()

    def run_now(self) -> None:
        """Fetch again without a pause."""
        self._is_urgent = True
        self._woken.set()

    def stop(self) -> None:
        """Stop fetching and discard the result of a running fetch."""
        self._is_stopped = True
        # A running fetch may finish: cancelling it would make the driver close the connection.
        if not self._is_fetching:
            self.task.cancel()

    async def _run(self) -> None:
        while not self._is_stopped:
            await self._wait_until_due()
            was_urgent = self._is_urgent
            # Cleared before the fetch: a change during it makes its result outdated again.
            self._is_dirty = self._is_urgent = False
            started = time.monotonic()
            await self._fetch()
            await self._throttle(time.monotonic() - started)
            # A manual refresh that failed stays urgent, so that it is retried even while paused.
            self._is_urgent |= was_urgent and self._failures > 0

    async def _wait_until_due(self) -> None:
        """Wait until the query is invalidated or its poll is due; while paused, until a manual refresh."""
        deadline = time.monotonic() + self.query.poll_s
        while not self._is_due(deadline):
            # At least one refresh interval: while paused, the deadline may have passed long ago.
            await self._wait(max(deadline - time.monotonic(), self._owner.refresh_s))

    def _is_due(self, deadline: float) -> bool:
        is_out_of_date = self._is_dirty or time.monotonic() >= deadline
        return self._is_urgent or (is_out_of_date and not self._owner.is_paused)

    async def _fetch(self) -> None:
        self._is_fetching = True
        try:
            result = await self.query.fetch(self._source)
            message: Message = Fetched(self.query.name, partial(self.query.on_result, result))
            self._failures = 0
        except Exception as error:  # noqa: BLE001  # a failing query must not end its loop
            message = FetchFailed(self.query.name, _as_horsies_error(error))
            self._failures += 1
            # Due again after the backoff instead of at the next poll.
            self._is_dirty = True
        finally:
            self._is_fetching = False
        if not self._is_stopped:
            self._post(message)

    async def _throttle(self, took_s: float) -> None:
        """Pause after a fetch that took `took_s`; failures lengthen the pause exponentially."""
        backoff_s = 0.25 * 2**self._failures if self._failures else 0.0
        refresh_s = self._owner.refresh_s
        pause_s = max(refresh_s, self.query.min_interval_s, THROTTLE_FACTOR * took_s, backoff_s)
        deadline = time.monotonic() + min(pause_s, max(MAX_THROTTLE_S, refresh_s))
        # Changes wake the loop too, but only a manual refresh ends the pause early.
        while not self._is_urgent and time.monotonic() < deadline:
            await self._wait(deadline - time.monotonic())

    async def _wait(self, timeout_s: float) -> None:
        """Wait until the loop is woken or the timeout has passed."""
        # No wake-up is lost here: callers have just checked the flags, and nothing was awaited since.
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), timeout_s)


def _as_horsies_error(error: Exception) -> HorsiesError:
    """The error to show. Unexpected exceptions are bugs and are logged with their traceback."""
    if isinstance(error, HorsiesError):
        return error
    log.error("live query failed", exc_info=error)
    return HorsiesError(f"{type(error).__name__}: {error}")


# The change log, kept for all screens so that Events can show recent changes when it opens


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change with its serial number."""

    number: int
    change: Change


class ChangeLog:
    """The last 2,000 changes, kept in memory."""

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
        """Changes in the last minute, including those no longer kept. `now` uses the clock of the changes."""
        cutoff = _second(now) - 60
        for second in [second for second in self._per_second if second <= cutoff]:
            del self._per_second[second]
        return self._per_second.total()

    @property
    def changes(self) -> tuple[LoggedChange, ...]:
        """The kept changes, oldest first."""
        return tuple(self._changes)


def _second(at: datetime) -> int:
    return int(at.timestamp())
