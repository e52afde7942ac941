"""Sends with an idempotency key, which may have to wait for whoever holds it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from horsies.errors import BrokerError, BrokerErrorCode
from horsies.store.failures import StatementFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from horsies.model.sending import TaskSendPayload

_STATEMENT_TIMEOUT = "57014"


class KeyIsHeld(BrokerError):
    """Another open transaction held the key for as long as a send waits for it; sent again later, it may succeed."""

    def __init__(self, message: str) -> None:
        hint = "look in pg_stat_activity for a session that is idle in transaction"
        super().__init__(message, code=BrokerErrorCode.ENQUEUE_FAILED, retryable=True, hint=hint)


class KeyTurns:
    """Lets a limited number of sends with keys go on at once.

    Each that waits for its key does so on a connection of the pool; as many as there are connections would keep out
    every other send.
    """

    def __init__(self, *, most: int, wait_s: float) -> None:
        self._turns = asyncio.Semaphore(most)
        self._wait_s = wait_s

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[float]:
        """Wait for a turn; yields how many seconds are left to wait for the key itself."""
        ends_at = time.monotonic() + self._wait_s
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turns.acquire()
        except TimeoutError:
            text = (
                f"waited {self._wait_s:g} s behind other sends, for whose idempotency keys there are open transactions"
            )
            raise KeyIsHeld(text) from None
        try:
            yield max(ends_at - time.monotonic(), 0.001)
        finally:
            self._turns.release()


@contextmanager
def waiting_for_key(payload: TaskSendPayload, *, wait_s: float) -> Generator[None]:
    """Say of a send that took too long what it waited for."""
    try:
        yield
    except BrokerError as error:
        if payload.idempotency_key is None or not _took_too_long(error):
            raise
        raise KeyIsHeld(
            f"no answer within {wait_s:g} s: another open transaction seems to hold the idempotency key"
            f" {payload.idempotency_key!r} of {payload.task_name}"
        ) from error


def _took_too_long(error: BrokerError) -> bool:
    is_cut_off = isinstance(error, StatementFailed) and error.sqlstate == _STATEMENT_TIMEOUT
    return is_cut_off or isinstance(error.__cause__, TimeoutError)
