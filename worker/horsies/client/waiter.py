"""Waiting for results: thousands of waiters on one listener, and their looks at the database in common statements."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from uuid import UUID

from horsies.errors import BrokerError, BrokerErrorCode
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from horsies.store.connection import ConnectionSpec
from horsies.store.listen import Listener

if TYPE_CHECKING:

    class HasStatus(Protocol):
        """A task or a run as it stands."""

        @property
        def id(self) -> UUID: ...

        @property
        def status(self) -> str: ...


R = TypeVar("R", bound="HasStatus")

POLL_S = 5.0
POLL_NOT_LISTENING_S = 1.0
FIRST_READ_TIMEOUT_S = 1.0
MAX_READ_IDS = 1000


class WaitTimeout(TimeoutError):
    """Time is over. How it stood at the last look, which nobody had a reason to repeat since."""

    def __init__(self, status: str, *, seen_s_ago: float) -> None:
        super().__init__(status)
        self.status = status
        self.seen_s_ago = seen_s_ago


class BatchReader(Generic[R]):
    """Reads how tasks or runs stand. While one statement is on its way, whoever asks goes into the next one."""

    def __init__(self, read: Callable[[list[UUID]], Awaitable[list[R]]]) -> None:
        self._read = read
        self._asked: defaultdict[UUID, list[asyncio.Future[R | None]]] = defaultdict(list)
        self._reading: asyncio.Task[None] | None = None

    async def read(self, task_id: UUID) -> R | None:
        """The task's row as it stands; None where there is none."""
        answer: asyncio.Future[R | None] = asyncio.get_running_loop().create_future()
        self._asked[task_id].append(answer)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all())
        return await answer

    async def _read_all(self) -> None:
        try:
            while self._asked:
                batch = {task_id: self._asked.pop(task_id) for task_id in list(self._asked)[:MAX_READ_IDS]}
                await self._answer(batch)
        finally:
            self._reading = None

    async def _answer(self, batch: dict[UUID, list[asyncio.Future[R | None]]]) -> None:
        try:
            found = {row.id: row for row in await self._read(list(batch))}
        except BaseException as error:  # every waiter must hear of it, or it would wait for ever
            for answer in (answer for answers in batch.values() for answer in answers if not answer.done()):
                answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for task_id, answers in batch.items():
            for answer in answers:
                if not answer.done():
                    answer.set_result(found.get(task_id))


class ResultWaiters(Generic[R]):
    """All who wait in one event loop, be it for tasks or for runs.

    The first starts the listener, and the poll behind it; both run until `close`.
    """

    def __init__(
        self,
        link: ConnectionSpec,
        read: Callable[[list[UUID]], Awaitable[list[R]]],
        *,
        channel: str,
        is_done: Callable[[R], bool],
    ) -> None:
        self._reader = BatchReader(read)
        self._is_done = is_done
        self._wake_events: defaultdict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._listener = Listener(link, {channel: self._on_notification}, on_change=self._on_listening_change)
        self._is_listening = False
        self._is_closed = False
        self._background: list[asyncio.Task[None]] = []

    async def wait(self, task_id: UUID, timeout_s: float | None) -> R | None:
        """The task's row once it is terminal, or None where there is no such row; `StillOpen` when time is over.

        However short the time, there is one look: what has ended is found, unless the database takes longer over it
        than `FIRST_LOOK_S`, which is a plain `TimeoutError`. `BrokerError` when all this is closed meanwhile.
        """
        if timeout_s is not None and timeout_s <= 0:
            return await self._look_once(task_id)
        clock = asyncio.get_running_loop().time
        ends_at = None if timeout_s is None else clock() + timeout_s
        with self._subscribed(task_id) as woken:
            row = await self._read_first(task_id, timeout_s)
            while row is not None and not self._is_done(row):
                status, seen_at = row.status, clock()
                try:
                    async with asyncio.timeout_at(ends_at):
                        row = await self._next_look(task_id, woken)
                except TimeoutError:
                    raise WaitTimeout(status, seen_s_ago=clock() - seen_at) from None
        return row

    async def close(self) -> None:
        """Stop, and let everyone go who still waits."""
        self._is_closed = True
        self._wake_all()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()

    async def _read_first(self, task_id: UUID, timeout_s: float | None) -> R | None:
        async with asyncio.timeout(None if timeout_s is None else max(timeout_s, FIRST_READ_TIMEOUT_S)):
            return await self._reader.read(task_id)

    async def _next_look(self, task_id: UUID, woken: asyncio.Event) -> R | None:
        """The row, once there is a reason to read it again."""
        await woken.wait()
        woken.clear()
        if self._is_closed:
            raise BrokerError("closed while waiting", code=BrokerErrorCode.NO_BROKER)
        return await self._reader.read(task_id)

    async def _look_once(self, task_id: UUID) -> R | None:
        row = await self._read_first(task_id, 0)
        if row is None or self._is_done(row):
            return row
        raise WaitTimeout(row.status, seen_s_ago=0)

    @contextmanager
    def _subscribed(self, task_id: UUID) -> Generator[asyncio.Event]:
        woken = asyncio.Event()
        self._wake_events[task_id].add(woken)
        self._start()
        try:
            yield woken
        finally:
            self._wake_events[task_id].discard(woken)
            if not self._wake_events[task_id]:
                del self._wake_events[task_id]

    def _start(self) -> None:
        if not self._background:
            self._background = [asyncio.create_task(self._listener.run()), asyncio.create_task(self._poll())]

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S if self._is_listening else POLL_NOT_LISTENING_S)
            self._wake_all()

    def _on_notification(self, payload: str) -> None:
        for text in payload.split(","):
            for woken in self._wake_events.get(_id(text), ()):
                woken.set()

    def _on_listening_change(self, hearing: bool) -> None:  # noqa: FBT001  # the listener's one message
        self._is_listening = hearing
        if hearing:
            self._wake_all()

    def _wake_all(self) -> None:
        for events in self._wake_events.values():
            for woken in events:
                woken.set()


_NOBODY = UUID(int=0)


def _id(text: str) -> UUID:
    """The id in a notification; anyone may send one, so what is no id is nobody's."""
    try:
        return UUID(text)
    except ValueError:
        return _NOBODY


def is_task_terminal(row: HasStatus) -> bool:
    """Whether a task has ended."""
    return TaskStatus(row.status) in TASK_TERMINAL_STATES


def is_run_terminal_or_paused(row: HasStatus) -> bool:
    """Whether a run has ended, or goes on only when it is told to."""
    status = WorkflowStatus(row.status)
    return status in WORKFLOW_TERMINAL_STATES or status is WorkflowStatus.PAUSED
