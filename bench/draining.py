"""`python -m bench.draining`: a worker with two processes against the floor, in interleaved rounds.

The drain of no-op tasks is held against claiming and completing a hundred a statement, latencies against an INSERT that
notifies, and at the end the worker is left alone and its cost counted.
"""

# ruff: noqa: ASYNC110, ASYNC240  # a worker in another process sets no events; nothing else runs while a file is read

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from bench import floor
from bench.machine import load
from bench.server import clear, connected, durable_server, make_tables, refuse_unsafe
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

APP = Path(__file__).with_name("noop_app.py")
LINE_BYTES = 16
IDLE_S = 30
SETTLE_S = 2

FILL = """
INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueue_sha, enqueued_at)
SELECT gen_random_uuid(), 'noop', 'default', now(), '', clock_timestamp() FROM generate_series(1, $1::integer)
"""
CLOSE = """
INSERT INTO horsies_queues (queue_name, paused_at) VALUES ('default', now())
ON CONFLICT (queue_name) DO UPDATE SET paused_at = now()
"""
OPEN = "UPDATE horsies_queues SET paused_at = NULL"
WAKE = "NOTIFY horsies_task_new, 'default'"
LEFT = "SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'"
SPENT = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


@asynccontextmanager
async def worker(url: str, lines: Path) -> AsyncGenerator[psutil.Process]:
    """`horsies worker` with two processes and default settings, ready to claim."""
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, "-m", "horsies_ops.cli", "worker", f"{APP}:app", "--processes", "2"]
        environment = {**os.environ, "HORSIES_BROKER__DATABASE_URL": url, "BENCH_LINES": str(lines)}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220  # our own
        try:
            while b"worker started" not in Path(log.name).read_bytes():
                await asyncio.sleep(0.05)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


async def drain(url: str, lines: Path, tasks: int) -> float:
    """Tasks a second, from the opening of the queue until the last outcome is stored."""
    ran = lines.stat().st_size
    async with connected(url) as connection:
        await connection.execute(CLOSE)
        await connection.execute(FILL, tasks)
        await connection.execute("CHECKPOINT")
        await connection.execute(OPEN)
        began = time.perf_counter()
        await connection.execute(WAKE)
        while lines.stat().st_size < ran + tasks * LINE_BYTES or await connection.fetchval(LEFT):
            await asyncio.sleep(0.01)
        taken_s = time.perf_counter() - began
    if lines.stat().st_size != ran + tasks * LINE_BYTES:
        raise RuntimeError("a task ran twice")
    return tasks / taken_s


async def floor_drain(url: str, tasks: int) -> float:
    await floor.fill(url, tasks)
    async with floor.claiming_and_completing(url) as work:
        began = time.perf_counter()
        await work(tasks)
        return tasks / (time.perf_counter() - began)


async def floor_notify_ms(url: str, times: int) -> list[float]:
    taken: list[float] = []
    async with floor.inserting_and_notifying(url) as say:
        for _ in range(times):
            began = time.perf_counter()
            await say(1)
            taken.append(1000 * (time.perf_counter() - began))
    return taken


async def latencies_ms(url: str, times: int) -> tuple[list[float], list[float]]:
    """From the send until the task's first line, and until its result is in the producer's hands."""
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))
    stamp = app.task("stamp")(_stamp)
    starts: list[float] = []
    results: list[float] = []
    for _ in range(times):
        began = time.monotonic_ns()
        handle = (await stamp.send_async()).unwrap()
        begun = (await handle.get_async(timeout_ms=10_000)).unwrap()
        results.append((time.monotonic_ns() - began) / 1e6)
        starts.append((begun - began) / 1e6)
    await app.close_async()
    return starts, results


def _stamp() -> TaskResult[int, TaskError]:
    """Sent here, run as `noop_app.stamp`."""
    raise NotImplementedError


async def idle(url: str, tree: psutil.Process, seconds: int) -> str:
    """What the worker costs while nothing happens."""
    async with connected(url) as connection:
        # Its transactions would be counted as ours.
        await connection.execute("ALTER SYSTEM SET autovacuum = off")
        await connection.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(SETTLE_S)
        cpu_s, spent = _cpu_s(tree), await connection.fetchval(SPENT)
        await asyncio.sleep(seconds)
        cpu_s, spent = _cpu_s(tree) - cpu_s, await connection.fetchval(SPENT) - spent
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        connections = await connection.fetchval(others)
    pss_mb = sum(each.memory_full_info().pss for each in (tree, *tree.children(recursive=True))) / 2**20
    return (
        f"idle for {seconds} s: {cpu_s:.2f} CPU s, {spent / seconds:.2f} transactions/s, {connections} connections, "
        f"PSS {pss_mb:.0f} MB"
    )


def _cpu_s(tree: psutil.Process) -> float:
    times = [each.cpu_times() for each in (tree, *tree.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _quantiles(values: list[float]) -> str:
    return f"p50 {statistics.median(values):.2f} ms, p99 {sorted(values)[int(len(values) * 0.99)]:.2f} ms"


async def measure(url: str, *, rounds: int, tasks: int, sends: int, idle_s: int) -> None:
    await make_tables(url)
    await refuse_unsafe(url)
    before = load()
    ratios: list[float] = []
    notified: list[float] = []
    started: list[float] = []
    resulted: list[float] = []
    with tempfile.NamedTemporaryFile() as counted:
        lines = Path(counted.name)
        async with worker(url, lines) as tree:
            await drain(url, lines, 500)
            for number in range(rounds):
                await clear(url)
                bare, ours = await floor_drain(url, tasks), await drain(url, lines, tasks)
                ratios.append(ours / bare)
                print(f"round {number + 1}: floor {bare:,.0f} tasks/s, drain {ours:,.0f} tasks/s, {ours / bare:.2f} x")
                notified += await floor_notify_ms(url, sends)
                starts, results = await latencies_ms(url, sends)
                started, resulted = started + starts, resulted + results
            print(f"drain: {statistics.median(ratios):.2f} x floor (median of {rounds}), load {before} to {load()}")
            print(f"floor, INSERT and NOTIFY heard: {_quantiles(notified)}")
            print(f"send to first line: {_quantiles(started)}")
            print(f"send to result: {_quantiles(resulted)}")
            print(await idle(url, tree, idle_s))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.draining", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="one round of little, to see that it works")
    options = parser.parse_args()
    with durable_server() as url:
        if options.small:
            asyncio.run(measure(url, rounds=1, tasks=500, sends=5, idle_s=1))
        else:
            asyncio.run(measure(url, rounds=options.rounds, tasks=20_000, sends=100, idle_s=IDLE_S))


if __name__ == "__main__":
    main()
