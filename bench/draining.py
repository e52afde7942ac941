"""`python -m bench.draining`: throughput, latency and idle cost of a worker with two child processes.

Runs in interleaved rounds. Drains, of no-op tasks and of tasks with arguments and a dict as result, are compared with
claiming and completing 100 rows per statement. Latencies are compared with an INSERT with NOTIFY, twice: INSERTs in a
loop and then sends in a loop; and both alternating, so that each finds processes that have slept for a moment. At the
end the cost of the idle worker is measured.

With `--unknown 100000` it measures only the drain behind so many tasks that the worker does not know, against the usual
drain.
"""

# ruff: noqa: ASYNC110, ASYNC240  # polls a worker in another process; blocking file reads disturb nothing here

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
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench import baseline
from bench.machine import load
from bench.rounds import Work
from bench.server import clear, connect, create_tables, durable_server, require_durable
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.client.task import TaskFunction

APP = Path(__file__).with_name("noop_app.py")
BYTES_PER_RUN = 16
"""What each run of a drained task appends to the file that counts runs."""
IDLE_S = 30
SETTLE_S = 12
"""Sessions report their transactions to the server's statistics up to 10 s late."""

FILL = """
INSERT INTO horsies_tasks (id, task_name, args, queue_name, sent_at, enqueue_sha, enqueued_at)
SELECT uuidv7(), $2, $3::text::jsonb, 'default', now(), '', clock_timestamp()
  FROM generate_series(1, $1::integer)
"""
NOOP, ADD = ("noop", "[]"), ("add", '[17, "some text"]')
"""Names and stored arguments of the tasks that are drained."""
PAUSE_QUEUE = """
INSERT INTO horsies_queues (queue_name, paused_at) VALUES ('default', now())
ON CONFLICT (queue_name) DO UPDATE SET paused_at = now()
"""
RESUME_QUEUE = "UPDATE horsies_queues SET paused_at = NULL"
NOTIFY_WORKERS = "NOTIFY horsies_task_new, 'default'"
IN_FLIGHT = "SELECT EXISTS (SELECT FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING'))"
IS_EXCLUDED = """
SELECT EXISTS (SELECT FROM horsies_workers WHERE state = 'running' AND health -> 'unknown_tasks' ? 'unknown')
"""
"""Whether the worker leaves the unknown tasks to others."""
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


@asynccontextmanager
async def worker(
    url: str, runs_file: Path, *, processes: int = 2, schedules: int = 0
) -> AsyncGenerator[psutil.Process]:
    """Start `horsies worker` with default settings otherwise, and wait until it claims."""
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, "-m", "horsies_ops.cli", "worker", f"{APP}:app", "--processes", str(processes)]
        given = {"BENCH_RUNS_FILE": str(runs_file), "BENCH_SCHEDULES": str(schedules)}
        environment = {**os.environ, "HORSIES_BROKER__DATABASE_URL": url, **given}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220
        try:
            while b"worker started" not in (output := Path(log.name).read_bytes()):
                if process.poll() is not None:
                    raise RuntimeError(f"the worker has ended: {output.decode()}")
                await asyncio.sleep(0.05)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds used so far by the processes that drain a queue."""

    parent: float
    children: float
    server: float
    """All processes of the server except the session that measures."""

    @classmethod
    def of(cls, own_backend_pid: int, *workers: psutil.Process) -> CpuTimes:
        postmaster = psutil.Process(own_backend_pid).parent()
        assert postmaster is not None
        return cls(
            parent=sum(map(_cpu_s, workers)),
            children=sum(_cpu_s(child) for worker in workers for child in worker.children(recursive=True)),
            server=sum(_cpu_s(process) for process in postmaster.children() if process.pid != own_backend_pid),
        )

    def per_unit(self, before: CpuTimes, count: int, unit: str = "task") -> str:
        parent, children, server = (
            1e6 * used_s / count
            for used_s in (self.parent - before.parent, self.children - before.children, self.server - before.server)
        )
        return (
            f"CPU per {unit} {parent + children + server:.0f} us "
            f"(parent {parent:.0f}, children {children:.0f}, server {server:.0f})"
        )


async def drain(
    url: str, runs_file: Path, tasks: int, *workers: psutil.Process, task: tuple[str, str] = NOOP
) -> tuple[float, str]:
    """Return tasks per second, from resuming the queue until the last outcome is stored, and the CPU time per task."""
    expected_size = runs_file.stat().st_size + tasks * BYTES_PER_RUN
    async with connect(url) as connection:
        own_backend_pid = await connection.fetchval("SELECT pg_backend_pid()")
        await connection.execute(PAUSE_QUEUE)
        await connection.execute(FILL, tasks, *task)
        await connection.execute("CHECKPOINT")
        await connection.execute(RESUME_QUEUE)
        before = CpuTimes.of(own_backend_pid, *workers)
        started = time.perf_counter()
        await connection.execute(NOTIFY_WORKERS)
        while runs_file.stat().st_size < expected_size or await connection.fetchval(IN_FLIGHT):
            await asyncio.sleep(0.01)
        elapsed_s = time.perf_counter() - started
        cpu = CpuTimes.of(own_backend_pid, *workers).per_unit(before, tasks)
    if runs_file.stat().st_size != expected_size:
        raise RuntimeError("a task ran twice")
    return tasks / elapsed_s, cpu


async def baseline_drain(url: str, tasks: int) -> float:
    await baseline.fill(url, tasks)
    async with baseline.claim_and_complete(url) as work:
        started = time.perf_counter()
        await work(tasks)
        return tasks / (time.perf_counter() - started)


@dataclass
class Latencies:
    """Latencies in milliseconds."""

    to_notification: list[float] = field(default_factory=list[float])
    """Of the baseline: from an INSERT to its notification."""
    to_start: list[float] = field(default_factory=list[float])
    """From a send to the first line of the task."""
    to_result: list[float] = field(default_factory=list[float])
    """From a send to the result in the producer."""

    async def measure(self, url: str, times: int, *, is_alternating: bool) -> None:
        """Measure INSERTs with NOTIFY and sends: alternating, or all INSERTs before all sends."""
        app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))
        stamp = app.task("stamp")(_stamp)
        await (await stamp.send_async()).unwrap().get_async()  # opens the connections of the producer
        async with baseline.insert_and_notify(url) as insert_and_notify:
            await insert_and_notify(1)
            insert, send = (lambda: self._insert(insert_and_notify)), (lambda: self._send(stamp))
            for step in [insert, send] * times if is_alternating else [insert] * times + [send] * times:
                await step()
        await app.close_async()

    async def _insert(self, insert_and_notify: Work) -> None:
        inserted_ns = time.monotonic_ns()
        await insert_and_notify(1)
        self.to_notification.append((time.monotonic_ns() - inserted_ns) / 1e6)

    async def _send(self, stamp: TaskFunction[[], int]) -> None:
        sent_ns = time.monotonic_ns()
        handle = (await stamp.send_async()).unwrap()
        started_ns = (await handle.get_async(timeout_ms=10_000)).unwrap()
        self.to_result.append((time.monotonic_ns() - sent_ns) / 1e6)
        self.to_start.append((started_ns - sent_ns) / 1e6)

    def report(self, title: str) -> str:
        floor = statistics.median(self.to_notification)
        lines = [f"{title}: INSERT to NOTIFY received {_quantiles(self.to_notification)}"]
        for name, values in (("send to start", self.to_start), ("send to result", self.to_result)):
            lines.append(f"  {name}: {_quantiles(values)}, {statistics.median(values) / floor:.1f} x baseline")
        return "\n".join(lines)


def _stamp() -> TaskResult[int, TaskError]:
    """Only sent here; the worker runs `noop_app.stamp`."""
    raise NotImplementedError


async def idle(url: str, tree: psutil.Process, seconds: int, *, settle_s: int = SETTLE_S) -> str:
    """Measure the cost of the idle worker."""
    async with connect(url) as connection:
        # Transactions of autovacuum would be counted too.
        await connection.execute("ALTER SYSTEM SET autovacuum = off")
        await connection.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(settle_s)
        cpu_s, commits = _tree_cpu_s(tree), await connection.fetchval(COMMITS)
        await asyncio.sleep(seconds)
        cpu_s, commits = _tree_cpu_s(tree) - cpu_s, await connection.fetchval(COMMITS) - commits
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        connections = await connection.fetchval(others)
    pss_mb = sum(process.memory_full_info().pss for process in (tree, *tree.children(recursive=True))) / 2**20
    return (
        f"idle for {seconds} s: {cpu_s:.2f} CPU s, {commits / seconds:.2f} transactions/s, {connections} connections, "
        f"PSS {pss_mb:.0f} MB"
    )


def _tree_cpu_s(tree: psutil.Process) -> float:
    return sum(map(_cpu_s, (tree, *tree.children(recursive=True))))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _quantiles(values: list[float]) -> str:
    return f"p50 {statistics.median(values):.2f} ms, p99 {sorted(values)[int(len(values) * 0.99)]:.2f} ms"


async def measure(url: str, *, rounds: int, tasks: int, sends: int, idle_s: int) -> None:
    await create_tables(url)
    await require_durable(url)
    load_before = load()
    ratios: list[float] = []
    add_ratios: list[float] = []
    looped, alternating = Latencies(), Latencies()
    with tempfile.NamedTemporaryFile() as file:
        runs_file = Path(file.name)
        async with worker(url, runs_file) as tree:
            for task in (NOOP, ADD):
                await drain(url, runs_file, 500, tree, task=task)  # warm-up
            for number in range(rounds):
                await clear(url)
                base = await baseline_drain(url, tasks)
                ours, cpu = await drain(url, runs_file, tasks, tree)
                ratios.append(ours / base)
                rates = f"baseline {base:,.0f} tasks/s, drain {ours:,.0f} tasks/s"
                print(f"round {number + 1}: {rates}, {ours / base:.2f} x, {cpu}")
                await clear(url)
                with_arguments, cpu = await drain(url, runs_file, tasks, tree, task=ADD)
                add_ratios.append(with_arguments / base)
                print(f"  add(int, str) -> dict: {with_arguments:,.0f} tasks/s, {with_arguments / base:.2f} x, {cpu}")
                await clear(url)
                await looped.measure(url, sends, is_alternating=False)
                await alternating.measure(url, sends, is_alternating=True)
            ratio = statistics.median(ratios)
            print(f"drain: {ratio:.2f} x baseline (median of {rounds}), load {load_before} to {load()}")
            print(f"drain of add: {statistics.median(add_ratios):.2f} x baseline")
            print(looped.report("in loops"))
            print(alternating.report("alternating"))
            print(await idle(url, tree, idle_s, settle_s=min(SETTLE_S, idle_s)))


async def drain_behind(url: str, tasks: int, unknown: int) -> tuple[float, str]:
    """Return what `drain` returns, of a new worker, with so many unknown tasks at the head of the queue."""
    await clear(url)
    with tempfile.NamedTemporaryFile() as file:
        async with worker(url, Path(file.name)) as tree:
            await drain(url, Path(file.name), 500, tree)  # warm-up
            if unknown:
                async with connect(url) as connection:
                    await connection.execute(FILL, unknown, "unknown", "[]")
                    await connection.execute(NOTIFY_WORKERS)
                    while not await connection.fetchval(IS_EXCLUDED) or await connection.fetchval(IN_FLIGHT):
                        await asyncio.sleep(0.1)
            return await drain(url, Path(file.name), tasks, tree)


async def measure_unknown(url: str, *, rounds: int, tasks: int, unknown: int) -> None:
    await create_tables(url)
    await require_durable(url)
    load_before, ratios = load(), list[float]()
    for number in range(rounds):
        (usual, usual_cpu), (behind, cpu) = await drain_behind(url, tasks, 0), await drain_behind(url, tasks, unknown)
        ratios.append(behind / usual)
        print(f"round {number + 1}: usual {usual:,.0f} tasks/s, {usual_cpu}")
        print(f"  behind {unknown:,} unknown tasks {behind:,.0f} tasks/s, {behind / usual:.2f} x, {cpu}")
    ratio, loads = statistics.median(ratios), f"load {load_before} to {load()}"
    print(f"drain behind {unknown:,} unknown tasks: {ratio:.2f} x usual (goal 0.8, median of {rounds}), {loads}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.draining", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a single small round, to test the benchmark itself")
    parser.add_argument("--unknown", type=int, default=0, help="measure only the drain behind so many unknown tasks")
    options = parser.parse_args()
    with durable_server() as url:
        if options.unknown:
            rounds, tasks = (1, 500) if options.small else (options.rounds, 20_000)
            asyncio.run(measure_unknown(url, rounds=rounds, tasks=tasks, unknown=options.unknown))
        elif options.small:
            asyncio.run(measure(url, rounds=1, tasks=500, sends=5, idle_s=1))
        else:
            asyncio.run(measure(url, rounds=options.rounds, tasks=20_000, sends=100, idle_s=IDLE_S))


if __name__ == "__main__":
    main()
