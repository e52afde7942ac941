"""`python -m bench.recovery`: what it costs to look after tasks that are well, and to find the few that are not.

A pass of the reaper over running tasks of which none is stale, as the time that its statements take; and the whole
command `horsies sweep --dry-run`, from its start to its end, over many live tasks of which few are stale.
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

from bench.machine import Machine, load, look
from bench.server import connected, durable_server, make_tables, refuse_unsafe
from horsies.model.recovery.fleet import SweepOptions, WorkerObserver
from horsies.model.retention import RetentionWindows
from horsies.model.settings import PostgresConfig, RecoveryConfig
from horsies.recovery.retention import clean_heartbeats
from horsies.recovery.sweep import WorkflowHealing, run_pass
from horsies.store.connection import ConnectionSpec, Row
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query
from horsies.store.recovery import RecoveryStore
from horsies_ops.ops import open_ops

A = TypeVar("A")
R = TypeVar("R")

OWNER = UUID("019a8c00-0000-7000-8000-0000000000a7")
WORKERS = """
INSERT INTO horsies_workers (id, hostname, pid, version, processes, state, last_heartbeat_at, recovery_config, health)
VALUES ($1, 'bench', 1, '0', 8, 'running', now(), $2::text::jsonb,
        jsonb_build_object('listening_since', now() - interval '1 day'))
"""
TASKS = """
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueued_at, enqueue_sha, status, claimed_at, started_at,
                           claimed_by_worker_id, claim_token)
SELECT gen_random_uuid(), 'bench', now(), now(), '', 'RUNNING', now() - silence.age, now() - silence.age, $1, 1
  FROM generate_series(1, $2::integer), (SELECT make_interval(secs => $3) AS age) AS silence
RETURNING id
"""
BEATS = """
INSERT INTO horsies_heartbeats (task_id, sender_id, role, claim_token, sent_at)
SELECT id, 'bench', 'runner', 1, now() - make_interval(secs => 30 * number)
  FROM unnest($1::uuid[]) AS id, generate_series(0, 4) AS number
"""
LONG_S, STALE_S = 1_000.0, 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing that was measured, with what is to be reached."""

    name: str
    unit: str
    goal: float
    taken: list[float]

    @property
    def row(self) -> str:
        spread = f"{statistics.median(self.taken):,.2f} ({min(self.taken):,.2f}–{max(self.taken):,.2f})"
        return f"| {self.name} | {self.unit} | {spread} | ≤ {self.goal:g} |"


class Timed(Database):
    """Adds up how long its statements took, as seen from here: never less than the server's own time."""

    spent_s = 0.0

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        return await self._timed(super().fetch(query, *arguments))

    async def fetch_raw(self, query: Query[Any], *arguments: object, timeout_s: float | None = None) -> list[Row]:
        return await self._timed(super().fetch_raw(query, *arguments, timeout_s=timeout_s))

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self._timed(super().execute(query, *arguments))

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        return await self._timed(super().run(work))

    async def _timed(self, answer: Awaitable[A]) -> A:
        began = time.perf_counter()
        try:
            return await answer
        finally:
            self.spent_s += time.perf_counter() - began


async def fill(url: str, *, live: int, stale: int) -> None:
    """Running tasks of one worker that listens: those with five beats each, and those that have been silent."""
    async with connected(url) as connection:
        await connection.execute("TRUNCATE horsies_tasks, horsies_heartbeats, horsies_workers")
        config = json.dumps(RecoveryConfig().model_dump(mode="json"))
        await connection.execute(WORKERS, OWNER, config)
        alive = [row["id"] for row in await connection.fetch(TASKS, OWNER, live, LONG_S)]
        await connection.execute(BEATS, alive)
        if stale:
            await connection.execute(TASKS, OWNER, stale, STALE_S)
        await connection.execute("VACUUM ANALYZE horsies_tasks")
        await connection.execute("VACUUM ANALYZE horsies_heartbeats")
        await connection.execute("CHECKPOINT")


async def passes(url: str, *, running: int, rounds: int) -> list[float]:
    """Milliseconds of statements of each pass, after one that is not counted."""
    await fill(url, live=running, stale=0)
    config = RecoveryConfig()
    windows = RetentionWindows(heartbeats=timedelta(hours=24))
    taken: list[float] = []
    async with Timed(ConnectionSpec(url=url, masked_url=url, force_generic_plan=True)) as database:
        now = (await RecoveryStore(database).fleet()).now
        judge = WorkerObserver(worker_id=OWNER, config=config, listening_since=now - timedelta(days=1))
        for _ in range(rounds + 1):
            database.spent_s = 0.0
            healing = WorkflowHealing.for_worker(database, wake=lambda: None)
            report = await run_pass(database, SweepOptions(), observer=judge, healing=healing, budget_s=30)
            await clean_heartbeats(database, windows, budget_s=15)
            assert (report.tasks, report.failures) == ((), ())
            taken.append(database.spent_s * 1_000)
    return taken[1:]


async def dry_runs(url: str, *, stale: int, rounds: int) -> list[float]:
    """Seconds of each whole command."""
    return [await asyncio.to_thread(_dry_run, url, stale) for _ in range(rounds)]


async def dry_runs_within(url: str, *, stale: int, rounds: int) -> list[float]:
    """Seconds of the same in a process that runs already."""
    taken: list[float] = []
    async with open_ops(PostgresConfig(database_url=url)) as ops:
        for _ in range(rounds + 1):
            began = time.perf_counter()
            report = await ops.stale_candidates(SweepOptions(force=True))
            taken.append(time.perf_counter() - began)
            assert len(report.tasks) == stale
    return taken[1:]


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
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took_s = time.perf_counter() - began
    found = sum(task["decision"] == "fail" for task in json.loads(done.stdout)["tasks"])
    assert found == stale, f"{found} stale tasks were found, not {stale}"
    return took_s


async def measure(url: str, *, small: bool, rounds: int) -> str:
    load_before = load()
    await make_tables(url)
    await refuse_unsafe(url)
    running, live, stale = (100, 1_000, 10) if small else (10_000, 99_000, 1_000)
    took_ms = await passes(url, running=running, rounds=rounds)
    await fill(url, live=live, stale=stale)
    command = f"P12: sweep --dry-run over {live + stale:,} live tasks, {stale:,} stale"
    figures = [
        Figure(name=f"P11: a pass over {running:,} running tasks, none stale", unit="ms", goal=50, taken=took_ms),
        Figure(name=command, unit="s", goal=2, taken=await dry_runs(url, stale=stale, rounds=rounds)),
        Figure(
            name="the same without the start of a process",
            unit="s",
            goal=2,
            taken=await dry_runs_within(url, stale=stale, rounds=rounds),
        ),
    ]
    return _table(figures, await look(url, load_before=load_before), rounds)


def _table(figures: list[Figure], machine: Machine, rounds: int) -> str:
    caption = (
        f"{machine.date}, {rounds} rounds, {machine.processors} processors, PostgreSQL {machine.postgresql}, "
        f"load {machine.load_before} before and {machine.load_after} after."
    )
    heading = "| what | unit | median (min–max) | goal |\n|---|---|---|---|"
    return "\n".join([caption, "", heading, *(figure.row for figure in figures)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="one round of little, to see that it works")
    options = parser.parse_args()
    with durable_server() as url:
        print(asyncio.run(measure(url, small=options.small, rounds=1 if options.small else options.rounds)))


if __name__ == "__main__":
    main()
