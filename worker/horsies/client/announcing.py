"""Telling workers of tasks that were stored while another send was announcing."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WAIT_S = 0.02

logger = logging.getLogger("horsies.send")


class Announcements:
    """The tail of a burst: where sends crowd, most store their task silently, and one message afterwards does for all.

    It leaves after the sender has its answer, and only for queues of which no later send has spoken meanwhile. A
    process that dies before it costs a poll interval: a notification is a hint.
    """

    def __init__(self, announce: Callable[[list[str]], Awaitable[None]]) -> None:
        self._announce = announce
        self._silent_since: dict[str, float] = {}
        self._waiting: asyncio.Task[None] | None = None

    def stored_silently(self, queue_name: str) -> None:
        self._silent_since[queue_name] = time.monotonic()
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._tell_later())

    def announced(self, queue_name: str, *, asked_at: float) -> None:
        """A send that left at `asked_at` has spoken for its queue, and so for all that was stored before it left."""
        if self._silent_since and self._silent_since.get(queue_name, asked_at) < asked_at:
            del self._silent_since[queue_name]

    async def close(self) -> None:
        """Say at once what is still to be said."""
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait([self._waiting])
        await self._tell()

    async def _tell_later(self) -> None:
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            self._waiting = None
        await self._tell()

    async def _tell(self) -> None:
        queues = list(self._silent_since)
        self._silent_since.clear()
        if not queues:
            return
        try:
            await self._announce(queues)
        except HorsiesError as error:
            logger.debug("new work is not announced, its workers will find it at their next poll: %s", error.message)
