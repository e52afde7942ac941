"""Lanes: many rows, few statements, no timers.

While one statement is on its way, whatever arrives waits and leaves together in the next one. An idle lane sends at
once, a busy one hundreds of rows at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from horsies.errors import BrokerError
from horsies.store.failures import StatementFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from horsies.engine.backoff import Backoff

T = TypeVar("T")
R = TypeVar("R")

LARGEST_ROWS: Final = 500
LARGEST_BYTES: Final = 4_000_000

_FAULTS_OF_A_ROW: Final = ("0A", "21", "22", "23", "54", "XX")
"""Classes of SQLSTATE with which a server refuses what a row holds. Others speak of the statement or the session."""


def is_refusal(error: Exception) -> bool:
    """Whether the server refused some row for good, so that the others may pass without it."""
    if not isinstance(error, StatementFailed) or error.retryable:
        return False
    return (error.sqlstate or "").startswith(_FAULTS_OF_A_ROW)


class Lane(Generic[T, R]):
    """Rows of one kind on their way to the database: none lost, none twice in our hands, in the order they were put.

    `answered` gets each batch that passed with what the statement returned, `refused` each row that the server will
    never take. A batch that found no database is sent again as it was, by `backoff`; only the sender knows
    whether the first time was stored after all. Any other error ends the lane, its rows still in `waiting`.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[list[T]], Awaitable[list[R]]],
        *,
        answered: Callable[[list[T], list[R]], None],
        refused: Callable[[T, StatementFailed], None],
        backoff: Backoff,
        size_of: Callable[[T], int] | None = None,
        largest_rows: int = LARGEST_ROWS,
        largest_bytes: int = LARGEST_BYTES,
    ) -> None:
        self.name = name
        self._send = send
        self._answered = answered
        self._refused = refused
        self._backoff = backoff
        self._size_of = size_of
        self._largest_rows = largest_rows
        self._largest_bytes = largest_bytes
        self._waiting: deque[T] = deque()
        self._woken = asyncio.Event()

    @property
    def waiting(self) -> tuple[T, ...]:
        """What is not known to be stored, on its way or not; what is left after `run` was given up."""
        return tuple(self._waiting)

    def put(self, rows: Iterable[T]) -> None:
        """Let rows leave with the next statement; never waits."""
        self._waiting.extend(rows)
        self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until stop is set and nothing waits any more."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._woken.set())
        try:
            while await self._has_rows(stop):
                await self._pass_on(self._next_batch())
        finally:
            stopping.cancel()

    async def _has_rows(self, stop: asyncio.Event) -> bool:
        while not self._waiting and not stop.is_set():
            self._woken.clear()
            await self._woken.wait()
        return bool(self._waiting)

    def _next_batch(self) -> list[T]:
        """The rows that waited longest, within the limits; one row always fits."""
        batch: list[T] = []
        room_bytes = self._largest_bytes
        for row in self._waiting:
            room_bytes -= self._size_of(row) if self._size_of else 0
            if batch and (room_bytes < 0 or len(batch) == self._largest_rows):
                break
            batch.append(row)
        return batch

    async def _pass_on(self, batch: list[T]) -> None:
        """Send rows from the head of the line, halved and halved again where one of them is refused."""
        try:
            answer = await self._send_until_answered(batch)
        except StatementFailed as error:
            if not is_refusal(error):
                raise
            await self._pass_on_without_the_refused(batch, error)
        else:
            self._leave_the_line(batch)
            self._answered(batch, answer)

    async def _pass_on_without_the_refused(self, batch: list[T], error: StatementFailed) -> None:
        if len(batch) == 1:
            self._leave_the_line(batch)
            self._refused(batch[0], error)
            return
        middle = len(batch) // 2
        await self._pass_on(batch[:middle])
        await self._pass_on(batch[middle:])

    async def _send_until_answered(self, batch: list[T]) -> list[R]:
        while True:
            try:
                answer = await self._send(batch)
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                self._backoff.reset()
                return answer

    def _leave_the_line(self, batch: list[T]) -> None:
        for _ in batch:
            self._waiting.popleft()
