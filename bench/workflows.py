"""`python -m bench.workflows`: nodes a second of many small runs, held against the drain of as many plain tasks.

Each round drains plain tasks and then the nodes of as many runs, by the same worker with two processes; then one run
that fans out and in again. Runs are started while the queue is closed, and the clock runs from its opening.
"""

# ruff: noqa: ASYNC110  # a worker in another process sets no events

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.draining import CLOSE, OPEN, WAKE, drain, worker
from bench.machine import load
from bench.server import clear, connected, durable_server, make_tables, refuse_unsafe
from horsies.codec.ids import ID_GENERATOR
from horsies.model.workflow.plan import NodePlan, OnError, WorkflowPlan
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.workflows.start import start_run

DIAMONDS: tuple[Sequence[int], ...] = ((), (0,), (0,), (0,), (1, 2), (2, 3), (4,), (4, 5), (6, 7), (8,))
"""Ten nodes in six layers, by what each waits for."""
LEFT = "SELECT count(*) FROM horsies_workflows WHERE completed_at IS NULL"
FORGET = "DELETE FROM horsies_workflows"


def plan(dependencies: Sequence[Sequence[int]]) -> WorkflowPlan:
    nodes = [
        NodePlan(
            index=index, node_id=f"n{index}", name="noop", queue_name="default", priority=100, dependencies=tuple(after)
        )
        for index, after in enumerate(dependencies)
    ]
    return WorkflowPlan(name="bench", definition_key="bench", on_error=OnError.FAIL, nodes=tuple(nodes))


def fan(width: int) -> list[Sequence[int]]:
    """One node, so many beside each other, and one that waits for them all."""
    return [(), *([(0,)] * width), range(1, width + 1)]


async def run(url: str, runs: int, dependencies: Sequence[Sequence[int]]) -> float:
    """Nodes a second, from the opening of the queue until the last run has ended."""
    async with connected(url) as connection, Database(ConnectionSpec(url=url, masked_url=url)) as database:
        await connection.execute(CLOSE)
        for _ in range(runs):
            await start_run(database, plan(dependencies), ID_GENERATOR.next_uuid())
        await connection.execute("CHECKPOINT")
        await connection.execute(OPEN)
        began = time.perf_counter()
        await connection.execute(WAKE)
        while await connection.fetchval(LEFT):
            await asyncio.sleep(0.01)
        taken_s = time.perf_counter() - began
        await connection.execute(FORGET)
    return runs * len(dependencies) / taken_s


async def measure(url: str, *, rounds: int, runs: int, width: int) -> None:
    await make_tables(url)
    await refuse_unsafe(url)
    before = load()
    ratios: list[float] = []
    with tempfile.NamedTemporaryFile() as counted:
        lines = Path(counted.name)
        async with worker(url, lines):
            await drain(url, lines, 500)
            for number in range(rounds):
                await clear(url)
                plain = await drain(url, lines, runs * len(DIAMONDS))
                await clear(url)
                nodes = await run(url, runs, DIAMONDS)
                ratios.append(nodes / plain)
                shown = f"plain {plain:,.0f} tasks/s, runs {nodes:,.0f} nodes/s, {nodes / plain:.2f} x"
                fanned = await run(url, 1, fan(width))
                print(f"round {number + 1}: {shown}; 1 to {width} to 1: {fanned:,.0f} nodes/s")
    print(f"workflows: {statistics.median(ratios):.2f} x plain tasks (median of {rounds}), load {before} to {load()}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.workflows", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="one round of little, to see that it works")
    options = parser.parse_args()
    with durable_server() as url:
        if options.small:
            asyncio.run(measure(url, rounds=1, runs=20, width=50))
        else:
            asyncio.run(measure(url, rounds=options.rounds, runs=1_000, width=1_000))


if __name__ == "__main__":
    main()
