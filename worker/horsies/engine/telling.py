"""Telling those who watch what moved, where no other statement takes it along."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.model.summary import INTERVAL_S

if TYPE_CHECKING:
    from horsies.engine.reporting import Reporter
    from horsies.store.events import EventStore


class Telling:
    """Leaves each move to the finishes and beats of the next quarter of a second, then tells it alone."""

    name = "telling"

    def __init__(self, reporter: Reporter, store: EventStore) -> None:
        self._reporter = reporter
        self._store = store

    async def run(self, stop: asyncio.Event) -> None:
        """Tell until stop is set, and what is left then."""
        await run_until(stop, self._tell_for_ever())
        due_at = self._reporter.summary.due_at()
        if due_at is not None:
            await asyncio.sleep(due_at - time.monotonic())
            await self._tell()

    async def _tell_for_ever(self) -> None:
        while True:
            await self._reporter.has_moved.wait()
            self._reporter.has_moved.clear()
            await asyncio.sleep(INTERVAL_S)
            await self._tell()

    async def _tell(self) -> None:
        if messages := self._reporter.summary.take(time.monotonic()):
            with suppress(HorsiesError):  # those who watch look for themselves now and then
                await self._store.announce(messages)
