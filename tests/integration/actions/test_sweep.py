"""Sweep and release as operator actions, and their audit entries."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

import pytest

from horsies import Horsies, Recovery, RecoveryContext, TaskStatus
from horsies.errors import Busy, ConfigurationError
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import AppConfig, PostgresConfig, RecoveryConfig
from horsies.recovery.hook_registry import RecoveryHook
from horsies.recovery.hooks import HOOK_CONCURRENCY
from horsies.store.recovery import RecoveryStore
from horsies_ops.ops import Ops
from tests.support.rows import (
    insert,
    insert_listening_worker,
    insert_node,
    insert_owned_task,
    insert_run,
    insert_task,
    seconds_ago,
)
from tests.support.store import Connection, only_row


def _app(database_url: str, hook: RecoveryHook) -> Horsies:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url)))
    app.on_recovery(hook)
    return app


async def _insert_dead_worker(database_url: str, *, tasks: int) -> UUID:
    lost_worker = await insert_listening_worker(database_url, state="lost", silent_s=3_600)
    for _ in range(tasks):
        await insert_owned_task(database_url, "CLAIMED", owner=lost_worker, silent_s=3_600)
    return lost_worker


async def _audited(connection: Connection) -> tuple[object, ...]:
    return await only_row(connection, "horsies_audit", "action", "matched", "affected", "skipped")


async def test_reason_of_a_sweep_is_audited(ops: Ops, connection: Connection, database_url: str) -> None:
    lost_worker = await _insert_dead_worker(database_url, tasks=1)
    report = await ops.sweep(SweepOptions(worker_id=lost_worker), reason="host-3 is being replaced")
    assert report.recovered_count == 1
    assert await only_row(connection, "horsies_audit", "actor", "action", "affected", "reason") == (
        "ada",
        "sweep",
        1,
        "host-3 is being replaced",
    )


async def test_options_of_a_sweep_are_audited(ops: Ops, connection: Connection) -> None:
    config = RecoveryConfig(running_stale_threshold_ms=61_000)
    await ops.sweep(SweepOptions(recovery_config=config))
    (options,) = await only_row(connection, "horsies_audit", "filter")
    assert json.loads(str(options)) == {"recovery_config": config.model_dump(mode="json")}


async def test_cancelled_sweep_audits_what_it_recovered(ops: Ops, connection: Connection, database_url: str) -> None:
    await _insert_dead_worker(database_url, tasks=1)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=3_600)
    loop, has_started = asyncio.get_running_loop(), asyncio.Event()

    async def wait_for_runs(context: RecoveryContext) -> None:
        if context.task.status is TaskStatus.RUNNING:
            loop.call_soon_threadsafe(has_started.set)
            await asyncio.sleep(4)

    sweeping = asyncio.create_task(ops.sweep(app=_app(database_url, wait_for_runs)))
    await has_started.wait()
    sweeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sweeping
    assert await _audited(connection) == ("sweep", 1, 1, 0)


async def test_sweep_with_a_failed_step_is_audited(ops: Ops, connection: Connection, database_url: str) -> None:
    late = await insert_task(database_url, good_until=seconds_ago(10))
    await connection.execute("ALTER FUNCTION horsies_quiet RENAME TO horsies_gone")
    with pytest.raises(ConfigurationError, match="horsies_quiet"):
        await ops.sweep()
    assert await _audited(connection) == ("sweep", 1, 1, 0)
    assert await only_row(connection, "horsies_audit", "task_ids") == ([late],)


async def test_sweep_that_only_heals_workflows_is_audited(ops: Ops, connection: Connection, database_url: str) -> None:
    await insert_run(database_url)
    report = await ops.sweep()
    assert [healed.case for healed in report.workflows] == ["3"]
    assert await _audited(connection) == ("sweep", 1, 1, 0)


async def test_recovery_rejected_by_the_database_is_audited_as_skipped(
    ops: Ops, connection: Connection, database_url: str
) -> None:
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=3_600, attempts=2**31 - 1)
    await ops.sweep()
    assert await _audited(connection) == ("sweep", 1, 0, 1)


async def test_task_skipped_by_a_hook_is_not_counted(ops: Ops, connection: Connection, database_url: str) -> None:
    await _insert_dead_worker(database_url, tasks=1)
    await ops.sweep(app=_app(database_url, lambda _: Recovery.skip()))
    assert await _audited(connection) == ("sweep", 0, 0, 0)


async def test_dry_run_is_not_audited(ops: Ops, connection: Connection, database_url: str) -> None:
    await _insert_dead_worker(database_url, tasks=1)
    assert len((await ops.stale_candidates()).tasks) == 1
    assert await connection.fetchval("SELECT count(*) FROM horsies_audit") == 0


async def test_release_recovers_stale_tasks_of_one_worker(ops: Ops, connection: Connection, database_url: str) -> None:
    lost_worker, other = (
        await _insert_dead_worker(database_url, tasks=2),
        await _insert_dead_worker(database_url, tasks=1),
    )
    held = await insert_owned_task(
        database_url, "RUNNING", owner=lost_worker, silent_s=3_600, recovery_hold_until=seconds_ago(-60)
    )
    report = await ops.release(lost_worker)
    assert (report.action, report.matched, report.affected, report.skipped_count) == ("release", 3, 2, 1)
    assert report.skipped == ((held, "hook_skip"),)
    owners = await connection.fetch("SELECT DISTINCT claimed_by_worker_id FROM horsies_tasks WHERE status = 'CLAIMED'")
    assert [row["claimed_by_worker_id"] for row in owners] == [other]
    assert await only_row(connection, "horsies_audit", "id", "action", "affected") == (report.audit_id, "release", 2)


async def test_release_without_stale_tasks_is_audited(ops: Ops, connection: Connection) -> None:
    report = await ops.release(uuid4())
    assert (report.matched, report.affected) == (0, 0)
    assert await only_row(connection, "horsies_audit", "id", "action") == (report.audit_id, "release")


async def test_release_during_another_sweep_raises_busy(ops: Ops, connection: Connection) -> None:
    async def release() -> None:
        with pytest.raises(Busy):
            await ops.release(uuid4())

    await RecoveryStore(ops.session.database).with_leader_lock(release)
    assert await connection.fetchval("SELECT count(*) FROM horsies_audit") == 0


async def test_sweep_leaves_runs_with_outbox_entries_to_workers(
    ops: Ops, connection: Connection, database_url: str
) -> None:
    run = await insert_run(database_url)
    links = {"is_workflow_task": True, "workflow_id": run, "workflow_task_index": 0}
    finished = await insert_task(database_url, status="FAILED", terminal_at=seconds_ago(1), **links)
    await insert_node(database_url, run, 0, task_id=finished, status="RUNNING")
    await insert(database_url, "horsies_workflow_outbox", task_id=finished, workflow_id=run, task_index=0)
    assert (await ops.stale_candidates()).workflows == (await ops.sweep()).workflows == ()
    assert await only_row(connection, "horsies_workflows", "status") == ("RUNNING",)


async def test_stopped_sweep_keeps_recovered_tasks_and_reports_it(
    ops: Ops, connection: Connection, database_url: str
) -> None:
    stop = asyncio.Event()

    def stop_sweep(_: RecoveryContext) -> None:
        stop.set()

    lost_worker = await insert_listening_worker(database_url, state="lost", silent_s=3_600)
    for _ in range(HOOK_CONCURRENCY + 5):
        await insert_owned_task(database_url, "RUNNING", owner=lost_worker, silent_s=3_600)
    report = await ops.sweep(app=_app(database_url, stop_sweep), stop=stop)
    assert (report.recovered_count, report.was_stopped) == (HOOK_CONCURRENCY, True)
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING'") == 5
    assert await _audited(connection) == ("sweep", HOOK_CONCURRENCY, HOOK_CONCURRENCY, 0)


async def test_stopped_dry_run_lists_the_tasks_seen_so_far(ops: Ops, database_url: str) -> None:
    stop = asyncio.Event()

    def stop_sweep(_: RecoveryContext) -> None:
        stop.set()

    lost_worker = await insert_listening_worker(database_url, state="lost", silent_s=3_600)
    for _ in range(HOOK_CONCURRENCY + 5):
        await insert_owned_task(database_url, "RUNNING", owner=lost_worker, silent_s=3_600)
    report = await ops.sweep(SweepOptions(dry_run=True), app=_app(database_url, stop_sweep), stop=stop)
    assert (len(report.tasks), report.was_stopped) == (HOOK_CONCURRENCY, True)
