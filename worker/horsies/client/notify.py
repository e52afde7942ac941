"""Telling workers of new tasks: which sends speak, and who speaks for those that did not."""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from horsies.errors import HorsiesError
from horsies.sync import BRIDGE, BridgeUnavailable

BURST_GAP_S = 0.003
"""Sends that follow each other more quickly than this are a loop, or many senders at once."""
MIN_BURST_LENGTH = 8
NOTIFY_INTERVAL_S = 0.01
MAX_DEFER_S = 0.02
"""How long a silent send waits for a later one of its queue to speak for it."""
EXIT_FLUSH_TIMEOUT_S = 1.0

logger = logging.getLogger("horsies.send")


@dataclass(slots=True)
class _QueueState:
    """What this process has sent to one queue; times are of the monotonic clock."""

    burst_length: int = 0
    last_send_at: float = -inf
    notified_at: float = -inf
    deferred_since: float | None = None
    last_deferred_at: float = -inf


class NotifyCoalescer:
    """Speaking takes a send about a seventh longer, and none of a long row of sends needs to: one every few
    milliseconds speaks, for all that were stored before it left. Where sends of several processes crowd, those that do
    not get the turn are silent too.

    What nobody has spoken for in time is told by one message afterwards, at the latest when the loop or the program
    ends. A process that dies before it costs a poll interval: a notification is a hint.
    """

    def __init__(
        self,
        notify: Callable[[list[str]], Awaitable[None]],
        *,
        notifies_explicitly: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._announce = notify
        self._clock = clock
        self.notifies_explicitly = notifies_explicitly
        """Whether nobody hears of a task unless we say so; behind a pooler the insert trigger cannot be kept quiet."""
        self._queues: dict[str, _QueueState] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def has_deferred(self) -> bool:
        """Whether there is something that nobody has spoken for yet."""
        return self._timer is not None or self._flushing is not None

    def may_defer(self, queue_name: str, *, send_started_at: float) -> bool:
        """Whether a send that leaves now is one of a long row, and one of them has just spoken."""
        queue = self._queues.get(queue_name)
        return (
            queue is not None
            and queue.burst_length >= MIN_BURST_LENGTH
            and send_started_at - queue.last_send_at < BURST_GAP_S
            and send_started_at - queue.notified_at < NOTIFY_INTERVAL_S
        )

    def record_contended(self, queue_name: str, *, send_started_at: float) -> None:
        """A send wanted to speak while another process did, and was stored silently."""
        self.record_deferred(queue_name, send_started_at=send_started_at)
        self._queues[queue_name].notified_at = send_started_at  # the next attempt so soon would find the same

    def record_deferred(self, queue_name: str, *, send_started_at: float) -> None:
        queue = self._record_send(queue_name, send_started_at)
        queue.last_deferred_at = queue.last_send_at
        if queue.deferred_since is None:
            queue.deferred_since = queue.last_send_at
        if self._timer is None:
            self._schedule_flush(MAX_DEFER_S)

    def record_notified(self, queue_name: str, *, send_started_at: float) -> None:
        """A send that left at `asked_at` has spoken for its queue, and so for all that was stored before it left."""
        queue = self._record_send(queue_name, send_started_at)
        queue.notified_at = send_started_at
        if queue.last_deferred_at < send_started_at:
            queue.deferred_since = None

    async def close(self) -> None:
        """Say at once what is still to be said, and nothing later: whoever still sends leaves it to the poll."""
        self._is_closed = True
        await self.flush()

    async def flush(self) -> None:
        """Say at once what is still to be said."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        await self._notify(self._take_deferred(0))

    def _record_send(self, queue_name: str, asked_at: float) -> _QueueState:
        queue = self._queues.get(queue_name)
        if queue is None:
            queue = self._queues[queue_name] = _QueueState()
        queue.burst_length = queue.burst_length + 1 if asked_at - queue.last_send_at < BURST_GAP_S else 1
        queue.last_send_at = self._clock()
        return queue

    def _schedule_flush(self, seconds: float) -> None:
        if not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._flush_due)
            if BRIDGE.owns_loop(loop):
                _BRIDGE_COALESCERS.add(self)

    def _flush_due(self) -> None:
        self._timer = None
        if self._flushing is None and (due := self._take_deferred(MAX_DEFER_S)):
            self._flushing = asyncio.create_task(self._notify(due))
            self._flushing.add_done_callback(self._on_flushed)
        waiting = [queue.deferred_since for queue in self._queues.values() if queue.deferred_since is not None]
        if waiting:
            self._schedule_flush(max(min(waiting) + MAX_DEFER_S - self._clock(), 0.001))

    def _on_flushed(self, _: asyncio.Task[None]) -> None:
        self._flushing = None

    def _take_deferred(self, seconds: float) -> dict[str, float]:
        """Queues with a task of which nobody has told for so long, and since when; from now on they count as told."""
        latest, due = self._clock() - seconds, dict[str, float]()
        for name, queue in self._queues.items():
            if queue.deferred_since is not None and queue.deferred_since <= latest:
                due[name], queue.deferred_since = queue.deferred_since, None
        return due

    async def _notify(self, due: dict[str, float]) -> None:
        if not due:
            return
        try:
            await self._announce(list(due))
        except HorsiesError as error:
            logger.debug("new work is not announced, its workers will find it at their next poll: %s", error.message)
        except asyncio.CancelledError:  # the loop ends: left to `close`
            for name, since in due.items():
                self._queues[name].deferred_since = since
            raise


_BRIDGE_COALESCERS: weakref.WeakSet[NotifyCoalescer] = weakref.WeakSet()


@atexit.register
def _flush_at_exit() -> None:
    """The loop of blocking sends does not end before the program; any other has had its own end."""
    due = [each for each in _BRIDGE_COALESCERS if each.has_deferred]
    if due:
        with suppress(BridgeUnavailable, TimeoutError):
            BRIDGE.run(_said(due))


async def _said(due: list[NotifyCoalescer]) -> None:
    async with asyncio.timeout(EXIT_FLUSH_TIMEOUT_S):
        for each in due:
            await each.flush()
