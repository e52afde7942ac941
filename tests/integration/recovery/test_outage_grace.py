"""Outage grace: no recovery before a worker has been connected for a full threshold."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg

from horsies.model.recovery.decision import RecoveryContext
from horsies.model.recovery.fleet import SweepOptions, WorkerObserver
from horsies.model.settings import RecoveryConfig
from horsies.recovery.hook_registry import RecoveryHooks
from horsies.recovery.hooks import HookCaller
from horsies.recovery.report import SweepStatus
from horsies.recovery.sweep import Sweep
from horsies.store.database import Database
from tests.support.rows import (
    OPERATOR_OBSERVER,
    SweepDatabase,
    heartbeats,
    insert_listening_worker,
    insert_owned_task,
    seconds_ago,
)

LONG_WORKER_THRESHOLD: dict[str, Any] = {"running_stale_threshold_ms": 60_000, "worker_stale_threshold_ms": 300_000}


async def test_sweep_in_outage_grace_reports_status_and_end(database: Database, database_url: str) -> None:
    await insert_listening_worker(database_url, listens_s=10)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    report = await Sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER).run()
    assert (report.status, report.tasks[0].reason) == (SweepStatus.OUTAGE_GRACE, "outage_grace")
    assert report.tasks[0].held_until is not None
    forced = await Sweep(database, SweepOptions(force=True), observer=OPERATOR_OBSERVER).run()
    assert (forced.status, forced.recovered_count) == (SweepStatus.DONE, 1)


async def test_tasks_of_a_possibly_suspended_worker_are_held_back(database: Database, database_url: str) -> None:
    owner = await insert_listening_worker(database_url, silent_s=90, **LONG_WORKER_THRESHOLD)
    task_id = await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=90)
    report = await Sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER).run()
    assert (report.status, [task.task_id for task in report.tasks]) == (SweepStatus.OUTAGE_GRACE, [task_id])
    forced = await Sweep(database, SweepOptions(force=True), observer=OPERATOR_OBSERVER).run()
    assert forced.recovered_count == 1


async def test_only_worker_past_its_threshold_counts_as_dead(database: Database, database_url: str) -> None:
    # Last seen long before the database server started; a worker seen shortly before might still reconnect.
    owner = await insert_listening_worker(database_url, silent_s=86_000, **LONG_WORKER_THRESHOLD)
    await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=86_000)
    assert (await Sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER).run()).recovered_count == 1


async def test_new_worker_does_not_stop_recovery_by_others(sweeps: SweepDatabase) -> None:
    await insert_listening_worker(sweeps.url, listens_s=1)
    await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    assert (await sweeps.sweep()).recovered_count == 1


async def test_outage_grace_beside_a_stopped_owner_is_a_warning(database: Database, database_url: str) -> None:
    await insert_listening_worker(database_url, listens_s=10)
    stopped = await insert_listening_worker(database_url, state="stopped")
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    await insert_owned_task(database_url, "RUNNING", owner=stopped, silent_s=1)
    report = await Sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER).run()
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, 1)
    assert report.warnings == ("stale tasks held back by outage grace: 1 (no worker connected for a full threshold)",)


async def test_outage_grace_beside_a_hold_is_a_warning(database: Database, database_url: str) -> None:
    await insert_listening_worker(database_url, listens_s=10)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    await insert_owned_task(
        database_url, "RUNNING", owner=None, silent_s=9_000, recovery_hold_until=seconds_ago(-3_600)
    )
    report = await Sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER).run()
    assert report.status == SweepStatus.NOTHING
    assert report.warnings == ("stale tasks held back by outage grace: 1 (no worker connected for a full threshold)",)


async def test_heartbeats_during_a_long_sweep_count(sweeps: SweepDatabase) -> None:
    """A hook may take longer than the interval between two heartbeats of the worker that the sweep relies on."""
    await sweeps.connection.execute("DELETE FROM horsies_workers")
    listener = await insert_listening_worker(sweeps.url, worker_heartbeat_interval_ms=1_000)
    await insert_owned_task(sweeps.url, "CLAIMED", owner=None, silent_s=9_000)
    running = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    overdue = "SELECT last_heartbeat_at < clock_timestamp() - interval '1.6 seconds' FROM horsies_workers"

    async def outlast_a_heartbeat(context: RecoveryContext) -> None:
        connection = await asyncpg.connect(sweeps.url)
        while context.task.status == "CLAIMED" and not await connection.fetchval(overdue):  # noqa: ASYNC110  # time has to pass
            await asyncio.sleep(0.05)
        await connection.execute("UPDATE horsies_workers SET last_heartbeat_at = now() WHERE id = $1", listener)
        await connection.close()

    hooks = RecoveryHooks()
    hooks.recovery.add(outlast_a_heartbeat)
    await Sweep(sweeps.database, SweepOptions(), observer=OPERATOR_OBSERVER, hooks=HookCaller(hooks)).run()
    assert await sweeps.row(running, "status") == ("FAILED",)


async def test_reaper_in_outage_grace_reads_no_tasks(sweeps: SweepDatabase) -> None:
    await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    observer = WorkerObserver(worker_id=uuid4(), config=RecoveryConfig(), series=heartbeats(for_s=1))
    assert (await Sweep(sweeps.database, SweepOptions(), observer=observer).run()).tasks == ()
