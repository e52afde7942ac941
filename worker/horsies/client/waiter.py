"""Waits for tasks and workflow runs to finish.

All waiters of an event loop share one listener, and their reads share statements. Polling covers lost notifications.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from uuid import UUID

from horsies.client.results import WaitTimeout
from horsies.errors import BrokerError, BrokerErrorCode
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from horsies.store.connection import ConnectionSpec
from horsies.store.listen import Listener

if TYPE_CHECKING:
    from horsies.client.broker import ExpectedEnds

    class HasStatus(Protocol):
        """A row of a task or a run."""

        @property
        def id(self) -> UUID: ...

        @property
        def status(self) -> str: ...


R = TypeVar("R", bound="HasStatus")

POLL_S = 5.0  # covers lost notifications
POLL_NOT_LISTENING_S = 1.0  # the only way to notice a result until the listener is connected again
FIRST_READ_TIMEOUT_S = 1.0
"""Minimum time for the first read, even if the caller's timeout is shorter."""
MAX_READ_IDS = 1000


class ResultWaiters(Generic[R]):
    """All waiters of one event loop, for either tasks or runs.

    The first waiter starts the listener and the poll; both run until `close`.
    """

    def __init__(
        self,
        connection_spec: ConnectionSpec,
        read: Callable[[list[UUID]], Awaitable[list[R]]],
        *,
        channel: str,
        is_done: Callable[[R], bool],
        expected_ends: ExpectedEnds,
    ) -> None:
        self._reader = BatchReader(read)
        self._is_done = is_done
        # Keys are ids as text, as notifications contain them.
        self._wake_events: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._expected_ends = expected_ends
        self._listener = Listener(
            connection_spec, {channel: self._on_notification}, on_change=self._on_listening_change
        )
        self._is_closed = False
        self._background: list[asyncio.Task[None]] = []

    async def wait(self, row_id: UUID, timeout_s: float | None) -> R | None:
        """The row once it is done, or None if it does not exist. Raises `WaitTimeout` if it is not done in time.

        The row is read at least once, however short the timeout; if the database takes longer than
        `FIRST_READ_TIMEOUT_S` for that, raises a plain `TimeoutError`. Raises `BrokerError` if closed meanwhile.
        An expected row is read when its end is notified, at the next poll, or at the timeout.
        """
        if timeout_s is not None and timeout_s <= 0:
            row = await self._read_first(row_id, 0)
            if row is None or self._is_done(row):
                return row
            raise WaitTimeout(row.status, seen_s_ago=0)
        clock = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else clock() + timeout_s
        with self._subscribed(row_id) as woken:
            if self._expected_ends.discard(str(row_id)):  # so a later wait reads at once
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self._wait_until_woken(woken)
                timeout_s = None if deadline is None else deadline - clock()
            row = await self._read_first(row_id, timeout_s)
            while row is not None and not self._is_done(row):
                status, seen_at = row.status, clock()
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._wait_until_woken(woken)
                        row = await self._reader.read(row_id)
                except TimeoutError:
                    raise WaitTimeout(status, seen_s_ago=clock() - seen_at) from None
        return row

    async def close(self) -> None:
        """Stop listening; waits that have not ended raise `BrokerError`."""
        self._is_closed = True
        self._wake_all()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()

    async def _wait_until_woken(self, woken: asyncio.Event) -> None:
        await woken.wait()
        woken.clear()  # before the read: a change during the read sets it again
        if self._is_closed:
            raise BrokerError("closed while waiting", code=BrokerErrorCode.NO_BROKER)

    async def _read_first(self, row_id: UUID, timeout_s: float | None) -> R | None:
        async with asyncio.timeout(None if timeout_s is None else max(timeout_s, FIRST_READ_TIMEOUT_S)):
            return await self._reader.read(row_id)

    @contextmanager
    def _subscribed(self, row_id: UUID) -> Generator[asyncio.Event]:
        """An event set when the row may have changed; subscribe before the first read, or a change may be missed."""
        woken, key = asyncio.Event(), str(row_id)
        self._wake_events[key].add(woken)
        if not self._background:
            self._background = [asyncio.create_task(self._listener.run()), asyncio.create_task(self._poll())]
        try:
            yield woken
        finally:
            self._wake_events[key].discard(woken)
            if not self._wake_events[key]:
                del self._wake_events[key]

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S if self._expected_ends.is_listening else POLL_NOT_LISTENING_S)
            self._wake_all()

    def _on_notification(self, payload: str) -> None:
        for row_id in payload.split(","):
            self._expected_ends.discard(row_id)
            for woken in self._wake_events.get(row_id, ()):
                woken.set()

    def _on_listening_change(self, is_listening: bool) -> None:  # noqa: FBT001  # the listener's callback
        self._expected_ends.reset(is_listening=is_listening)
        if is_listening:  # notifications sent in the meantime are lost
            self._wake_all()

    def _wake_all(self) -> None:
        for events in self._wake_events.values():
            for woken in events:
                woken.set()


class BatchReader(Generic[R]):
    """Reads rows by id. Requests made while a statement is running share the next one."""

    def __init__(self, read: Callable[[list[UUID]], Awaitable[list[R]]]) -> None:
        self._read = read
        self._requests: defaultdict[UUID, list[asyncio.Future[R | None]]] = defaultdict(list)
        self._reading: asyncio.Task[None] | None = None

    async def read(self, row_id: UUID) -> R | None:
        """The current row; None if it does not exist."""
        answer: asyncio.Future[R | None] = asyncio.get_running_loop().create_future()
        self._requests[row_id].append(answer)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all())
        return await answer

    async def _read_all(self) -> None:
        try:
            while self._requests:
                batch = {row_id: self._requests.pop(row_id) for row_id in list(self._requests)[:MAX_READ_IDS]}
                await self._answer(batch)
        finally:
            # No await since the check of `_requests`: a request made later starts a new task.
            self._reading = None

    async def _answer(self, batch: dict[UUID, list[asyncio.Future[R | None]]]) -> None:
        try:
            found = {row.id: row for row in await self._read(list(batch))}
        except BaseException as error:  # a future left without an answer would wait forever
            for answer in (answer for answers in batch.values() for answer in answers if not answer.done()):
                answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for row_id, answers in batch.items():
            for answer in answers:
                if not answer.done():  # its waiter may have been cancelled
                    answer.set_result(found.get(row_id))


def is_task_terminal(row: HasStatus) -> bool:
    return TaskStatus(row.status) in TASK_TERMINAL_STATES


def is_run_terminal_or_paused(row: HasStatus) -> bool:
    """A paused run ends the wait too: it does not continue by itself."""
    status = WorkflowStatus(row.status)
    return status in WORKFLOW_TERMINAL_STATES or status is WorkflowStatus.PAUSED
