"""Telling workers of new tasks: which sends speak, and who speaks for those that did not."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAUSE_S = 0.003
"""Sends that follow each other more quickly than this are a loop, or many senders at once."""
IN_A_ROW = 8
SPEAK_EVERY_S = 0.005
WAIT_S = 0.02
"""How long a silent send waits for a later one of its queue to speak for it."""

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
    """Speaking costs a send about as much as storing it, and none of a long row of sends needs to: one every few
    milliseconds speaks, for all that were stored before it left. Where sends of several processes crowd, those that do
    not get the turn are silent too.

    What nobody has spoken for in time is told by one message afterwards. A process that dies before it costs a poll
    interval: a notification is a hint.
    """

    def __init__(self, announce: Callable[[list[str]], Awaitable[None]], *, are_left_to_us: bool = True) -> None:
        self._announce = announce
        self.are_left_to_us = are_left_to_us
        """Whether nobody hears of a task unless we say so; behind a pooler the insert trigger cannot be kept quiet."""
        self._queues: dict[str, _Queue] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

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
            self._timer = asyncio.get_running_loop().call_later(WAIT_S, self._look)

    def announced(self, queue_name: str, *, asked_at: float) -> None:
        """A send that left at `asked_at` has spoken for its queue, and so for all that was stored before it left."""
        queue = self._ended(queue_name, asked_at)
        queue.spoken_at = asked_at
        if queue.silent_until < asked_at:
            queue.silent_since = None

    async def close(self) -> None:
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
        queue.in_a_row = queue.in_a_row + 1 if asked_at - queue.ended_at < PAUSE_S else 0
        queue.ended_at = time.monotonic()
        return queue

    def _look(self) -> None:
        self._timer = None
        if due := self._silent_for(WAIT_S):
            self._telling = asyncio.create_task(self._tell(due))
        waiting = [queue.silent_since for queue in self._queues.values() if queue.silent_since is not None]
        if waiting:
            left_s = max(min(waiting) + WAIT_S - time.monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look)

    def _silent_for(self, seconds: float) -> list[str]:
        """Queues with a task of which nobody has told for so long; from now on they count as told."""
        since = time.monotonic() - seconds
        due = [name for name, queue in self._queues.items() if (queue.silent_since or inf) <= since]
        for name in due:
            self._queues[name].silent_since = None
        return due

    async def _tell(self, queues: list[str]) -> None:
        if not queues:
            return
        try:
            await self._announce(queues)
        except HorsiesError as error:
            logger.debug("new work is not announced, its workers will find it at their next poll: %s", error.message)
