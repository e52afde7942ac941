"""Sending through the library, as an application does it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.rounds import Work
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskFunction, TaskResult


@asynccontextmanager
async def noop_task(url: str) -> AsyncGenerator[TaskFunction[[int, str], None]]:
    """A task of a new application."""
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))

    @app.task("noop")
    def noop(number: int, word: str) -> TaskResult[None, TaskError]:  # noqa: ARG001  # they are only carried
        return TaskResult(ok=None)

    yield noop
    await app.close_async()


@asynccontextmanager
async def sending_one_by_one(url: str) -> AsyncGenerator[Work]:
    """Each send awaited before the next, which keeps one connection busy."""
    async with noop_task(url) as noop:

        async def send(rows: int) -> None:
            for _ in range(rows):
                (await noop.send_async(1, "two")).unwrap()

        yield send


@asynccontextmanager
async def sending_in_bulk(url: str) -> AsyncGenerator[Work]:
    """One `send_many`, from plain arguments to handles."""
    async with noop_task(url) as noop:

        async def send(rows: int) -> None:
            (await noop.send_many_async([(1, "two")] * rows)).unwrap()

        yield send
