"""`python -m tests.support.soak --minutes 30`: mixed load with kills on a durable server, checked against the ledger.

Sends no-op tasks in bulk, short and delayed functions, coroutines, tasks that fail and are retried, and workflows,
while workers and single children are killed or stopped at random. Exits with 1 if a task is lost, runs twice against
its policy, or nothing finishes for `STALL_S` seconds although tasks are due.
"""

# ruff: noqa: S311, T201  # random load and faults; a program that prints

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.machine import load
from bench.server import create_tables, durable_server
from horsies import Horsies
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import WorkerProcess, send, worker_process
from tests.support.workflow_app import LOCATOR, register_workflow_tasks
from tests.support.workflows import diamond

WORKERS = 3
PROCESSES = 2
# Thresholds that a busy machine keeps, so that every recovery in the ledger was caused by a kill.
RECOVERY: dict[str, Any] = {
    "runner_heartbeat_interval_ms": 1_000,
    "claimer_heartbeat_interval_ms": 1_000,
    "claimed_stale_threshold_ms": 8_000,
    "running_stale_threshold_ms": 8_000,
    "worker_stale_threshold_ms": 8_000,
    "check_interval_ms": 1_000,
}
CONFIG: dict[str, Any] = {"recovery": RECOVERY}
NOOPS = 100
"""No-op tasks per tick, sent in bulk; they write no ledger rows."""
TICK_S = 0.5
MAX_HELD = PROCESSES * 256
STALL_S = 30.0
DRAIN_S = 120.0
GONE_S = 10.0
"""Time for the children of a killed worker to exit on a busy machine."""
PRINT_INTERVAL_S = 10.0
MAX_WAITING = 5_000
"""Sending pauses above this many unfinished tasks, so that a slow machine is not flooded."""

PROGRESS = """
SELECT count(*) FILTER (WHERE terminal_at IS NOT NULL) AS finished,
       count(*) FILTER (WHERE terminal_at IS NULL) AS unfinished,
       count(*) FILTER (WHERE status = 'PENDING' AND enqueued_at <= now()
                              AND (next_retry_at IS NULL OR next_retry_at <= now())) AS due
  FROM horsies_tasks
"""
OPEN_RUNS = "SELECT count(*) AS runs FROM horsies_workflows WHERE completed_at IS NULL"
BY_OUTCOME = """
SELECT status || coalesce(' ' || error_code, '') AS outcome, count(*) AS tasks FROM horsies_tasks GROUP BY 1 ORDER BY 1
"""
ALL_IDS = "SELECT id::text, task_name FROM horsies_tasks"


class StallError(Exception):
    """Due tasks were not processed."""


@dataclass(slots=True)
class Soak:
    """One run of the soak: its load, its faults and its watch."""

    url: str
    ledger: Ledger
    app: Horsies
    workers: AsyncExitStack
    fleet: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    faults: Counter[str] = field(default_factory=Counter[str])
    sent: set[str] = field(default_factory=set[str])
    unfinished: int = 0

    async def start_worker(self) -> None:
        options = ("--processes", str(PROCESSES), "--grace-s", "5")
        worker = worker_process(self.url, *options, config=CONFIG, locator=LOCATOR, in_new_interpreter=True)
        self.fleet.append(await self.workers.enter_async_context(worker))

    async def send_load(self, until: float) -> None:
        while time.monotonic() < until:
            if self.unfinished < MAX_WAITING:
                await self._send_some()
            await asyncio.sleep(TICK_S)

    async def _send_some(self) -> None:
        app = self.app
        noops = (await app.tasks["plain"].send_many_async([()] * NOOPS)).unwrap()
        self.sent |= {handle.task_id for handle in noops}
        for _ in range(5):
            self.sent.add(await send(app, "work_again", 0.05))
            self.sent.add(await send(app, "nap_again", random.uniform(0.1, 1.0)))
        delayed = (await app.tasks["work_again"].schedule_async(random.randint(1, 5))).unwrap()
        self.sent.add(delayed.task_id)
        self.sent.add(await send(app, "fail_times", 2))
        self.sent.add(await send(app, "return_error", "LISTED"))
        (await diamond(app, seconds=0.02).start_async()).unwrap()

    async def inject_faults(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(random.uniform(3.0, 12.0))
            worker = random.choice(self.fleet)
            fault = random.choice(("kill worker", "stop worker", "kill child", "kill child"))
            children = worker.children()
            if fault == "kill child":
                if children:
                    os.kill(random.choice(children), signal.SIGKILL)
            else:
                worker.signal(signal.SIGKILL if fault == "kill worker" else signal.SIGTERM)
                await worker.until_gone(within_s=60)
                await worker.until_children_are_gone(within_s=GONE_S)
                worker.seen_children.clear()  # their pids may be reused
                self.fleet.remove(worker)
                await self.start_worker()
            self.faults[fault] += 1

    async def watch(self, until: float) -> None:
        """Print progress; raise if nothing finishes although tasks are due."""
        finished_before, moved_at, printed_at = -1, time.monotonic(), 0.0
        while (now := time.monotonic()) < until:
            (progress,) = await self.ledger.fetch(PROGRESS)
            self.unfinished = progress["unfinished"]
            if progress["finished"] > finished_before or not progress["due"]:
                finished_before, moved_at = progress["finished"], now
            elif now - moved_at > STALL_S:
                raise StallError(f"nothing finished for {STALL_S:g} s: {progress}")
            if now - printed_at >= PRINT_INTERVAL_S:
                printed_at, left_min = now, (until - now) / 60
                print(f"{left_min:5.1f} min left  {progress}  faults {dict(self.faults)}  load {load()}", flush=True)
            await asyncio.sleep(1)

    async def drain(self) -> None:
        """Wait until every task and run has ended."""

        async def has_ended() -> bool:
            (progress,), (open_runs,) = await self.ledger.fetch(PROGRESS), await self.ledger.fetch(OPEN_RUNS)
            return not progress["unfinished"] and not open_runs["runs"]

        await self.ledger.until(has_ended, within_s=DRAIN_S)

    async def violations(self) -> list[str]:
        tasks = await self.ledger.fetch(ALL_IDS)
        stored = {task["id"] for task in tasks}
        unrecorded = {task["id"] for task in tasks if task["task_name"] == "plain"}
        # A killed worker loses the tasks that its children had not begun: at most what it may hold.
        unbegun = self.faults["kill worker"] * MAX_HELD
        return [
            *(f"C1 {task_id} is gone" for task_id in self.sent - stored),
            *await self.ledger.violations(sorted(stored), unrecorded=unrecorded, unbegun=unbegun),
        ]


async def soak(url: str, seconds: float) -> int:
    await create_tables(url)
    app = ledger_app(url, **CONFIG)
    register_workflow_tasks(app)
    async with Ledger.open(url) as ledger:
        async with AsyncExitStack() as workers:
            run = Soak(url=url, ledger=ledger, app=app, workers=workers)
            for _ in range(WORKERS):
                await run.start_worker()
            until = time.monotonic() + seconds
            async with asyncio.TaskGroup() as group:
                for service in (run.send_load, run.inject_faults, run.watch):
                    group.create_task(service(until))
            await run.drain()
            for row in await ledger.fetch(BY_OUTCOME):
                print(f"{row['tasks']:>9,}  {row['outcome']}")
            violations = await run.violations()
            print(f"faults {dict(run.faults)}; {len(violations)} violations", *violations[:50], sep="\n", flush=True)
            for worker in run.fleet:
                worker.seen_children &= set(worker.children())  # earlier pids may belong to other processes by now
        await app.close_async()
    return 1 if violations else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="of the load and the faults; printed if not given")
    options = parser.parse_args()
    seed = random.randrange(10_000) if options.seed is None else options.seed
    random.seed(seed)
    print(f"seed {seed}, {options.minutes:g} minutes, load {load()}")
    with durable_server() as url:
        sys.exit(asyncio.run(soak(url, 60 * options.minutes)))


if __name__ == "__main__":
    main()
