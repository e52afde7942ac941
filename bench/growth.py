"""`python -m bench.growth`: drains of a large table (P7) and by many workers (P8), compared with the usual drain.

P7: the queue also holds a million finished tasks and a million that are due tomorrow, and autovacuum is off. The large
table is drained between two drains of the empty one.
P8: eight workers with one child each, compared with one such worker. Sessions that wait for a lock are sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from bench.draining import drain, worker
from bench.machine import load
from bench.server import clear, connect, create_tables, durable_server, require_durable

FINISHED_ROWS = """
INSERT INTO horsies_tasks (id, task_name, queue_name, status, sent_at, enqueue_sha, enqueued_at, claimed_at, started_at,
                           completed_at, terminal_at, claim_token, result)
SELECT uuidv7(), 'noop', 'default', 'COMPLETED', at, '', at, at, at, at, at, 1, '{"ok": null}'
  FROM (SELECT now() - make_interval(secs => number / 100.0) AS at FROM generate_series($1::integer, 1, -1) AS number)
       AS past
"""
DELAYED_ROWS = """
INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueue_sha, enqueued_at)
SELECT uuidv7(), 'noop', 'default', now(), '', now() + interval '1 day' + make_interval(secs => number / 1000.0)
  FROM generate_series(1, $1::integer) AS number
"""
BATCH_ROWS = 100_000
WAITS_FOR_LOCK = """
SELECT wait_event FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
WORKERS = 8


async def large_table(url: str, *, rows: int, tasks: int) -> None:
    """P7: drain `tasks` from an empty table, and from one with `rows` finished and `rows` delayed tasks."""
    async with connect(url) as connection:
        await connection.execute("ALTER SYSTEM SET autovacuum = off")
        await connection.execute("SELECT pg_reload_conf()")
    rates: dict[str, list[float]] = {"empty": [], "large": []}
    with tempfile.NamedTemporaryFile() as file:
        runs_file = Path(file.name)
        async with worker(url, runs_file) as tree:
            await drain(url, runs_file, 500, tree)  # warm-up
            for kind in ("empty", "large", "empty"):
                await clear(url)
                if kind == "large":
                    await fill(url, rows)
                rate, cpu = await drain(url, runs_file, tasks, tree)
                rates[kind].append(rate)
                print(f"P7, {kind} table: {rate:,.0f} tasks/s, {cpu}, load {load()}", flush=True)
    ratio = statistics.mean(rates["large"]) / statistics.mean(rates["empty"])
    print(f"P7: with {rows:,} finished and {rows:,} delayed tasks {ratio:.2f} x the drain of the empty table")


async def fill(url: str, rows: int) -> None:
    started = time.perf_counter()
    async with connect(url) as connection:
        for statement in (FINISHED_ROWS, DELAYED_ROWS):
            for first in range(0, rows, BATCH_ROWS):
                await connection.execute(statement, min(BATCH_ROWS, rows - first))
        # Without autovacuum the statistics would describe an empty table; a table that grew to this size has some.
        await connection.execute("ANALYZE horsies_tasks")
    print(f"filled in {time.perf_counter() - started:.0f} s", flush=True)


async def many_workers(url: str, *, tasks: int, rounds: int) -> None:
    """P8: drain with one worker and with eight; they have one child each."""
    ratios: list[float] = []
    for number in range(rounds):
        one, cpu_of_one, _ = await drain_with(1, url, tasks)
        eight, cpu_of_eight, waiting = await drain_with(WORKERS, url, tasks)
        ratios.append(eight / one)
        print(f"P8, round {number + 1}, 1 worker: {one:,.0f} tasks/s, {cpu_of_one}")
        print(
            f"P8, round {number + 1}, {WORKERS} workers: {eight:,.0f} tasks/s, {eight / one:.2f} x, {cpu_of_eight}, ",
            end="",
        )
        print(f"sessions waiting for locks: {waiting}", flush=True)
    print(f"P8: {WORKERS} workers drain {statistics.median(ratios):.2f} x as fast as one (median of {rounds})")


async def drain_with(workers: int, url: str, tasks: int) -> tuple[float, str, str]:
    """Return tasks per second, CPU time, and how many sessions waited for which locks, on average."""
    await clear(url)
    waits: Counter[str] = Counter()
    samples = 0

    async def watch_locks() -> None:
        nonlocal samples
        async with connect(url) as connection:
            while True:
                waits.update(row["wait_event"] for row in await connection.fetch(WAITS_FOR_LOCK))
                samples += 1
                await asyncio.sleep(0.05)

    with tempfile.NamedTemporaryFile() as file:
        runs_file = Path(file.name)
        async with AsyncExitStack() as stack:
            trees = [await stack.enter_async_context(worker(url, runs_file, processes=1)) for _ in range(workers)]
            await drain(url, runs_file, 500, *trees)  # warm-up
            watching = asyncio.create_task(watch_locks())
            rate, cpu = await drain(url, runs_file, tasks, *trees)
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
    return rate, cpu, ", ".join(f"{name} {count / samples:.1f}" for name, count in waits.most_common()) or "none"


async def measure(url: str, *, rows: int, large_tasks: int, tasks: int, rounds: int, only: str | None) -> None:
    await create_tables(url)
    await require_durable(url)
    load_before = load()
    if only != "P8":
        await large_table(url, rows=rows, tasks=large_tasks)
        await clear(url)
    if only != "P7":
        await many_workers(url, tasks=tasks, rounds=rounds)
    print(f"load {load_before} to {load()}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--only", choices=["P7", "P8"], help="measure only one of them [default: both]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of P8 [default: 3]")
    parser.add_argument(
        "--small", action="store_true", help="few rows and a single round, to test the benchmark itself"
    )
    options = parser.parse_args()
    with durable_server() as url:
        if options.small:
            asyncio.run(measure(url, rows=1_000, large_tasks=500, tasks=500, rounds=1, only=options.only))
        else:
            asyncio.run(
                measure(
                    url, rows=1_000_000, large_tasks=100_000, tasks=20_000, rounds=options.rounds, only=options.only
                )
            )


if __name__ == "__main__":
    main()
