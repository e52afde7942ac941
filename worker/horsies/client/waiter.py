"""Waits for tasks and workflow runs to finish.

All waits of an event loop share one listener, and their reads share statements. Polling covers lost notifications.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from horsies.client.results import WaitTimeout
from horsies.errors import BrokerError, BrokerErrorCode
from horsies.store.connection import ConnectionSpec
from horsies.store.listen import Listener

if TYPE_CHECKING:
    from horsies.client.broker import ExpectedEnds

    class ResultRow(Protocol):
        """A row of a task or a run."""

        @property
        def id(self) -> str: ...

        @property
        def status(self) -> str: ...


R = TypeVar("R", bound="ResultRow")

POLL_S = 5.0  # covers lost notifications
POLL_NOT_LISTENING_S = 1.0  # the only way to notice a result until the listener is connected again
FIRST_READ_TIMEOUT_S = 1.0
"""Minimum time for the first read, even if the caller's timeout is shorter."""
MAX_READ_IDS = 1000


@dataclass(slots=True, eq=False)
class Wait(Generic[R]):
    """One call of `ResultWaiters.wait`. Times are on the event loop's clock."""

    row_id: str
    result: asyncio.Future[R | None]
    deadline: float | None
    first_read_deadline: float = inf
    """When its first read must be answered; infinite until that read is requested."""
    status: str | None = None
    """The status at the last read."""
    status_read_at: float = 0.0
    timer: asyncio.TimerHandle | None = None


class ResultWaiters(Generic[R]):
    """The waits of one event loop, for either tasks or runs. Ids are text, as in notifications.

    A row is read when a wait for it starts (unless it is expected, see `ExpectedEnds`), when it is notified, at every
    poll, and when the listener has connected again. Reads requested while a statement is running share the next one,
    and its answer ends the waits for all rows that are done.

    The first wait that is not a single check starts the listener and the poll; both run until `close`.
    """

    def __init__(
        self,
        connection_spec: ConnectionSpec,
        read: Callable[[list[str]], Awaitable[Iterable[R]]],
        *,
        channel: str,
        done_states: Collection[str],
        expected_ends: ExpectedEnds,
    ) -> None:
        self._read = read
        self._done_states = frozenset(done_states)
        self._waits: defaultdict[str, set[Wait[R]]] = defaultdict(set)
        self._requested: dict[str, None] = {}
        """Ids to read with the next statement, in request order."""
        self._reading: asyncio.Task[None] | None = None
        self._expected_ends = expected_ends
        self._listener = Listener(
            connection_spec, {channel: self._on_notification}, on_change=self._on_listening_change
        )
        self._is_closed = False
        self._background: list[asyncio.Task[None]] = []

    async def wait(self, row_id: str, timeout_s: float | None) -> R | None:
        """The row once it is done, or None if it does not exist. Raises `WaitTimeout` if it is not done in time.

        The first read gets at least `FIRST_READ_TIMEOUT_S`, however short the timeout; if it has no answer by then and
        by the timeout, raises a plain `TimeoutError`. Raises `BrokerError` once closed.
        An expected row is read when its end is notified, at the next poll, or at the timeout.
        """
        if self._is_closed:
            raise _closed()
        loop = asyncio.get_running_loop()
        wait: Wait[R] = Wait(row_id, loop.create_future(), None if timeout_s is None else loop.time() + timeout_s)
        is_single_check = timeout_s is not None and timeout_s <= 0
        if not self._background and not is_single_check:
            self._background = [loop.create_task(self._listener.run()), loop.create_task(self._poll())]
        self._waits[row_id].add(wait)
        # The first wait for an expected row skips this read; later waits do not.
        if is_single_check or not self._expected_ends.discard(row_id):
            self._request(row_id)
        if wait.deadline is not None:
            wait.timer = loop.call_at(wait.deadline, self._on_deadline, wait)
        try:
            return await wait.result
        finally:
            if wait.timer is not None:
                wait.timer.cancel()
            self._waits[row_id].discard(wait)
            if not self._waits[row_id]:
                del self._waits[row_id]

    async def close(self) -> None:
        """Stop listening; waits that have not ended raise `BrokerError`, as do later ones."""
        self._is_closed = True
        for waits in self._waits.values():
            _fail(waits, _closed())
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()

    def _request(self, row_id: str) -> None:
        """Read the row with the next statement."""
        loop = asyncio.get_running_loop()
        for wait in self._waits[row_id]:
            if wait.first_read_deadline == inf:
                wait.first_read_deadline = loop.time() + FIRST_READ_TIMEOUT_S
        self._requested[row_id] = None
        if self._reading is None:
            self._reading = loop.create_task(self._read_requested())

    def _request_all(self) -> None:
        for row_id in self._waits:
            self._request(row_id)

    async def _read_requested(self) -> None:
        try:
            while self._requested:
                # Taken before the statement: its answer may be too old for a wait that starts while it is running.
                waits = self._take_requested()
                try:
                    # Without waits there is nothing to read: the previous answer may have ended them all.
                    if row_ids := dict.fromkeys(wait.row_id for wait in waits):
                        self._end_waits(waits, await self._read(list(row_ids)))
                except BaseException as error:  # a wait left without an answer would last forever
                    _fail(waits, error)
                    if not isinstance(error, Exception):
                        raise
        finally:
            # No await since the check of `_requested`: a request made later starts a new task.
            self._reading = None

    def _take_requested(self) -> list[Wait[R]]:
        """Remove up to `MAX_READ_IDS` requested ids; return the waits for them that have not ended."""
        row_ids = list(islice(self._requested, MAX_READ_IDS))
        for row_id in row_ids:
            del self._requested[row_id]
        return [wait for row_id in row_ids for wait in self._waits.get(row_id, ()) if not wait.result.done()]

    def _end_waits(self, waits: Iterable[Wait[R]], rows: Iterable[R]) -> None:
        """End the waits for rows that are done or missing, and those past their deadline."""
        by_id, now = {row.id: row for row in rows}, asyncio.get_running_loop().time()
        for wait in waits:
            row = by_id.get(wait.row_id)
            if row is not None and row.status not in self._done_states:
                wait.status, wait.status_read_at = row.status, now
                if wait.deadline is not None and wait.deadline <= now:
                    _fail([wait], WaitTimeout(row.status, seen_s_ago=0))
            elif not wait.result.done():  # its caller may have been cancelled
                wait.result.set_result(row)

    def _on_deadline(self, wait: Wait[R]) -> None:
        """End the wait with a timeout; one whose first read has no answer gets until `first_read_deadline`."""
        loop = asyncio.get_running_loop()
        if wait.status is not None:
            _fail([wait], WaitTimeout(wait.status, seen_s_ago=loop.time() - wait.status_read_at))
            return
        if wait.first_read_deadline == inf:  # the row was expected
            self._request(wait.row_id)
        if loop.time() < wait.first_read_deadline:
            wait.timer = loop.call_at(wait.first_read_deadline, self._on_deadline, wait)
        else:
            _fail([wait], TimeoutError())

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S if self._expected_ends.is_listening else POLL_NOT_LISTENING_S)
            self._request_all()

    def _on_notification(self, payload: str) -> None:
        for row_id in payload.split(","):
            self._expected_ends.discard(row_id)
            if row_id in self._waits:
                self._request(row_id)

    def _on_listening_change(self, is_listening: bool) -> None:  # noqa: FBT001  # the listener's callback
        self._expected_ends.reset(is_listening=is_listening)
        if is_listening:  # notifications sent in the meantime are lost
            self._request_all()


def _closed() -> BrokerError:
    return BrokerError("closed while waiting", code=BrokerErrorCode.NO_BROKER)


def _fail(waits: Iterable[Wait[R]], error: BaseException) -> None:
    """End these waits with the error, except those that have ended."""
    for wait in waits:
        if not wait.result.done():
            wait.result.set_exception(error)
