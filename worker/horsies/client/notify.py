"""Coalesces NOTIFY: the sends of a burst share one notification.

The problem: a transaction that executes NOTIFY holds a cluster-wide lock until its commit is on disk. If every send
notified, concurrent producers would commit one after another, and even for a single producer NOTIFY would take about
15 % of the time of a send.

The rule, per queue:

1. The first sends of a burst notify with their own commit, so a lone send reaches a worker at once.
2. Once the burst is long enough, a send skips NOTIFY if another one notified less than `NOTIFY_INTERVAL_S` ago
   (`may_defer`). A send also skips it if another process is notifying at that moment (`record_contended`). Both kinds
   of sends are *deferred*.
3. A later notification covers every task stored before it was sent. Queues whose deferred tasks are not covered within
   `MAX_DEFER_S` are notified in one separate statement. Closing the session or exiting the program does that at once.

A lost notification is harmless: it only wakes workers early. They also poll, so if this process dies before step 3, its
tasks start up to one poll interval later.
"""

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
"""Sends closer together than this belong to one burst."""
MIN_BURST_LENGTH = 8
"""Number of sends in a burst that notify before any is deferred."""
NOTIFY_INTERVAL_S = 0.01
"""Minimum time between two notifications for one queue during a burst."""
MAX_DEFER_S = 0.02
"""How long a deferred task waits for another notification to cover it."""
EXIT_FLUSH_TIMEOUT_S = 1.0
"""How long the exit of the program may wait for the last notifications."""

logger = logging.getLogger("horsies.send")


@dataclass(slots=True)
class _QueueState:
    """Recent sends of this process to one queue; times are `time.monotonic()` values."""

    burst_length: int = 0
    last_send_at: float = -inf
    notified_at: float = -inf
    deferred_since: float | None = None
    last_deferred_at: float = -inf


class NotifyCoalescer:
    """Decides which sends notify, and notifies later for those that did not. One per event loop."""

    def __init__(
        self,
        notify_queues: Callable[[list[str]], Awaitable[None]],
        *,
        notifies_explicitly: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notify_queues = notify_queues
        self._clock = clock
        self.notifies_explicitly = notifies_explicitly
        """True: the insert trigger is off in this session, so sends notify themselves. Behind a pooler it is False: the
        trigger notifies for every insert and there is nothing to coalesce."""
        self._queues: dict[str, _QueueState] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flush_task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def has_deferred(self) -> bool:
        """Whether a flush is scheduled or running."""
        return self._timer is not None or self._flush_task is not None

    def may_defer(self, queue_name: str, *, send_started_at: float) -> bool:
        """Whether a send may skip NOTIFY: it is part of a long burst that notified a moment ago."""
        queue = self._queues.get(queue_name)
        return (
            queue is not None
            and queue.burst_length >= MIN_BURST_LENGTH
            and send_started_at - queue.last_send_at < BURST_GAP_S
            and send_started_at - queue.notified_at < NOTIFY_INTERVAL_S
        )

    def record_notified(self, queue_name: str, *, send_started_at: float) -> None:
        """Record a send that notified; it covers all tasks of its queue stored before `send_started_at`."""
        queue = self._record_send(queue_name, send_started_at)
        queue.notified_at = send_started_at
        # A task deferred while this send was under way may have been committed after the notification went out.
        if queue.last_deferred_at < send_started_at:
            queue.deferred_since = None

    def record_deferred(self, queue_name: str, *, send_started_at: float) -> None:
        """Record a send that skipped NOTIFY, and make sure that a flush is scheduled."""
        queue = self._record_send(queue_name, send_started_at)
        queue.last_deferred_at = queue.last_send_at
        if queue.deferred_since is None:
            queue.deferred_since = queue.last_send_at
        if self._timer is None:
            self._schedule_flush(MAX_DEFER_S)

    def record_contended(self, queue_name: str, *, send_started_at: float) -> None:
        """Record a send that was stored without NOTIFY because another process held the queue's notify lock."""
        self.record_deferred(queue_name, send_started_at=send_started_at)
        # Counts as a notification for the interval: trying the lock again right away would most likely fail too.
        self._queues[queue_name].notified_at = send_started_at

    async def flush(self) -> None:
        """Notify now for every deferred task."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task])  # unlike `await`, does not cancel the task with this call
        await self._notify(self._take_deferred(0))

    async def close(self) -> None:
        """Flush, and schedule no further flushes; workers find tasks deferred after this at their next poll."""
        self._is_closed = True
        await self.flush()

    def _record_send(self, queue_name: str, send_started_at: float) -> _QueueState:
        queue = self._queues.get(queue_name)
        if queue is None:
            queue = self._queues[queue_name] = _QueueState()
        queue.burst_length = queue.burst_length + 1 if send_started_at - queue.last_send_at < BURST_GAP_S else 1
        queue.last_send_at = self._clock()  # its end: a burst is measured by the gaps between sends
        return queue

    def _schedule_flush(self, seconds: float) -> None:
        if not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._flush_due)
            if BRIDGE.owns_loop(loop):
                _BRIDGE_COALESCERS.add(self)

    def _flush_due(self) -> None:
        """Notify in the background for tasks deferred for `MAX_DEFER_S`; reschedule for younger ones."""
        self._timer = None
        if self._flush_task is None and (due := self._take_deferred(MAX_DEFER_S)):
            self._flush_task = asyncio.create_task(self._notify(due))
            self._flush_task.add_done_callback(self._on_flushed)
        waiting = [queue.deferred_since for queue in self._queues.values() if queue.deferred_since is not None]
        if waiting:
            # At least 1 ms: while a flush is running, queues that are overdue have to wait for it.
            self._schedule_flush(max(min(waiting) + MAX_DEFER_S - self._clock(), 0.001))

    def _on_flushed(self, _: asyncio.Task[None]) -> None:
        self._flush_task = None

    def _take_deferred(self, min_age_s: float) -> dict[str, float]:
        """Return queues with tasks deferred for at least `min_age_s`, each with the time of the first; resets them."""
        newest_due, due = self._clock() - min_age_s, dict[str, float]()
        for name, queue in self._queues.items():
            if queue.deferred_since is not None and queue.deferred_since <= newest_due:
                due[name], queue.deferred_since = queue.deferred_since, None
        return due

    async def _notify(self, due: dict[str, float]) -> None:
        if not due:
            return
        try:
            await self._notify_queues(list(due))
        except HorsiesError as error:
            logger.debug("NOTIFY failed, workers will find the tasks at their next poll: %s", error.message)
        except asyncio.CancelledError:
            # The loop is shutting down: put the queues back for `close` to flush.
            for name, since in due.items():
                self._queues[name].deferred_since = since
            raise


_BRIDGE_COALESCERS: weakref.WeakSet[NotifyCoalescer] = weakref.WeakSet()


@atexit.register
def _flush_at_exit() -> None:
    """Flush the coalescers of blocking sends, whose loop runs until the program exits; `close` flushes the others."""
    due = [coalescer for coalescer in _BRIDGE_COALESCERS if coalescer.has_deferred]
    if due:
        with suppress(BridgeUnavailable, TimeoutError):
            BRIDGE.run(_flush_all(due))


async def _flush_all(coalescers: list[NotifyCoalescer]) -> None:
    async with asyncio.timeout(EXIT_FLUSH_TIMEOUT_S):
        for coalescer in coalescers:
            await coalescer.flush()
