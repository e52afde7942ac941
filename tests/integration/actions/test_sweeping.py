"""The sweep as an operator's action."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

import pytest

from horsies import Horsies, Recovery, RecoveryContext, TaskStatus
from horsies.errors import Busy, ConfigurationError
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import AppConfig, PostgresConfig, RecoveryConfig
from horsies.recovery.hooks import HOOK_CONCURRENCY, RecoveryHook
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


async def _a_dead_worker(database_url: str, *, tasks: int) -> UUID:
    gone = await insert_listening_worker(database_url, state="lost", silent_s=3_600)
    for _ in range(tasks):
        await insert_owned_task(database_url, "CLAIMED", owner=gone, silent_s=3_600)
    return gone


async def _on_record(connection: Connection) -> tuple[object, ...]:
    return await only_row(connection, "horsies_audit", "action", "matched", "affected", "skipped")


async def test_the_reason_of_a_sweep_is_on_record(ops: Ops, connection: Connection, database_url: str) -> None:
    gone = await _a_dead_worker(database_url, tasks=1)
    report = await ops.sweep(SweepOptions(worker_id=gone), reason="host-3 is being replaced")
    assert report.recovered_count == 1
    assert await only_row(connection, "horsies_audit", "actor", "action", "affected", "reason") == (
        "ada",
        "sweep",
        1,
        "host-3 is being replaced",
    )


async def test_what_a_sweep_was_asked_to_go_by_is_on_record(ops: Ops, connection: Connection) -> None:
    config = RecoveryConfig(running_stale_threshold_ms=61_000)
    await ops.sweep(SweepOptions(recovery_config=config))
    (asked,) = await only_row(connection, "horsies_audit", "filter")
    assert json.loads(str(asked)) == {"recovery_config": config.model_dump(mode="json")}


async def test_a_sweep_that_is_cut_off_leaves_a_record_of_what_it_had_done(
    ops: Ops, connection: Connection, database_url: str
) -> None:
    await _a_dead_worker(database_url, tasks=1)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=3_600)
    loop, has_begun = asyncio.get_running_loop(), asyncio.Event()

    async def wait_for_runs(context: RecoveryContext) -> None:
        if context.task.status is TaskStatus.RUNNING:
            loop.call_soon_threadsafe(has_begun.set)
            await asyncio.sleep(4)

    sweeping = asyncio.create_task(ops.sweep(app=_app(database_url, wait_for_runs)))
    await has_begun.wait()
    sweeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sweeping
    assert await _on_record(connection) == ("sweep", 1, 1, 0)


async def test_a_sweep_of_which_a_step_failed_is_on_record(ops: Ops, connection: Connection, database_url: str) -> None:
    late = await insert_task(database_url, good_until=seconds_ago(10))
    await connection.execute("ALTER FUNCTION horsies_quiet RENAME TO horsies_gone")
    with pytest.raises(ConfigurationError, match="horsies_quiet"):
        await ops.sweep()
    assert await _on_record(connection) == ("sweep", 1, 1, 0)
    assert await only_row(connection, "horsies_audit", "task_ids") == ([late],)


async def test_a_sweep_that_only_heals_is_on_record(ops: Ops, connection: Connection, database_url: str) -> None:
    await insert_run(database_url)
    report = await ops.sweep()
    assert [each.case for each in report.workflows] == ["3"]
    assert await _on_record(connection) == ("sweep", 1, 1, 0)


async def test_what_the_database_refused_is_on_record_as_skipped(
    ops: Ops, connection: Connection, database_url: str
) -> None:
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=3_600, attempts=2**31 - 1)
    await ops.sweep()
    assert await _on_record(connection) == ("sweep", 1, 0, 1)


async def test_a_task_that_a_hook_wants_left_alone_is_no_deed(
    ops: Ops, connection: Connection, database_url: str
) -> None:
    await _a_dead_worker(database_url, tasks=1)
    await ops.sweep(app=_app(database_url, lambda _: Recovery.skip()))
    assert await _on_record(connection) == ("sweep", 0, 0, 0)


async def test_a_dry_run_leaves_nothing_on_record(ops: Ops, connection: Connection, database_url: str) -> None:
    await _a_dead_worker(database_url, tasks=1)
    assert len((await ops.stale_candidates()).tasks) == 1
    assert await connection.fetchval("SELECT count(*) FROM horsies_audit") == 0


async def test_a_release_settles_what_is_stale_of_one_worker(
    ops: Ops, connection: Connection, database_url: str
) -> None:
    gone, other = await _a_dead_worker(database_url, tasks=2), await _a_dead_worker(database_url, tasks=1)
    held = await insert_owned_task(
        database_url, "RUNNING", owner=gone, silent_s=3_600, recovery_hold_until=seconds_ago(-60)
    )
    report = await ops.release(gone)
    assert (report.action, report.matched, report.affected, report.skipped_count) == ("release", 3, 2, 1)
    assert report.skipped == ((held, "hook_skip"),)
    owners = await connection.fetch("SELECT DISTINCT claimed_by_worker_id FROM horsies_tasks WHERE status = 'CLAIMED'")
    assert [row["claimed_by_worker_id"] for row in owners] == [other]
    assert await only_row(connection, "horsies_audit", "id", "action", "affected") == (report.audit_id, "release", 2)


async def test_a_release_that_finds_nothing_is_on_record_too(ops: Ops, connection: Connection) -> None:
    report = await ops.release(uuid4())
    assert (report.matched, report.affected) == (0, 0)
    assert await only_row(connection, "horsies_audit", "id", "action") == (report.audit_id, "release")


async def test_a_release_while_somebody_sweeps_is_busy(ops: Ops, connection: Connection) -> None:
    async def release() -> None:
        with pytest.raises(Busy):
            await ops.release(uuid4())

    await RecoveryStore(ops.database).with_leader_lock(release)
    assert await connection.fetchval("SELECT count(*) FROM horsies_audit") == 0


async def test_a_sweep_leaves_to_workers_what_is_asked_for(ops: Ops, connection: Connection, database_url: str) -> None:
    run = await insert_run(database_url)
    links = {"is_workflow_task": True, "workflow_id": run, "workflow_task_index": 0}
    ended = await insert_task(database_url, status="FAILED", terminal_at=seconds_ago(1), **links)
    await insert_node(database_url, run, 0, task_id=ended, status="RUNNING")
    await insert(database_url, "horsies_workflow_outbox", task_id=ended, workflow_id=run, task_index=0)
    assert (await ops.stale_candidates()).workflows == (await ops.sweep()).workflows == ()
    assert await only_row(connection, "horsies_workflows", "status") == ("RUNNING",)


async def test_a_sweep_that_is_stopped_half_way_keeps_what_is_done_and_says_so(
    ops: Ops, connection: Connection, database_url: str
) -> None:
    stop = asyncio.Event()

    def stopping(_: RecoveryContext) -> None:
        stop.set()

    gone = await insert_listening_worker(database_url, state="lost", silent_s=3_600)
    for _ in range(HOOK_CONCURRENCY + 5):
        await insert_owned_task(database_url, "RUNNING", owner=gone, silent_s=3_600)
    report = await ops.sweep(app=_app(database_url, stopping), stop=stop)
    assert (report.recovered_count, report.was_stopped) == (HOOK_CONCURRENCY, True)
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING'") == 5
    assert await _on_record(connection) == ("sweep", HOOK_CONCURRENCY, HOOK_CONCURRENCY, 0)


async def test_a_dry_run_that_is_stopped_half_way_lists_what_it_has_seen(ops: Ops, database_url: str) -> None:
    stop = asyncio.Event()

    def stopping(_: RecoveryContext) -> None:
        stop.set()

    gone = await insert_listening_worker(database_url, state="lost", silent_s=3_600)
    for _ in range(HOOK_CONCURRENCY + 5):
        await insert_owned_task(database_url, "RUNNING", owner=gone, silent_s=3_600)
    report = await ops.sweep(SweepOptions(dry_run=True), app=_app(database_url, stopping), stop=stop)
    assert (len(report.tasks), report.was_stopped) == (HOOK_CONCURRENCY, True)
