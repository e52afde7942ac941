"""When the claim loop looks of its own accord: at the next due time, and at the poll that trusts nothing else."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.store.fleet import FleetStore

if TYPE_CHECKING:
    from horsies.engine.parts import Parts


class Wakeup:
    """Finds out when the next task is due, and looks every few seconds anyway."""

    name = "wake-up"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fleet = FleetStore(parts.claims.database)  # beats have their connection to themselves
        self._look_at = 0.0
        self._is_sooner = asyncio.Event()

    def expect(self, delay_s: float) -> None:
        """A task will be due after so many seconds, which this worker knows without asking."""
        due_at = time.monotonic() + delay_s
        if due_at < self._look_at:
            self._look_at = due_at
            self._is_sooner.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Wake the claim loop until stop is set."""
        await run_until(stop, self._poll())

    async def _poll(self) -> None:
        poll_s = self._parts.app.resilience.notify_poll_interval_ms / 1000
        while True:
            self._look_at = time.monotonic() + poll_s
            due_s = await self._until_due()
            if due_s is not None:
                self.expect(due_s)
            await self._until_it_is_time()
            self._parts.look()

    async def _until_due(self) -> float | None:
        """Seconds until the soonest task that is not due yet, if there is one."""
        try:
            async with self._parts.lane:
                return await self._fleet.next_due_s(self._parts.worker.queues or [])
        except HorsiesError:
            return None

    async def _until_it_is_time(self) -> None:
        while (left_s := self._look_at - time.monotonic()) > 0:
            self._is_sooner.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_sooner.wait(), left_s)
