"""What keeps a sweep from touching a task that looks stale."""

from __future__ import annotations

from uuid import uuid4

from horsies.model.recovery.fleet import SweepOptions, WorkerObserver
from horsies.model.settings import RecoveryConfig
from horsies.recovery.sweep import sweep
from tests.support.rows import (
    SweepDatabase,
    insert_heartbeat,
    insert_listening_worker,
    insert_owned_task,
    insert_task,
    seconds_ago,
)


async def test_the_beat_of_the_current_token_keeps_a_task(field: SweepDatabase) -> None:
    kept = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    await insert_heartbeat(field.url, kept, silent_s=10)
    judged = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000, claim_token=2)
    await insert_heartbeat(field.url, judged, silent_s=10, token=1)
    await insert_heartbeat(field.url, judged, silent_s=10, token=2, role="claimer")
    assert [task.task_id for task in (await field.sweep()).tasks] == [judged]


async def test_a_beat_that_is_old_is_no_better_than_none(field: SweepDatabase) -> None:
    task_id = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=1)
    await insert_heartbeat(field.url, task_id, silent_s=400)
    assert [task.task_id for task in (await field.sweep()).tasks] == [task_id]


async def test_a_sweep_limited_to_an_owner_touches_nothing_else(field: SweepDatabase) -> None:
    mine, other = (
        await insert_listening_worker(field.url, state="stopped"),
        await insert_listening_worker(field.url, state="stopped"),
    )
    wanted = await insert_owned_task(field.url, "RUNNING", owner=mine, silent_s=1)
    await insert_owned_task(field.url, "RUNNING", owner=other, silent_s=1)
    await insert_task(field.url, good_until=seconds_ago(10))
    assert [task.task_id for task in (await field.sweep(worker_id=mine)).tasks] == [wanted]


async def test_a_task_that_is_held_is_shown_and_left(field: SweepDatabase) -> None:
    task_id = await insert_owned_task(
        field.url, "RUNNING", owner=None, silent_s=9_000, recovery_hold_until=seconds_ago(-60)
    )
    report = await field.sweep()
    (swept,) = report.tasks
    assert (report.status, swept.decision, swept.reason, swept.applied) == ("nothing", "hold", "hook_skip", False)
    assert await field.row(task_id, "status") == ("RUNNING",)


async def test_a_reaper_whose_switches_are_off_leaves_what_an_operator_settles(field: SweepDatabase) -> None:
    task_id = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    config = RecoveryConfig(auto_fail_stale_running=False)
    judge = WorkerObserver(worker_id=uuid4(), config=config, listening_since=seconds_ago(9_000))
    (left,) = (await sweep(field.database, SweepOptions(), observer=judge)).tasks
    assert (left.decision, left.reason) == ("leave", "disabled")
    await field.sweep()
    assert await field.row(task_id, "status") == ("FAILED",)
