"""How tasks write down when they begin and end, in a table that horsies never touches."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from horsies import current_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator

URL = "LEDGER_URL"
"""The variable that says where."""

_WRITE = "INSERT INTO ledger (task_id, claim_token, attempt, pid, what) VALUES ($1::text::uuid, $2, $3, $4, $5)"


class Pen:
    """One autocommit connection a process, on a thread of its own, so that functions and coroutines both can write."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._connection: asyncpg.Connection[Any] | None = None

    def write(self, what: str) -> None:
        self._run(self._insert(self._values(what)))

    async def write_async(self, what: str) -> None:
        await asyncio.to_thread(self._run, self._insert(self._values(what)))

    def _values(self, what: str) -> tuple[object, ...]:
        task = current_task()
        assert task is not None
        return task.task_id, task.claim_token, task.attempt, os.getpid(), what

    def _run(self, writing: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
            asyncio.run_coroutine_threadsafe(writing, self._loop).result()

    async def _insert(self, values: tuple[object, ...]) -> None:
        if self._connection is None or self._connection.is_closed():
            # Straight to the server, whatever a test puts between it and the worker.
            self._connection = await asyncpg.connect(os.environ[URL])
        await self._connection.execute(_WRITE, *values)


_pen = Pen()


@contextmanager
def on_record() -> Generator[None]:
    """The body of a task, from its start to its end; a death leaves it open."""
    _pen.write("start")
    try:
        yield
    finally:
        _pen.write("end")


@asynccontextmanager
async def on_record_async() -> AsyncGenerator[None]:
    await _pen.write_async("start")
    try:
        yield
    finally:
        # Cancelled or not, the end is written before the coroutine is gone.
        await asyncio.shield(_pen.write_async("end"))
