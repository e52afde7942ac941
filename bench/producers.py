"""Processes that send at once. `python -m bench.producers KIND URL` is one of them: it sends as many as it is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from bench import floor, sending
from bench.rounds import Work
from bench.server import connected


@asynccontextmanager
async def inserting_at_once(url: str, *, producers: int) -> AsyncGenerator[Work]:
    """Plain connections, each in a process of its own."""
    async with _producing("floor", url, producers) as work:
        yield work


@asynccontextmanager
async def sending_at_once(url: str, *, producers: int) -> AsyncGenerator[Work]:
    """Producers, while somebody listens as a worker does."""
    async with connected(url) as listener, _producing("announced", url, producers) as work:
        await listener.add_listener("horsies_task_new", _hear)
        yield work


@asynccontextmanager
async def sending_at_once_unannounced(url: str, *, producers: int) -> AsyncGenerator[Work]:
    """The same with tasks due a moment later, of which nobody is told: notifications cost the difference."""
    async with _producing("unannounced", url, producers) as work:
        yield work


@asynccontextmanager
async def _producing(kind: str, url: str, count: int) -> AsyncGenerator[Work]:
    producers = [_start(kind, url) for _ in range(count)]

    async def produce(rows: int) -> None:
        await asyncio.to_thread(_tell_all, producers, rows // count)

    try:
        yield produce
    finally:
        for each in producers:
            each.communicate()


def _hear(*_: object) -> None:
    """A worker would look for work now."""


def _start(kind: str, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.producers", kind, url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _tell_all(producers: list[subprocess.Popen[str]], rows_each: int) -> None:
    """Start all together, and wait for the last."""
    for each in producers:
        assert each.stdin
        each.stdin.write(f"{rows_each}\n")
        each.stdin.flush()
    for each in producers:
        assert each.stdout
        if each.stdout.readline() != "done\n":
            raise RuntimeError(f"producer {each.pid} did not do its part")


async def _produce(kind: str, url: str) -> None:
    async with AsyncExitStack() as stack:
        one = await _sender(kind, url, stack)
        for told in sys.stdin:
            for _ in range(int(told)):
                await one()
            print("done", flush=True)


async def _sender(kind: str, url: str, stack: AsyncExitStack) -> Callable[[], Awaitable[object]]:
    if kind == "floor":
        connection = await stack.enter_async_context(connected(url))
        return lambda: connection.fetch(floor.INSERT, floor.PAYLOAD)
    noop = await stack.enter_async_context(sending.noop_task(url))
    # Both with an option, so that they differ in nothing but the notification.
    task = noop.with_options(delay=0.001) if kind == "unannounced" else noop.with_options(priority=100)

    async def send() -> None:
        (await task.send_async(1, "two")).unwrap()

    return send


if __name__ == "__main__":
    asyncio.run(_produce(sys.argv[1], sys.argv[2]))
