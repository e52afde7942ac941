"""Loops with one duty each, and what runs them together."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Sequence

log = logging.getLogger("horsies.service")


class Service(Protocol):
    """A loop with one duty."""

    @property
    def name(self) -> str: ...

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stop is set, then finish what is in hand."""
        ...


class ServiceEnded(HorsiesError):
    """A loop ended that nobody had told to."""


async def run_together(services: Sequence[Service], stop: asyncio.Event) -> None:
    """Run all until `stop` is set, then stop them in the order given, each after those before it have finished.

    One that ends by itself sets `stop`, and once the others have finished `ServiceEnded` is raised. Cancelled, all are.
    """
    running = [_Running(service) for service in services]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, *(each.task for each in running)], return_when=asyncio.FIRST_COMPLETED)
        died = [] if stop.is_set() else [each for each in running if each.task.done()]
        for each in died:
            log.critical("%s ended by itself; the worker stops", each.service.name, exc_info=each.error)
        stop.set()
        for each in running:
            await each.finish()
    finally:
        await _cancel([stopping, *(each.task for each in running)])
    if died := died or [each for each in running if each.error is not None]:
        raise ServiceEnded(f"{died[0].service.name} ended by itself") from died[0].error


class _Running:
    """A service at work, with a signal of its own to stop."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(service.run(self._stop), name=service.name)

    @property
    def error(self) -> BaseException | None:
        """What it ended with, if not well."""
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None

    async def finish(self) -> None:
        self._stop.set()
        await asyncio.wait([self.task])


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_until(stop: asyncio.Event, *loops: Coroutine[Any, Any, None]) -> None:
    """Run endless loops side by side until stop is set; the first that fails ends all, with its error."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait()), *map(asyncio.create_task, loops)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        await _cancel(tasks)


NO_ANSWER: Final = "the database did not answer in time"


class Allowance:
    """How long a stop may wait, in all, for a database that does not answer."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    @asynccontextmanager
    async def spending(self) -> AsyncGenerator[None]:
        """Raise TimeoutError in the block when nothing is left."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.left_s):
                yield
        finally:
            self.left_s = max(0.0, self.left_s - (time.monotonic() - began))


class Bounded:
    """A service that finishes within an allowance after it was told to stop, or is cancelled."""

    def __init__(self, service: Service, allowance: Allowance) -> None:
        self._service = service
        self._allowance = allowance
        self.name = service.name

    async def run(self, stop: asyncio.Event) -> None:
        running = asyncio.create_task(self._service.run(stop))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
                return
            with suppress(TimeoutError):
                async with self._allowance.spending():
                    await asyncio.wait([running])
            if running.done():
                running.result()
        finally:
            await _cancel([running, stopping])
