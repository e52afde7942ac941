"""Building blocks of the worker's services: running and stopping them, and backoff."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from horsies.errors import DatabaseUnreachable, ExitCode, HorsiesError, is_transient

if TYPE_CHECKING:
    from horsies.model.settings.worker import WorkerResilienceConfig

NO_ANSWER: Final = "the database did not answer in time"

AFTER_TASKS_S: Final = 5.0
"""Least time for storing outcomes after the last task ended."""
OTHER_STATEMENTS_S: Final = 3.5
LAST_STATEMENTS_S: Final = 0.5
"""What outcomes leave of a stop for the statements after them."""
EXIT_S: Final = 0.2
"""What statements leave of a stop for ending the process."""
HURRIED_DELAY_S: Final = 0.5

logger = logging.getLogger("horsies.service")


class Service(Protocol):
    """A background loop with one duty."""

    @property
    def name(self) -> str: ...

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish the work in progress and return."""
        ...


class ServiceEnded(HorsiesError):
    """A service returned or raised before it was stopped."""


async def run_services(services: Sequence[Service], stop: asyncio.Event) -> None:
    """Run services until `stop` is set, then stop them one after the other, in the order given.

    A service that ends early sets `stop`; ServiceEnded is raised after all others have finished. Cancellation cancels
    all services.
    """
    running = [_RunningService(service) for service in services]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, *(each.task for each in running)], return_when=asyncio.FIRST_COMPLETED)
        ended_early = [] if stop.is_set() else [each for each in running if each.task.done()]
        for each in ended_early:
            # An error of ours says what happened; its traceback would only hide it.
            exc_info = None if isinstance(each.error, HorsiesError) else each.error
            logger.critical("%s, stopping the worker", each.why_ended, exc_info=exc_info)
        stop.set()
        for each in running:
            await each.finish()
    finally:
        await _cancel([stopping, *(each.task for each in running)])
    if failed := ended_early or [each for each in running if each.error is not None]:
        error = failed[0].error
        hint = error.help_text if isinstance(error, HorsiesError) else None
        raise ServiceEnded(failed[0].why_ended, hint=hint) from error


class _RunningService:
    """A service with its own stop signal."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(service.run(self._stop), name=service.name)

    @property
    def error(self) -> BaseException | None:
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None

    @property
    def why_ended(self) -> str:
        reason = f": {self.error.message}" if isinstance(self.error, HorsiesError) else ""
        return f"{self.service.name} ended unexpectedly{reason}"

    async def finish(self) -> None:
        self._stop.set()
        await asyncio.wait([self.task])


async def run_until(stop: asyncio.Event, *loops: Coroutine[Any, Any, None]) -> None:
    """Run endless loops concurrently until `stop` is set; an error in one ends all and is raised."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait()), *map(asyncio.create_task, loops)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Bounded shutdown


class ShutdownDeadline:
    """How long the steps of a shutdown may take.

    All of it ends at most `grace_s` + `kill_wait_s` + 5 s after the stop. Storing outcomes may take all of this time
    but the last half second, and at least 5 s after the last task ended. The other statements share a few seconds.
    """

    def __init__(self, *, grace_s: float | None, kill_wait_s: float) -> None:
        self._grace_s = grace_s
        self._kill_wait_s = kill_wait_s
        self._grace_ends_at = self._tasks_ended_at = math.inf
        self.others_s = OTHER_STATEMENTS_S

    def begin(self) -> None:
        """A stop was requested now; the grace period begins. Later calls have no effect."""
        if self._grace_s is not None:
            self._grace_ends_at = min(self._grace_ends_at, time.monotonic() + self._grace_s)

    def end_grace(self) -> None:
        """A second signal ended the grace period."""
        self._grace_ends_at = min(self._grace_ends_at, time.monotonic())

    def on_tasks_ended(self) -> None:
        """No task is running any more."""
        self._tasks_ended_at = min(self._tasks_ended_at, time.monotonic())
        if self._grace_s is None:
            self.end_grace()

    @property
    def _ends_at(self) -> float:
        return self._grace_ends_at + self._kill_wait_s + AFTER_TASKS_S

    def for_outcomes(self) -> asyncio.Timeout:
        """Limits a block that stores what the tasks left; used after they ended."""
        self.on_tasks_ended()
        until = max(self._ends_at - LAST_STATEMENTS_S, self._tasks_ended_at + AFTER_TASKS_S)
        return asyncio.timeout(max(0.0, until - time.monotonic()))

    @asynccontextmanager
    async def for_others(self) -> AsyncGenerator[None]:
        """Limits a block with other statements; its time is charged to what all of them share."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(self.others_s, self._ends_at - EXIT_S - began))):
                yield
        finally:
            self.others_s -= time.monotonic() - began


class BoundedService:
    """Cancels a service that does not finish within a time limit after `stop` is set."""

    def __init__(self, service: Service, limit: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        self._service = service
        self._limit = limit
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
                async with self._limit():
                    await asyncio.wait([running])
            if running.done():
                running.result()
        finally:
            await _cancel([running, stopping])


# Backoff while the database is unavailable

JITTER: Final = 0.25
_MAX_DOUBLINGS: Final = 20
"""Enough for any delay to reach its cap, few enough not to overflow."""


def backoff_delay_ms(config: WorkerResilienceConfig, attempt: int, *, jitter: float) -> float:
    """The delay after failed attempt `attempt` (from 0): exponential, capped, +-25 % for `jitter` in 0..1."""
    factor = 1.0 - JITTER + 2 * JITTER * jitter
    doubled = config.db_retry_initial_ms * 2 ** min(attempt, _MAX_DOUBLINGS)
    return min(float(config.db_retry_max_ms), doubled * factor)


class AttemptsExhausted(DatabaseUnreachable):
    """The database was unavailable for as many attempts as `db_retry_max_attempts` allows; the worker exits."""

    exit_code = ExitCode.FAILED

    def __init__(self, attempts: int, error: Exception) -> None:
        message = error.message if isinstance(error, HorsiesError) else str(error)
        hint = "raise resilience.db_retry_max_attempts, or set it to 0 to wait without limit"
        super().__init__(f"gave up after {attempts} failed attempts: {message}", hint=hint)


class Backoff:
    """Delays of one loop: call `wait` after each failure and `reset` after each success.

    `on_change` gets the error of the first failure in a row, and None after the next success. Setting `hurry` ends the
    current delay and keeps later ones short.
    """

    def __init__(
        self,
        config: WorkerResilienceConfig,
        *,
        on_change: Callable[[Exception | None], None] = lambda _: None,
        hurry: asyncio.Event | None = None,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._on_change = on_change
        self._hurry = hurry or asyncio.Event()
        self._jitter = jitter
        self._sleep = sleep
        self.failures = 0
        """Failures in a row since the last success."""

    def reset(self) -> None:
        if self.failures:
            self.failures = 0
            self._on_change(None)

    async def wait(self, error: Exception) -> None:
        """Sleep after a failure; raise `error` if it is not transient or no attempts are left."""
        if not is_transient(error):
            raise error
        self.failures += 1
        if self.failures == 1:
            self._on_change(error)
        if self.failures == self._config.db_retry_max_attempts:
            raise AttemptsExhausted(self.failures, error) from error
        delay_s = backoff_delay_ms(self._config, self.failures - 1, jitter=self._jitter()) / 1_000
        if self._hurry.is_set():
            await self._sleep(min(delay_s, HURRIED_DELAY_S))
        else:
            await run_until(self._hurry, self._sleep(delay_s))
