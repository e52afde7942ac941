"""Telling workers of new tasks: which sends speak, and who speaks for those that did not."""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from horsies.errors import HorsiesError
from horsies.sync import BRIDGE, NoBridge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAUSE_S = 0.003
"""Sends that follow each other more quickly than this are a loop, or many senders at once."""
IN_A_ROW = 8
SPEAK_EVERY_S = 0.01
WAIT_S = 0.02
"""How long a silent send waits for a later one of its queue to speak for it."""
FAREWELL_S = 1.0

logger = logging.getLogger("horsies.send")


@dataclass(slots=True)
class _Queue:
    """What this process has sent to one queue; times are of the monotonic clock."""

    in_a_row: int = 0
    ended_at: float = -inf
    spoken_at: float = -inf
    silent_since: float | None = None
    silent_until: float = -inf


class Announcements:
    """Speaking takes a send about a seventh longer, and none of a long row of sends needs to: one every few
    milliseconds speaks, for all that were stored before it left. Where sends of several processes crowd, those that do
    not get the turn are silent too.

    What nobody has spoken for in time is told by one message afterwards, at the latest when the loop or the program
    ends. A process that dies before it costs a poll interval: a notification is a hint.
    """

    def __init__(
        self,
        announce: Callable[[list[str]], Awaitable[None]],
        *,
        are_left_to_us: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._announce = announce
        self._clock = clock
        self.are_left_to_us = are_left_to_us
        """Whether nobody hears of a task unless we say so; behind a pooler the insert trigger cannot be kept quiet."""
        self._queues: dict[str, _Queue] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def are_due(self) -> bool:
        """Whether there is something that nobody has spoken for yet."""
        return self._timer is not None or self._telling is not None

    def may_be_silent(self, queue_name: str, *, asked_at: float) -> bool:
        """Whether a send that leaves now is one of a long row, and one of them has just spoken."""
        queue = self._queues.get(queue_name)
        return (
            queue is not None
            and queue.in_a_row >= IN_A_ROW
            and asked_at - queue.ended_at < PAUSE_S
            and asked_at - queue.spoken_at < SPEAK_EVERY_S
        )

    def missed_its_turn(self, queue_name: str, *, asked_at: float) -> None:
        """A send wanted to speak while another process did, and was stored silently."""
        self.stored_silently(queue_name, asked_at=asked_at)
        self._queues[queue_name].spoken_at = asked_at  # the next attempt so soon would find the same

    def stored_silently(self, queue_name: str, *, asked_at: float) -> None:
        queue = self._ended(queue_name, asked_at)
        queue.silent_until = queue.ended_at
        if queue.silent_since is None:
            queue.silent_since = queue.ended_at
        if self._timer is None:
            self._look_in(WAIT_S)

    def announced(self, queue_name: str, *, asked_at: float) -> None:
        """A send that left at `asked_at` has spoken for its queue, and so for all that was stored before it left."""
        queue = self._ended(queue_name, asked_at)
        queue.spoken_at = asked_at
        if queue.silent_until < asked_at:
            queue.silent_since = None

    async def close(self) -> None:
        """Say at once what is still to be said, and nothing later: whoever still sends leaves it to the poll."""
        self._is_closed = True
        await self.say_all()

    async def say_all(self) -> None:
        """Say at once what is still to be said."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._telling is not None:
            await asyncio.wait([self._telling])
        await self._tell(self._silent_for(0))

    def _ended(self, queue_name: str, asked_at: float) -> _Queue:
        queue = self._queues.get(queue_name)
        if queue is None:
            queue = self._queues[queue_name] = _Queue()
        queue.in_a_row = queue.in_a_row + 1 if asked_at - queue.ended_at < PAUSE_S else 1
        queue.ended_at = self._clock()
        return queue

    def _look_in(self, seconds: float) -> None:
        if not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._look)
            if BRIDGE.runs(loop):
                _OF_BLOCKING_SENDS.add(self)

    def _look(self) -> None:
        self._timer = None
        if self._telling is None and (due := self._silent_for(WAIT_S)):
            self._telling = asyncio.create_task(self._tell(due))
            self._telling.add_done_callback(self._has_told)
        waiting = [queue.silent_since for queue in self._queues.values() if queue.silent_since is not None]
        if waiting:
            self._look_in(max(min(waiting) + WAIT_S - self._clock(), 0.001))

    def _has_told(self, _: asyncio.Task[None]) -> None:
        self._telling = None

    def _silent_for(self, seconds: float) -> dict[str, float]:
        """Queues with a task of which nobody has told for so long, and since when; from now on they count as told."""
        latest, due = self._clock() - seconds, dict[str, float]()
        for name, queue in self._queues.items():
            if queue.silent_since is not None and queue.silent_since <= latest:
                due[name], queue.silent_since = queue.silent_since, None
        return due

    async def _tell(self, due: dict[str, float]) -> None:
        if not due:
            return
        try:
            await self._announce(list(due))
        except HorsiesError as error:
            logger.debug("new work is not announced, its workers will find it at their next poll: %s", error.message)
        except asyncio.CancelledError:  # the loop ends: left to `close`
            for name, since in due.items():
                self._queues[name].silent_since = since
            raise


_OF_BLOCKING_SENDS: weakref.WeakSet[Announcements] = weakref.WeakSet()


@atexit.register
def _say_all_at_exit() -> None:
    """The loop of blocking sends does not end before the program; any other has had its own end."""
    due = [each for each in _OF_BLOCKING_SENDS if each.are_due]
    if due:
        with suppress(NoBridge, TimeoutError):
            BRIDGE.run(_said(due))


async def _said(due: list[Announcements]) -> None:
    async with asyncio.timeout(FAREWELL_S):
        for each in due:
            await each.say_all()
