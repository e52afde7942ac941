"""`python -m bench.schedules`: many slots due at once, lag on an idle fleet, and schedules in an idle worker.

The rate and the CPU time of firing are compared with `send_many` of as many tasks in the same round. The idle worker is
measured without schedules and with a hundred.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import psutil

from bench.draining import CpuTimes, idle, worker
from bench.machine import load
from bench.server import clear, connect, create_tables, durable_server, require_durable
from horsies import AppConfig, Horsies, IntervalSchedule, PostgresConfig, TaskError, TaskResult, TaskSchedule
from horsies.client.schedules import encode_schedules
from horsies.scheduler.firing import fire_all_due
from horsies.scheduler.service import Scheduler
from horsies.scheduler.sync import sync_definitions
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database

SYNC_S_PER_SCHEDULE = 0.0005
"""Encoding and storing a schedule takes a tenth of this."""
LAGS = "SELECT extract(epoch FROM fired_at - slot_at)::float8 FROM horsies_schedule_runs WHERE outcome = 'fired'"


def make_app(url: str, count: int, pattern: IntervalSchedule) -> Horsies:
    app = Horsies(AppConfig(name="bench", broker=PostgresConfig.model_validate({"database_url": url})))

    @app.task("noop")
    def noop(n: int = 0) -> TaskResult[None, TaskError]:  # pyright: ignore[reportUnusedFunction]
        del n
        return TaskResult(ok=None)

    app.add_schedules(TaskSchedule(name=f"s{n}", task_name="noop", pattern=pattern) for n in range(count))
    return app


async def forget(url: str) -> None:
    async with connect(url) as connection:
        await connection.execute("TRUNCATE horsies_schedule_state, horsies_schedule_runs")
    await clear(url)


async def measure_lag(url: str, seconds: float) -> None:
    """Three participants, twenty schedules with slots spread over each second."""
    await forget(url)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    app = make_app(url, 0, IntervalSchedule(seconds=1))
    app.add_schedules(
        TaskSchedule(
            name=f"s{n}",
            task_name="noop",
            pattern=IntervalSchedule(seconds=1, anchor=start + timedelta(milliseconds=50 * n)),
        )
        for n in range(20)
    )
    encoded, stop = encode_schedules(app, app.get_schedules()), asyncio.Event()
    databases = [Database(ConnectionSpec(url=url, masked_url=url)) for _ in range(3)]
    running = [asyncio.create_task(Scheduler(database, encoded, uuid4()).run(stop)) for database in databases]
    await asyncio.sleep(seconds)
    stop.set()
    await asyncio.gather(*running)
    await asyncio.gather(*(database.close() for database in databases))
    async with connect(url) as connection:
        lags = sorted(row[0] * 1000 for row in await connection.fetch(LAGS))
    p99 = lags[int(len(lags) * 0.99)]
    print(f"lag of {len(lags)} slots: p50 {statistics.median(lags):.1f} ms, p99 {p99:.1f} ms, max {lags[-1]:.1f} ms")


async def measure_idle(url: str, seconds: int) -> None:
    """`horsies worker` without schedules, and with a hundred that are due tomorrow."""
    for count in (0, 100):
        await forget(url)
        async with worker(url, Path(os.devnull), schedules=count) as tree:
            print(f"worker with {count} schedules, {await idle(url, tree, seconds)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    per_s: float
    cpu_us: float
    """CPU time of this process and the server."""


async def cost_of(work: Awaitable[object], count: int, own_backend_pid: int) -> Cost:
    before, began = CpuTimes.of(own_backend_pid, psutil.Process()), time.perf_counter()
    await work
    elapsed_s = time.perf_counter() - began
    after = CpuTimes.of(own_backend_pid, psutil.Process())
    cpu_s = after.parent - before.parent + after.server - before.server
    return Cost(per_s=count / elapsed_s, cpu_us=1e6 * cpu_s / count)


async def measure_rate(url: str, count: int) -> float:
    """All schedules due at once against `send_many` of as many tasks; returns the ratio of their rates."""
    await forget(url)
    due_at = datetime.now(UTC) + timedelta(seconds=2 + count * SYNC_S_PER_SCHEDULE)
    app = make_app(url, count, IntervalSchedule(days=1, anchor=due_at))
    encoded = encode_schedules(app, app.get_schedules())
    spec = ConnectionSpec(url=url, masked_url=url, force_generic_plan=True)  # as in a worker
    async with Database(spec) as database, connect(url) as connection:
        pid: int = await connection.fetchval("SELECT pg_backend_pid()")
        await sync_definitions(database, encoded.owner, encoded.definitions)
        left_s = (due_at - datetime.now(UTC)).total_seconds()
        if left_s < 0:
            raise RuntimeError(f"the schedules were stored {-left_s:.1f} s after their slot")
        await asyncio.sleep(left_s)
        fired = await cost_of(fire_all_due(database, None, asyncio.Event(), includes_waiting=False), count, pid)
        if await connection.fetchval("SELECT count(*) FROM horsies_tasks") != count:
            raise RuntimeError("a slot did not fire once")
        await clear(url)
        await app.ping_database_async()
        sent = await cost_of(app.tasks["noop"].send_many_async([{"n": n} for n in range(count)]), count, pid)
    await app.close_async()
    print(
        f"{count:,} due at once: {fired.per_s:,.0f}/s, {fired.cpu_us:.0f} us of CPU each; "
        f"send_many {sent.per_s:,.0f}/s, {sent.cpu_us:.0f} us; ratio {fired.per_s / sent.per_s:.2f}, "
        f"of CPU {sent.cpu_us / fired.cpu_us:.2f}"
    )
    return fired.per_s / sent.per_s


async def main(url: str, *, rounds: int, count: int, seconds: float) -> None:
    await create_tables(url)
    await require_durable(url)
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # as in a worker
    ratios = [await measure_rate(url, count) for _ in range(rounds)]
    print(f"median ratio {statistics.median(ratios):.2f}")
    await measure_lag(url, seconds)
    await measure_idle(url, round(2 * seconds))
    print(load())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    with durable_server() as server_url:
        asyncio.run(main(server_url, rounds=given.rounds, count=given.count, seconds=given.seconds))
