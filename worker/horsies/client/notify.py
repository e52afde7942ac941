"""Coalesces NOTIFY: the sends of a burst share one notification.

A transaction that executes NOTIFY holds a cluster-wide lock until its commit is on disk. If every send notified,
concurrent producers would commit one after another: eight of them would be 45 % slower.

So a send to a queue either

- notifies with its own commit, so that a worker starts the task at once, or
- is *deferred*: it stores the task without NOTIFY, and `FLUSH_AFTER_S` later one separate statement notifies for all
  queues that have deferred tasks.

A send is deferred if it belongs to a burst, that is, if at least `BURST_LENGTH` sends to its queue came before it, each
less than `BURST_GAP_S` after the previous one. It is also deferred if another send to the queue, in any process, is
notifying at that moment: see `Notify.UNLESS_CONTENDED`.

A lost notification is harmless, because it only wakes workers early. They also poll, so if this process dies before it
notifies, its deferred tasks start up to one poll interval later. Closing the session or exiting the program notifies at
once.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from horsies.errors import HorsiesError
from horsies.model.send import TaskSendPayload
from horsies.store.tasks import EnqueueResult, Notify, TaskStore
from horsies.sync import BRIDGE, BridgeUnavailable

BURST_GAP_S = 0.003
BURST_LENGTH = 8
FLUSH_AFTER_S = 0.01
EXIT_FLUSH_TIMEOUT_S = 1.0
"""How long the exit of the program may wait for the last notifications."""

logger = logging.getLogger("horsies.send")


@dataclass(slots=True)
class Burst:
    """The latest sends of this process to one queue, each shortly after the previous one."""

    length: int = 0
    last_send_at: float = -inf

    def add(self, now: float) -> None:
        self.length = self.length + 1 if now - self.last_send_at < BURST_GAP_S else 1
        self.last_send_at = now


class NotifyCoalescer:
    """Stores tasks, and notifies workers of them at once or a moment later. One per event loop."""

    def __init__(self, tasks: TaskStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._clock = clock
        self._bursts: dict[str, Burst] = {}
        self._deferred_queues: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._flush_task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def enqueue(self, payload: TaskSendPayload, *, timeout_s: float | None = None) -> EnqueueResult:
        """Store the task in its own transaction; see `TaskStore.enqueue`."""
        if payload.enqueue_delay_seconds:  # workers poll for tasks that become due
            return await self._tasks.enqueue(payload, notify=Notify.NEVER, timeout_s=timeout_s)
        burst = self._bursts.setdefault(payload.queue_name, Burst())
        burst.add(self._clock())
        notify = Notify.NEVER if burst.length > BURST_LENGTH else Notify.UNLESS_CONTENDED
        is_deferred = notify is Notify.NEVER  # after an error too: the task may have been stored before it
        try:
            enqueued = await self._tasks.enqueue(payload, notify=notify, timeout_s=timeout_s)
            is_deferred = not enqueued.is_notified
        finally:
            burst.last_send_at = self._clock()  # gaps count from the end of a send
            if is_deferred:
                self._deferred_queues.add(payload.queue_name)
                self._schedule_flush()
        return enqueued

    @property
    def has_deferred(self) -> bool:
        """Whether a flush is scheduled or running."""
        return self._timer is not None or self._flush_task is not None

    async def flush(self) -> None:
        """Notify now for every deferred task."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task])  # unlike `await`, does not cancel the task with this call
        await self._notify_deferred()

    async def close(self) -> None:
        """Flush, and schedule no further flushes; workers find tasks deferred after this at their next poll."""
        self._is_closed = True
        await self.flush()

    def _schedule_flush(self) -> None:
        if self.has_deferred or self._is_closed:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FLUSH_AFTER_S, self._start_flush)
        if BRIDGE.owns_loop(loop):
            _BRIDGE_COALESCERS.add(self)

    def _start_flush(self) -> None:
        self._timer = None
        self._flush_task = asyncio.create_task(self._notify_deferred())
        self._flush_task.add_done_callback(self._on_flushed)

    def _on_flushed(self, _: asyncio.Task[None]) -> None:
        self._flush_task = None
        if self._deferred_queues:  # by sends that ended during the flush
            self._schedule_flush()

    async def _notify_deferred(self) -> None:
        queues = sorted(self._deferred_queues)
        if not queues:
            return
        self._deferred_queues.clear()
        try:
            await self._tasks.notify_queues(queues)
        except HorsiesError as error:
            logger.debug("NOTIFY failed, workers will find the tasks at their next poll: %s", error.message)
        except asyncio.CancelledError:
            self._deferred_queues.update(queues)  # the loop is shutting down: `close` will flush them
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
