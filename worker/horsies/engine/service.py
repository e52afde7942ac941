"""Loops with one duty each, and what runs them together."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from horsies.errors import BrokerError, DatabaseUnreachable, HorsiesError, format_one_line

if TYPE_CHECKING:
    from horsies.model.settings.worker import WorkerResilienceConfig


logger = logging.getLogger("horsies.service")


class Service(Protocol):
    """A loop with one duty."""

    @property
    def name(self) -> str: ...

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stop is set, then finish what is in hand."""
        ...


class ServiceEnded(HorsiesError):
    """A loop ended that nobody had told to."""


async def run_services(services: Sequence[Service], stop: asyncio.Event) -> None:
    """Run all until `stop` is set, then stop them in the order given, each after those before it have finished.

    One that ends by itself sets `stop`, and once the others have finished `ServiceEnded` is raised. Cancelled, all are.
    """
    running = [_RunningService(service) for service in services]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, *(each.task for each in running)], return_when=asyncio.FIRST_COMPLETED)
        died = [] if stop.is_set() else [each for each in running if each.task.done()]
        for each in died:
            logger.critical("%s ended by itself; the worker stops", each.service.name, exc_info=each.error)
        stop.set()
        for each in running:
            await each.finish()
    finally:
        await _cancel([stopping, *(each.task for each in running)])
    if died := died or [each for each in running if each.error is not None]:
        raise ServiceEnded(f"{died[0].service.name} ended by itself") from died[0].error


class _RunningService:
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


class ShutdownBudget:
    """How long a stop may wait, in all, for a database that does not answer."""

    def __init__(self, left_s: float) -> None:
        self.remaining_s = left_s

    @asynccontextmanager
    async def spend(self) -> AsyncGenerator[None]:
        """Raise TimeoutError in the block when nothing is left."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.remaining_s):
                yield
        finally:
            self.remaining_s = max(0.0, self.remaining_s - (time.monotonic() - began))


class BoundedService:
    """A service that finishes within an allowance after it was told to stop, or is cancelled."""

    def __init__(self, service: Service, allowance: ShutdownBudget) -> None:
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
                async with self._allowance.spend():
                    await asyncio.wait([running])
            if running.done():
                running.result()
        finally:
            await _cancel([running, stopping])


# The pauses between tries to reach a database that is away.

JITTER: Final = 0.25
_MOST_DOUBLINGS: Final = 20
"""More than any pause needs to reach its cap, and few enough to stay a number."""


def pause_ms(config: WorkerResilienceConfig, attempt: int, *, draw: float) -> float:
    """The pause after failed attempt `attempt` (from 0), a quarter longer or shorter by `draw` from 0..1; capped."""
    factor = 1.0 - JITTER + 2 * JITTER * draw
    doubled = config.db_retry_initial_ms * 2 ** min(attempt, _MOST_DOUBLINGS)
    return min(float(config.db_retry_max_ms), doubled * factor)


def is_transient(error: Exception) -> bool:
    """Whether the database may answer later: it is away, shut, or said that the same statement may succeed."""
    # A server that refuses our login is away too: results are kept until somebody lets us in again.
    return isinstance(error, DatabaseUnreachable) or (isinstance(error, BrokerError) and error.retryable)


class Backoff:
    """One loop's failures in a row. `wait` after each, `reset` after a good iteration.

    `changed` hears the first failure of a row, and None when the database is back.
    """

    def __init__(
        self,
        config: WorkerResilienceConfig,
        *,
        on_change: Callable[[Exception | None], None] = lambda _: None,
        draw: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._changed = on_change
        self._draw = draw
        self._sleep = sleep
        self._failures = 0

    def reset(self) -> None:
        if self._failures:
            self._failures = 0
            self._changed(None)

    async def wait(self, error: Exception) -> None:
        """Pause after a failure; raise `error` where it will not pass, or where it was the last attempt allowed."""
        if not is_transient(error):
            raise error
        self._failures += 1
        if self._failures == 1:
            self._changed(error)
        if self._failures == self._config.db_retry_max_attempts:
            raise error
        await self._sleep(pause_ms(self._config, self._failures - 1, draw=self._draw()) / 1_000)


# A duty that may fail without holding up those beside it, and is never silently given up.

SLOW_AFTER_FAILURES: Final = 3
SLOW_EVERY_TICKS: Final = 10
"""For an operation that has failed so often."""

recovery_logger = logging.getLogger("horsies.recovery")


class PeriodicJob:
    """Due at each tick; after three failures in a row that will not pass by themselves, at one tick in ten.

    `changed` hears its name and the error when it is slowed down, and None when it has succeeded again.
    """

    def __init__(self, name: str, *, on_change: Callable[[str, str | None], None]) -> None:
        self.name = name
        self._changed = on_change
        self._failures = 0
        self._skipped_ticks = 0

    async def run_if_due(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do the work where it is due; its failure is ours."""
        if not self.take_tick():
            return
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # one duty must not end the others, nor the worker
            self.record_failure(error)
        else:
            self.record_success()

    def take_tick(self) -> bool:
        """Whether this tick is one at which it is tried; to be asked once a tick."""
        if self._is_slow and self._skipped_ticks < SLOW_EVERY_TICKS - 1:
            self._skipped_ticks += 1
            return False
        self._skipped_ticks = 0
        return True

    def record_failure(self, error: Exception) -> None:
        if is_transient(error):
            recovery_logger.warning("%s: %s", self.name, format_one_line(error))
            return
        recovery_logger.error("%s failed", self.name, exc_info=error)
        self._failures += 1
        if self._failures == SLOW_AFTER_FAILURES:
            self._changed(self.name, format_one_line(error) or type(error).__name__)

    def record_success(self) -> None:
        if self._is_slow:
            self._changed(self.name, None)
        self._failures = 0

    @property
    def _is_slow(self) -> bool:
        return self._failures >= SLOW_AFTER_FAILURES
