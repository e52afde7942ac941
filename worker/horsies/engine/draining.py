"""Dispatch until told to stop, then bring what is in hand to an end within the grace."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from horsies.engine.held import Phase
from horsies.engine.service import NO_ANSWER, Bounded
from horsies.errors import HorsiesError, on_one_line
from horsies.model import events
from horsies.store.fleet import WorkerState

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from horsies.engine.dispatch import Dispatcher
    from horsies.engine.held import Held
    from horsies.engine.parts import Parts
    from horsies.engine.service import Allowance

logger = logging.getLogger("horsies.worker")


class DispatchThenDrain:
    """The dispatcher with its end: no more claims, what waits is released, what runs gets its grace."""

    name = "dispatch"

    def __init__(self, dispatcher: Dispatcher, parts: Parts, hurry: asyncio.Event, allowance: Allowance) -> None:
        self._dispatcher = dispatcher
        self._parts = parts
        self._hurry = hurry
        """Set by a second signal: the grace is over."""
        self._allowance = allowance

    async def run(self, stop: asyncio.Event) -> None:
        await Bounded(self._dispatcher, self._allowance).run(stop)
        self._parts.room.is_closed = True
        await self._last_tries(self._announce())
        self._dispatcher.call_back_chunks()
        await self._let_finish()
        if self._running():
            await self._kill()
        await self._last_tries(self._give_back())

    async def _give_back(self) -> None:
        await self._parts.returns.give_back()
        await self._parts.returns.reconcile()  # a claim that was given up at the stop may have been carried out

    async def _announce(self) -> None:
        parts = self._parts
        parts.reporter.emit(
            events.WorkerDraining(
                worker_id=str(parts.identity.worker_id), running=len(self._running()), grace_s=parts.worker.grace_s
            )
        )
        await parts.fleet.set_state(parts.identity.worker_id, WorkerState.DRAINING)
        await self._parts.returns.release_waiting()

    async def _let_finish(self) -> None:
        """Wait for running tasks, as long as the grace lasts and nobody is in a hurry."""
        self._say_what_runs("  hint=a second Ctrl-C or SIGTERM ends them now")
        finished = asyncio.create_task(self._dispatcher.until_nothing_runs())
        hurried = asyncio.create_task(self._hurry.wait())
        waits: list[asyncio.Task[Any]] = [finished, hurried]
        await asyncio.wait(waits, timeout=self._parts.worker.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _kill(self) -> None:
        self._say_what_runs()
        self._dispatcher.kill_all()
        try:
            async with asyncio.timeout(self._parts.worker.kill_wait_s):
                await self._dispatcher.until_nothing_runs()
        except TimeoutError:
            logger.warning("processes of %d tasks are not gone", len(self._running()))

    def _say_what_runs(self, more: str = "") -> None:
        if running := self._running():
            names = ", ".join(f"{held.row.task_name} {held.key.task_id}" for held in running[:20])
            logger.info("still running: %s%s%s", names, " …" if len(running) > 20 else "", more)

    def _running(self) -> list[Held]:
        return self._parts.desk.all(Phase.HANDED)

    async def _last_tries(self, work: Awaitable[None]) -> None:
        try:
            async with self._allowance.spending():
                await work
        except (HorsiesError, TimeoutError) as error:
            logger.warning("while stopping: %s", on_one_line(error) or NO_ANSWER)
