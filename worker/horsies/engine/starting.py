"""The end of a start: a worker is `running` once it hears of new work and of orders."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.store.fleet import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.engine.parts import Parts


class Starting:
    """Says once that the worker has started, then waits for its end as services do."""

    name = "start"

    def __init__(self, parts: Parts, *, hears: asyncio.Event, tell: Callable[[], None]) -> None:
        self._parts = parts
        self._hears = hears
        self._tell = tell

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._say_once())

    async def _say_once(self) -> None:
        await self._hears.wait()
        await self._set_running()
        self._tell()
        await asyncio.Event().wait()

    async def _set_running(self) -> None:
        backoff = self._parts.backoff(self.name)
        while True:
            try:
                await self._parts.fleet.set_state(self._parts.identity.worker_id, WorkerState.RUNNING)
            except HorsiesError as error:
                await backoff.wait(error)
            else:
                return
