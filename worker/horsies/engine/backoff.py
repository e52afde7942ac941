"""The pauses between tries to reach a database that is away."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from horsies.errors import BrokerError, DatabaseUnreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from horsies.model.settings.resilience import WorkerResilienceConfig

JITTER: Final = 0.25
_MOST_DOUBLINGS: Final = 20
"""More than any pause needs to reach its cap, and few enough to stay a number."""


def pause_ms(config: WorkerResilienceConfig, attempt: int, *, draw: float) -> float:
    """The pause after failed attempt `attempt` (from 0), a quarter longer or shorter by `draw` from 0..1; capped."""
    factor = 1.0 - JITTER + 2 * JITTER * draw
    doubled = config.db_retry_initial_ms * 2 ** min(attempt, _MOST_DOUBLINGS)
    return min(float(config.db_retry_max_ms), doubled * factor)


def is_passing(error: Exception) -> bool:
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
        changed: Callable[[Exception | None], None] = lambda _: None,
        draw: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._changed = changed
        self._draw = draw
        self._sleep = sleep
        self._failures = 0

    def reset(self) -> None:
        if self._failures:
            self._failures = 0
            self._changed(None)

    async def wait(self, error: Exception) -> None:
        """Pause after a failure; raise `error` where it will not pass, or where it was the last attempt allowed."""
        if not is_passing(error):
            raise error
        self._failures += 1
        if self._failures == 1:
            self._changed(error)
        if self._failures == self._config.db_retry_max_attempts:
            raise error
        await self._sleep(pause_ms(self._config, self._failures - 1, draw=self._draw()) / 1_000)
