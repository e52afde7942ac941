"""`python -m bench.workflows`: nodes per second of many small workflows, compared with as many plain tasks.

Each round drains plain tasks, then the nodes of small workflows, then one workflow that fans out and in, all with the
same worker. Runs are started while the queue is paused; the time is measured from resuming it.
"""

# ruff: noqa: ASYNC110  # polls a worker in another process

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from uuid_utils.compat import uuid7

from bench.draining import NOTIFY_WORKERS, PAUSE_QUEUE, RESUME_QUEUE, CpuTimes, drain, worker
from bench.machine import load
from bench.server import clear, connect, create_tables, durable_server, require_durable
from horsies.model.workflow.plan import NodePlan, OnError, WorkflowPlan
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.workflows.start import start_run

DIAMONDS: tuple[Sequence[int], ...] = ((), (0,), (0,), (0,), (1, 2), (2, 3), (4,), (4, 5), (6, 7), (8,))
"""The dependencies of ten nodes in six layers."""
UNFINISHED = "SELECT count(*) FROM horsies_workflows WHERE completed_at IS NULL"
DELETE_RUNS = "DELETE FROM horsies_workflows"


def plan(dependencies: Sequence[Sequence[int]]) -> WorkflowPlan:
    nodes = [
        NodePlan(
            index=index, node_id=f"n{index}", name="noop", queue_name="default", priority=100, dependencies=tuple(after)
        )
        for index, after in enumerate(dependencies)
    ]
    return WorkflowPlan(name="bench", definition_key="bench", on_error=OnError.FAIL, nodes=tuple(nodes))


def fan_out(width: int) -> list[Sequence[int]]:
    """Return the dependencies of one node, `width` parallel ones, and one that waits for all."""
    return [(), *([(0,)] * width), range(1, width + 1)]


async def run(url: str, runs: int, dependencies: Sequence[Sequence[int]], tree: psutil.Process) -> tuple[float, str]:
    """Return nodes per second, from resuming the queue until the last run has finished, and the CPU time per node."""
    nodes = runs * len(dependencies)
    async with connect(url) as connection, Database(ConnectionSpec(url=url, masked_url=url)) as database:
        own_backend_pid = await connection.fetchval("SELECT pg_backend_pid()")
        await connection.execute(PAUSE_QUEUE)
        for _ in range(runs):
            await start_run(database, plan(dependencies), uuid7())
        await connection.execute("CHECKPOINT")
        await connection.execute(RESUME_QUEUE)
        before = CpuTimes.of(own_backend_pid, tree)
        started = time.perf_counter()
        await connection.execute(NOTIFY_WORKERS)
        while await connection.fetchval(UNFINISHED):
            await asyncio.sleep(0.01)
        elapsed_s = time.perf_counter() - started
        cpu = CpuTimes.of(own_backend_pid, tree).per_unit(before, nodes, "node")
        await connection.execute(DELETE_RUNS)
    return nodes / elapsed_s, cpu


async def measure(url: str, *, rounds: int, runs: int, width: int) -> None:
    await create_tables(url)
    await require_durable(url)
    load_before = load()
    ratios: list[float] = []
    with tempfile.NamedTemporaryFile() as file:
        runs_file = Path(file.name)
        async with worker(url, runs_file) as tree:
            await drain(url, runs_file, 500, tree)  # warm-up
            for number in range(rounds):
                await clear(url)
                plain, _ = await drain(url, runs_file, runs * len(DIAMONDS), tree)
                await clear(url)
                nodes, cpu = await run(url, runs, DIAMONDS, tree)
                ratios.append(nodes / plain)
                compared = f"plain {plain:,.0f} tasks/s, runs {nodes:,.0f} nodes/s, {nodes / plain:.2f} x, {cpu}"
                fanned_out, _ = await run(url, 1, fan_out(width), tree)
                print(f"round {number + 1}: {compared}; 1 to {width} to 1: {fanned_out:,.0f} nodes/s")
    ratio = statistics.median(ratios)
    print(f"workflows: {ratio:.2f} x plain tasks (median of {rounds}), load {load_before} to {load()}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.workflows", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a single small round, to test the benchmark itself")
    options = parser.parse_args()
    with durable_server() as url:
        if options.small:
            asyncio.run(measure(url, rounds=1, runs=20, width=50))
        else:
            asyncio.run(measure(url, rounds=options.rounds, runs=1_000, width=1_000))


if __name__ == "__main__":
    main()
