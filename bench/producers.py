"""Concurrent producers. `python -m bench.producers KIND URL` is one process; it reads from stdin how many to send."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from bench import baseline, sending
from bench.rounds import Work
from bench.server import connect


@asynccontextmanager
async def insert_concurrently(url: str, *, producers: int) -> AsyncGenerator[Work]:
    """Insert with plain asyncpg from several processes."""
    async with _producing("baseline", url, producers) as work:
        yield work


@asynccontextmanager
async def send_concurrently(url: str, *, producers: int) -> AsyncGenerator[Work]:
    """Send from several processes while a connection listens like a worker."""
    async with connect(url) as listener, _producing("notify", url, producers) as work:
        await listener.add_listener("horsies_task_new", _ignore)
        yield work


@asynccontextmanager
async def send_concurrently_without_notify(url: str, *, producers: int) -> AsyncGenerator[Work]:
    """Send tasks that are due slightly later, without NOTIFY; the difference is the cost of notifications."""
    async with _producing("no-notify", url, producers) as work:
        yield work


@asynccontextmanager
async def _producing(kind: str, url: str, count: int) -> AsyncGenerator[Work]:
    producers = [_start(kind, url) for _ in range(count)]

    async def produce(rows: int) -> None:
        await asyncio.to_thread(_run_all, producers, rows // count)

    try:
        yield produce
    finally:
        for producer in producers:
            producer.communicate()


def _ignore(*_: object) -> None:
    """A worker would claim now."""


def _start(kind: str, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.producers", kind, url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _run_all(producers: list[subprocess.Popen[str]], rows_each: int) -> None:
    """Start all producers together and wait for the last one."""
    for producer in producers:
        assert producer.stdin
        producer.stdin.write(f"{rows_each}\n")
        producer.stdin.flush()
    for producer in producers:
        assert producer.stdout
        if producer.stdout.readline() != "done\n":
            raise RuntimeError(f"producer {producer.pid} failed")


async def _produce(kind: str, url: str) -> None:
    async with AsyncExitStack() as stack:
        send = await _sender(kind, url, stack)
        for line in sys.stdin:
            for _ in range(int(line)):
                await send()
            print("done", flush=True)


async def _sender(kind: str, url: str, stack: AsyncExitStack) -> Callable[[], Awaitable[object]]:
    if kind == "baseline":
        connection = await stack.enter_async_context(connect(url))
        return lambda: connection.fetch(baseline.INSERT, baseline.PAYLOAD)
    noop = await stack.enter_async_context(sending.noop_task(url))
    # Both use an option, so that they differ in the notification only.
    task = noop.with_options(delay=0.001) if kind == "no-notify" else noop.with_options(priority=100)

    async def send() -> None:
        (await task.send_async(1, "two")).unwrap()

    return send


if __name__ == "__main__":
    asyncio.run(_produce(sys.argv[1], sys.argv[2]))
