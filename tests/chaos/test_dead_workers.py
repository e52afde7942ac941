"""F1, F2: other workers recover the tasks of a killed worker within the promised time.

The loop of kills is short; `--hypothesis-profile=chaos` makes it ten times as long.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import settings

from horsies import Horsies, RecoveryConfig
from horsies.model.recovery.fleet import OperatorObserver, SweepOptions
from horsies.recovery.report import SweptTask
from horsies.recovery.sweep import Sweep
from horsies.store.database import Database
from tests.support.ledger import Ledger
from tests.support.ledger_app import QUICK_RECOVERY, ledger_app
from tests.support.recovery_times import BOUND_S, record_recovery_times, record_times
from tests.support.workers import (
    WorkerProcess,
    disturb_fork_server,
    send,
    with_fork_server_faults,
    worker_in_process,
    worker_process,
)

RUNNING = 8 if settings().max_examples >= 1000 else 4
"""Eight in `make chaos`."""
WAITING = 2
PREFETCHING = {"prefetch_buffer": WAITING, "claim_lease_ms": 60_000}
SLACK_S = 1.5
"""Allowance for a busy machine."""

LATENESS = """
SELECT extract(epoch FROM a.finished_at - greatest(a.started_at, b.sent_at, $2::text::timestamptz))::float AS seconds
  FROM horsies_task_attempts AS a
  LEFT JOIN LATERAL (SELECT max(sent_at) AS sent_at FROM horsies_heartbeats AS b
                      WHERE b.task_id = a.task_id AND b.claim_token = a.claim_token) AS b ON true
 WHERE a.task_id = ANY($1::text[]::uuid[]) AND a.error_code = 'WORKER_CRASHED'
"""
DECISIONS = """
SELECT task_id::text, evidence->>'decision' AS decision FROM horsies_events WHERE kind = 'task_recovered'
"""
LISTENING = "SELECT health->>'listening_since' AS since FROM horsies_workers WHERE id = $1::text::uuid"


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Horsies]:
    app = ledger_app(database_url, **PREFETCHING)
    yield app
    await app.close_async()


async def are_claimed(ledger: Ledger, task_ids: list[str]) -> bool:
    rows = await ledger.rows(*task_ids)
    return {row["status"] for row in rows.values()} == {"CLAIMED"}


@with_fork_server_faults
async def test_tasks_of_a_killed_worker_are_recovered_in_time(
    ledger: Ledger, app: Horsies, database_url: str, tmp_path: Path, fork_server_fault: signal.Signals | None
) -> None:
    gate = str(tmp_path / "go")
    options = ("--processes", str(RUNNING))
    async with worker_process(database_url, *options, config=PREFETCHING) as killed_worker:
        once = [await send(app, "wait_for", gate) for _ in range(RUNNING // 2)]
        again = [await send(app, "wait_for_again", gate) for _ in range(RUNNING // 2)]
        await ledger.until_started(*once, *again)
        claimed = [await send(app, "wait_for", gate) for _ in range(WAITING)]
        await ledger.until(lambda: are_claimed(ledger, claimed))
        async with worker_in_process(database_url, config=PREFETCHING, processes=2) as survivor:
            killed_worker.children()
            disturb_fork_server(killed_worker.pid, fork_server_fault)
            killed_at, began = await ledger.now(), time.monotonic()
            killed_worker.signal(signal.SIGKILL)
            await killed_worker.until_children_are_gone(within_s=2)
            record_times("F1", "children of a dead worker gone", time.monotonic() - began, bound_s=2)
            (tmp_path / "go").touch()
            rows = await ledger.until_terminal(*once, *again, *claimed, within_s=20)
            (listening,) = await ledger.fetch(LISTENING, survivor.worker_id)
            late = await ledger.fetch(LATENESS, [*once, *again], listening["since"])
            await record_recovery_times(ledger, "F1", pid=killed_worker.pid, since=killed_at)
            assert await ledger.violations([*once, *again, *claimed]) == []
    facts = {id_: (row["status"], row["error_code"], row["retry_count"], row["attempts"]) for id_, row in rows.items()}
    assert {facts[task_id] for task_id in once} == {("FAILED", "WORKER_CRASHED", 0, 1)}
    assert {facts[task_id] for task_id in again} == {("COMPLETED", None, 1, 2)}
    assert {facts[task_id] for task_id in claimed} == {("COMPLETED", None, 0, 1)}
    assert len(late) == RUNNING
    assert max(row["seconds"] for row in late) < BOUND_S + SLACK_S


async def test_recovered_task_has_a_reason_until_it_finishes(
    ledger: Ledger, app: Horsies, database_url: str, tmp_path: Path
) -> None:
    gate = str(tmp_path / "go")
    async with worker_process(database_url, "--processes", "1", config=PREFETCHING) as killed_worker:
        task_id = await send(app, "wait_for_again", gate)
        await ledger.until_started(task_id)
        async with worker_in_process(database_url, config=PREFETCHING, processes=1):
            killed_worker.signal(signal.SIGKILL)

            async def is_recovered() -> bool:
                reason: str | None = (await ledger.row(task_id))["failed_reason"]
                return reason is not None and reason.startswith("recovered after worker interruption: ")

            await ledger.until(is_recovered)
            assert [event["task_id"] for event in await ledger.events("task_recovered")] == [task_id]
            (tmp_path / "go").touch()
            row = (await ledger.until_terminal(task_id))[task_id]
            assert await ledger.violations([task_id]) == []
    assert (row["status"], row["failed_reason"]) == ("COMPLETED", None)


async def test_reaper_decides_like_a_dry_run(
    ledger: Ledger, app: Horsies, database: Database, database_url: str, tmp_path: Path
) -> None:
    gate = str(tmp_path / "go")
    async with worker_process(database_url, "--processes", "4") as killed_worker:
        sent = [await send(app, name, gate) for name in ("wait_for", "wait_for_again") * 2]
        await ledger.until_started(*sent)
        killed_worker.signal(signal.SIGKILL)
        await killed_worker.until_gone()
    options = SweepOptions(dry_run=True, recovery_config=RecoveryConfig.unchecked(**QUICK_RECOVERY))

    async def dry_run() -> Sequence[SweptTask]:
        return (await Sweep(database, options, observer=OperatorObserver(local_config=RecoveryConfig())).run()).tasks

    async def are_all_stale() -> bool:
        # The worker's last heartbeat may be later than those of its tasks.
        return [task.owner_state for task in await dry_run()] == ["lost"] * len(sent)

    await ledger.until(are_all_stale)
    tasks = await dry_run()
    assert all(task.heartbeat_age for task in tasks)
    expected = {str(task.task_id): task.decision for task in tasks}
    (tmp_path / "go").touch()
    async with worker_in_process(database_url, processes=1):
        await ledger.until_terminal(*sent, within_s=20)
        assert await ledger.violations(sent) == []
    assert {event["task_id"]: event["decision"] for event in await ledger.fetch(DECISIONS)} == expected
    assert sorted(expected.values()) == ["fail", "fail", "retry", "retry"]


KILLS = 1 + settings().max_examples // 100
PROCESSES = 2
TASKS = 2 * settings().max_examples


@pytest.mark.timeout(600)
async def test_repeated_worker_kills_lose_and_duplicate_nothing(
    ledger: Ledger, app: Horsies, database_url: str
) -> None:
    rng = random.Random(2)  # noqa: S311  # a fixed seed: the same kills each time
    options, config = ("--processes", str(PROCESSES)), {**PREFETCHING, "recovery": {"max_crashes": 10}}

    async def start(stack: AsyncExitStack) -> WorkerProcess:
        return await stack.enter_async_context(worker_process(database_url, *options, config=config))

    killed: dict[int, datetime] = {}
    async with AsyncExitStack() as stack:
        workers = [await start(stack) for _ in range(2)]
        sent = [await send(app, "work_again", 0.05) for _ in range(TASKS)]
        for kill in range(KILLS):
            enough = (kill + 1) * TASKS // (KILLS + 2)

            async def have_begun(enough: int = enough) -> bool:
                return len(await ledger.starts()) >= enough

            await ledger.until(have_begun, within_s=30)
            killed_worker = workers.pop(rng.randrange(len(workers)))
            killed_worker.children()
            killed[killed_worker.pid] = await ledger.now()
            killed_worker.signal(signal.SIGKILL)
            await killed_worker.until_children_are_gone(within_s=2)
            workers.append(await start(stack))
        rows = await ledger.until_terminal(*sent, within_s=60)
        for pid, killed_at in killed.items():
            await record_recovery_times(ledger, "F2", pid=pid, since=killed_at)
        assert {row["status"] for row in rows.values()} == {"COMPLETED"}
        # In each process one task runs, and the outcome of the one before may not be stored yet.
        max_in_flight = KILLS * PROCESSES * 2
        assert sum(row["crash_count"] for row in rows.values()) <= max_in_flight, (
            "only tasks in flight on killed workers crash"
        )
        assert await ledger.violations(sent, unbegun=KILLS * PROCESSES) == []
