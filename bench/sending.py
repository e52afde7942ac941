"""Sending with horsies, as an application does it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.rounds import Work
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskFunction, TaskResult


@asynccontextmanager
async def noop_task(url: str) -> AsyncGenerator[TaskFunction[[int, str], None]]:
    """Yield a task of a new app."""
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))

    @app.task("noop")
    def noop(number: int, word: str) -> TaskResult[None, TaskError]:  # noqa: ARG001  # only sent, never run
        return TaskResult(ok=None)

    yield noop
    await app.close_async()


@asynccontextmanager
async def send_one_by_one(url: str) -> AsyncGenerator[Work]:
    """Send one task after another, on one connection."""
    async with noop_task(url) as noop:

        async def send(rows: int) -> None:
            for _ in range(rows):
                (await noop.send_async(1, "two")).unwrap()

        yield send


@asynccontextmanager
async def send_in_bulk(url: str) -> AsyncGenerator[Work]:
    """Send all tasks with one `send_many`."""
    async with noop_task(url) as noop:

        async def send(rows: int) -> None:
            (await noop.send_many_async([(1, "two")] * rows)).unwrap()

        yield send
