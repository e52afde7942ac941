"""`python -m bench.schedules`: lag of schedules on an idle fleet, cost of an idle scheduler, many slots due at once.

The rate of firing is compared with `send_many` of as many tasks in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psutil

from bench.machine import load
from bench.server import clear, connect, create_tables, durable_server, require_durable
from horsies import AppConfig, Horsies, IntervalSchedule, PostgresConfig, TaskError, TaskResult, TaskSchedule
from horsies.client.schedules import encode_schedules
from horsies.scheduler.firing import fire_due
from horsies.scheduler.service import Scheduler
from horsies.scheduler.sync import sync_definitions
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database

LAGS = "SELECT extract(epoch FROM fired_at - slot_at)::float8 FROM horsies_schedule_runs WHERE outcome = 'fired'"
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
SETTLE_S = 12
"""Sessions report their transactions to the server's statistics up to 10 s late."""


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
    await asyncio.gather(*running, *(database.close() for database in databases))
    async with connect(url) as connection:
        lags = sorted(row[0] * 1000 for row in await connection.fetch(LAGS))
    p99 = lags[int(len(lags) * 0.99)]
    print(f"lag of {len(lags)} slots: p50 {statistics.median(lags):.1f} ms, p99 {p99:.1f} ms, max {lags[-1]:.1f} ms")


async def measure_idle(url: str, seconds: float) -> None:
    """One participant with a hundred schedules that are due tomorrow: its transactions and CPU time."""
    await forget(url)
    app = make_app(url, 100, IntervalSchedule(days=1))
    encoded, stop = encode_schedules(app, app.get_schedules()), asyncio.Event()
    async with Database(ConnectionSpec(url=url, masked_url=url)) as database, connect(url) as connection:
        running = asyncio.create_task(Scheduler(database, encoded, uuid4()).run(stop))
        await asyncio.sleep(SETTLE_S)
        process = psutil.Process()
        commits, cpu = await connection.fetchval(COMMITS), sum(process.cpu_times()[:2])
        await asyncio.sleep(seconds)
        cpu = sum(process.cpu_times()[:2]) - cpu
        await asyncio.sleep(SETTLE_S)
        commits = await connection.fetchval(COMMITS) - commits
        stop.set()
        await running
    per_s = commits / (seconds + SETTLE_S)
    print(f"idle with 100 schedules: {per_s:.2f} transactions/s, {cpu * 30 / seconds:.3f} CPU s per 30 s")


async def measure_rate(url: str, count: int) -> float:
    """All schedules due at once against `send_many` of as many tasks; returns the ratio of their rates."""
    await forget(url)
    app = make_app(url, count, IntervalSchedule(days=1))
    encoded = encode_schedules(app, app.get_schedules())
    async with Database(ConnectionSpec(url=url, masked_url=url)) as database, connect(url) as connection:
        await sync_definitions(database, encoded.owner, encoded.definitions)
        await connection.execute("UPDATE horsies_schedule_state SET next_run_at = now()")
        await connection.execute("CHECKPOINT")
        began, fired = time.perf_counter(), 0
        while (result := await fire_due(database, has_waiting=False)).schedules:
            fired += result.fired
        fire_rate = fired / (time.perf_counter() - began)
        await clear(url)
        await app.ping_database_async()
        began = time.perf_counter()
        (await app.tasks["noop"].send_many_async([{"n": n} for n in range(count)])).unwrap()
        send_rate = count / (time.perf_counter() - began)
    await app.close_async()
    print(f"{fired:,} due at once: {fire_rate:,.0f}/s, send_many {send_rate:,.0f}/s, ratio {fire_rate / send_rate:.2f}")
    return fire_rate / send_rate


async def main(url: str, *, rounds: int, count: int, seconds: float) -> None:
    await create_tables(url)
    await require_durable(url)
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # as in a worker
    ratios = [await measure_rate(url, count) for _ in range(rounds)]
    print(f"median ratio {statistics.median(ratios):.2f}")
    await measure_lag(url, seconds)
    await measure_idle(url, seconds)
    print(load())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    with durable_server() as server_url:
        asyncio.run(main(server_url, rounds=given.rounds, count=given.count, seconds=given.seconds))
