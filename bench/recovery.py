"""`python -m bench.recovery`: the cost of recovery passes.

Measures the statements of a reaper pass over running tasks without stale ones, and the whole command
`horsies sweep --dry-run` over many unfinished tasks with a few stale ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from bench.machine import Machine, describe_machine, load
from bench.server import connect, create_tables, durable_server, require_durable
from horsies.model.recovery.fleet import HeartbeatSeries, SweepOptions, WorkerObserver
from horsies.model.retention import RetentionWindows
from horsies.model.settings import PostgresConfig, RecoveryConfig
from horsies.recovery.retention import clean_heartbeats
from horsies.recovery.sweep import Sweep, WorkflowHealing
from horsies.store.connection import ConnectionSpec, Row
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query
from horsies.store.recovery import RecoveryStore
from horsies_ops.ops import open_ops

A = TypeVar("A")
R = TypeVar("R")

OWNER = UUID("019a8c00-0000-7000-8000-0000000000a7")
INSERT_WORKER = """
INSERT INTO horsies_workers (id, hostname, pid, version, processes, state, last_heartbeat_at, recovery_config, health)
VALUES ($1, 'bench', 1, '0', 8, 'running', now(), $2::text::jsonb,
        jsonb_build_object('listening_since', now() - interval '1 day'))
"""
INSERT_TASKS = """
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueued_at, enqueue_sha, status, claimed_at, started_at,
                           claimed_by_worker_id, claim_token)
SELECT gen_random_uuid(), 'bench', now(), now(), '', 'RUNNING', now() - silence.age, now() - silence.age, $1, 1
  FROM generate_series(1, $2::integer), (SELECT make_interval(secs => $3) AS age) AS silence
RETURNING id
"""
INSERT_HEARTBEATS = """
INSERT INTO horsies_heartbeats (task_id, sender_id, role, claim_token, sent_at)
SELECT id, 'bench', 'runner', 1, now() - make_interval(secs => 30 * number)
  FROM unnest($1::uuid[]) AS id, generate_series(0, 4) AS number
"""
RUNNING_FOR_S, STALE_FOR_S = 1_000.0, 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement and its goal."""

    name: str
    unit: str
    goal: float
    values: list[float]

    @property
    def row(self) -> str:
        spread = f"{statistics.median(self.values):,.2f} ({min(self.values):,.2f}–{max(self.values):,.2f})"
        return f"| {self.name} | {self.unit} | {spread} | ≤ {self.goal:g} |"


class TimedDatabase(Database):
    """Adds up the duration of its statements as seen by the client."""

    statements_s = 0.0

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        return await self._timed(super().fetch(query, *arguments))

    async def fetch_raw(self, query: Query[Any], *arguments: object, timeout_s: float | None = None) -> list[Row]:
        return await self._timed(super().fetch_raw(query, *arguments, timeout_s=timeout_s))

    async def execute(self, query: Query[Any], *arguments: object) -> None:
        await self._timed(super().execute(query, *arguments))

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        return await self._timed(super().run(work))

    async def _timed(self, statement: Awaitable[A]) -> A:
        started = time.perf_counter()
        try:
            return await statement
        finally:
            self.statements_s += time.perf_counter() - started


async def fill(url: str, *, live: int, stale: int) -> None:
    """Insert running tasks of one live worker: `live` ones with five heartbeats each, and `stale` ones without."""
    async with connect(url) as connection:
        await connection.execute("TRUNCATE horsies_tasks, horsies_heartbeats, horsies_workers")
        config = json.dumps(RecoveryConfig().model_dump(mode="json"))
        await connection.execute(INSERT_WORKER, OWNER, config)
        task_ids = [row["id"] for row in await connection.fetch(INSERT_TASKS, OWNER, live, RUNNING_FOR_S)]
        await connection.execute(INSERT_HEARTBEATS, task_ids)
        if stale:
            await connection.execute(INSERT_TASKS, OWNER, stale, STALE_FOR_S)
        await connection.execute("VACUUM ANALYZE horsies_tasks")
        await connection.execute("VACUUM ANALYZE horsies_heartbeats")
        await connection.execute("CHECKPOINT")


async def passes(url: str, *, running: int, rounds: int) -> list[float]:
    """Return the milliseconds of statements in each pass, after a warm-up pass."""
    await fill(url, live=running, stale=0)
    config = RecoveryConfig()
    windows = RetentionWindows(heartbeats=timedelta(hours=24))
    durations_ms: list[float] = []
    async with TimedDatabase(ConnectionSpec(url=url, masked_url=url, force_generic_plan=True)) as database:
        now = (await RecoveryStore(database).fleet()).now
        series = HeartbeatSeries(since=now - timedelta(days=1), last_heartbeat_at=now)
        observer = WorkerObserver(worker_id=OWNER, config=config, series=series)
        for _ in range(rounds + 1):
            database.statements_s = 0.0
            healing = WorkflowHealing.for_worker(database, wake=lambda: None)
            report = await Sweep(database, SweepOptions(), observer=observer, healing=healing, budget_s=30).run_pass()
            await clean_heartbeats(database, windows, budget_s=15)
            assert (report.tasks, report.failures) == ((), ())
            durations_ms.append(database.statements_s * 1_000)
    return durations_ms[1:]


async def dry_runs(url: str, *, stale: int, rounds: int) -> list[float]:
    """Return the seconds of each whole command."""
    return [await asyncio.to_thread(_dry_run, url, stale) for _ in range(rounds)]


async def dry_runs_in_process(url: str, *, stale: int, rounds: int) -> list[float]:
    """Return the seconds of each dry run without starting a process."""
    durations_s: list[float] = []
    async with open_ops(PostgresConfig(database_url=url)) as ops:
        for _ in range(rounds + 1):
            started = time.perf_counter()
            report = await ops.stale_candidates(SweepOptions(force=True))
            durations_s.append(time.perf_counter() - started)
            assert len(report.tasks) == stale
    return durations_s[1:]


def _dry_run(url: str, stale: int) -> float:
    command = [
        sys.executable,
        "-m",
        "horsies_ops.cli",
        "sweep",
        "--dry-run",
        "--force",
        "--json",
        "--database-url",
        url,
    ]
    started = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    elapsed_s = time.perf_counter() - started
    found = sum(task["decision"] == "fail" for task in json.loads(result.stdout)["tasks"])
    assert found == stale, f"found {found} stale tasks instead of {stale}"
    return elapsed_s


async def measure(url: str, *, small: bool, rounds: int) -> str:
    load_before = load()
    await create_tables(url)
    await require_durable(url)
    running, live, stale = (100, 1_000, 10) if small else (10_000, 99_000, 1_000)
    passes_ms = await passes(url, running=running, rounds=rounds)
    await fill(url, live=live, stale=stale)
    command = f"P12: sweep --dry-run over {live + stale:,} unfinished tasks, {stale:,} stale"
    figures = [
        Figure(name=f"P11: a pass over {running:,} running tasks, none stale", unit="ms", goal=50, values=passes_ms),
        Figure(name=command, unit="s", goal=2, values=await dry_runs(url, stale=stale, rounds=rounds)),
        Figure(
            name="P12 without starting a process",
            unit="s",
            goal=2,
            values=await dry_runs_in_process(url, stale=stale, rounds=rounds),
        ),
    ]
    return _table(figures, await describe_machine(url, load_before=load_before), rounds)


def _table(figures: list[Figure], machine: Machine, rounds: int) -> str:
    caption = (
        f"{machine.date}, {rounds} rounds, {machine.processors} processors, PostgreSQL {machine.postgresql}, "
        f"load {machine.load_before} before and {machine.load_after} after."
    )
    heading = "| measurement | unit | median (min–max) | goal |\n|---|---|---|---|"
    return "\n".join([caption, "", heading, *(figure.row for figure in figures)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="a single small round, to test the benchmark itself")
    options = parser.parse_args()
    with durable_server() as url:
        print(asyncio.run(measure(url, small=options.small, rounds=1 if options.small else options.rounds)))


if __name__ == "__main__":
    main()
