"""Tasks that look stale but are swept alone by a sweep."""

from __future__ import annotations

from uuid import uuid4

from horsies.model.recovery.fleet import SweepOptions, WorkerObserver
from horsies.model.settings import RecoveryConfig
from horsies.recovery.sweep import Sweep
from tests.support.rows import (
    SweepDatabase,
    heartbeats,
    insert_heartbeat,
    insert_listening_worker,
    insert_owned_task,
    insert_task,
    seconds_ago,
)


async def test_only_heartbeats_of_the_current_claim_count(sweeps: SweepDatabase) -> None:
    fresh = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    await insert_heartbeat(sweeps.url, fresh, silent_s=10)
    stale = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000, claim_token=2)
    await insert_heartbeat(sweeps.url, stale, silent_s=10, token=1)
    await insert_heartbeat(sweeps.url, stale, silent_s=10, token=2, role="claimer")
    assert [task.task_id for task in (await sweeps.sweep()).tasks] == [stale]


async def test_old_heartbeat_does_not_keep_a_task(sweeps: SweepDatabase) -> None:
    task_id = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=1)
    await insert_heartbeat(sweeps.url, task_id, silent_s=400)
    assert [task.task_id for task in (await sweeps.sweep()).tasks] == [task_id]


async def test_sweep_of_one_worker_leaves_other_tasks_alone(sweeps: SweepDatabase) -> None:
    selected, other = (
        await insert_listening_worker(sweeps.url, state="stopped"),
        await insert_listening_worker(sweeps.url, state="stopped"),
    )
    expected = await insert_owned_task(sweeps.url, "RUNNING", owner=selected, silent_s=1)
    await insert_owned_task(sweeps.url, "RUNNING", owner=other, silent_s=1)
    await insert_task(sweeps.url, good_until=seconds_ago(10))
    assert [task.task_id for task in (await sweeps.sweep(worker_id=selected)).tasks] == [expected]


async def test_task_on_hold_is_reported_and_left_alone(sweeps: SweepDatabase) -> None:
    task_id = await insert_owned_task(
        sweeps.url, "RUNNING", owner=None, silent_s=9_000, recovery_hold_until=seconds_ago(-60)
    )
    report = await sweeps.sweep()
    (swept,) = report.tasks
    assert (report.status, swept.decision, swept.reason, swept.applied) == ("nothing", "hold", "hook_skip", False)
    assert await sweeps.row(task_id, "status") == ("RUNNING",)


async def test_auto_switches_do_not_apply_to_manual_sweeps(sweeps: SweepDatabase) -> None:
    task_id = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    config = RecoveryConfig(auto_fail_stale_running=False)
    observer = WorkerObserver(worker_id=uuid4(), config=config, series=heartbeats(for_s=9_000))
    (swept,) = (await Sweep(sweeps.database, SweepOptions(), observer=observer).run()).tasks
    assert (swept.decision, swept.reason) == ("leave", "disabled")
    await sweeps.sweep()
    assert await sweeps.row(task_id, "status") == ("FAILED",)
