"""The recovery decision in a task detail, and forecasts for silent tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import horsies_ops
from horsies.model.recovery.fleet import SweepOptions
from horsies.store.database import Database
from tests.support.rows import NOW, insert_listening_worker, insert_owned_task, insert_task, insert_worker
from tests.support.store import ops_on

HOUR = timedelta(hours=1)
SILENT = {"claimed_at": NOW - HOUR, "started_at": NOW - HOUR, "claim_token": 1}
RETRY_ON_CRASH = {"retry_policy": {"max_retries": 2, "intervals": [60, 60], "auto_retry_for": ["WORKER_CRASHED"]}}


@pytest.mark.parametrize(
    ("columns", "decision", "reason", "code"),
    [
        ({"status": "CLAIMED", **SILENT}, "requeue", "OWNER_MISSING", None),
        ({"status": "RUNNING", **SILENT}, "fail", "OWNER_MISSING", "WORKER_CRASHED"),
        ({"status": "RUNNING", **SILENT, "started_at": NOW}, "leave", "fresh", None),
        ({"status": "RUNNING", **SILENT, "recovery_hold_until": NOW + HOUR}, "hold", "hook_skip", None),
    ],
)
async def test_owned_task_has_a_recovery_decision(
    database: Database, database_url: str, columns: dict[str, Any], decision: str, reason: str, code: str | None
) -> None:
    await insert_worker(database_url, health={"listening_since": (NOW - 2 * HOUR).instant().isoformat()})
    detail = await ops_on(database).task(await insert_task(database_url, **columns))
    assert detail is not None
    assert detail.recovery_decision is not None
    assert (detail.recovery_decision.decision, detail.recovery_decision.reason, detail.recovery_decision.code) == (
        decision,
        reason,
        code,
    )
    assert detail.recovery_decision.owner_state == "missing"


@pytest.mark.parametrize("status", ["PENDING", "COMPLETED"])
async def test_task_without_owner_has_no_decision(database: Database, database_url: str, status: str) -> None:
    detail = await ops_on(database).task(await insert_task(database_url, status=status, **SILENT))
    assert detail is not None
    assert detail.recovery_decision is None


async def test_decision_is_the_same_as_in_a_sweep(database_url: str) -> None:
    owner = await insert_worker(database_url, state="stopped", last_heartbeat_at=NOW - HOUR)
    owned = {**SILENT, "claimed_by_worker_id": owner, "max_retries": 2, "task_options": RETRY_ON_CRASH}
    task_id = await insert_task(database_url, status="RUNNING", **owned)
    async with horsies_ops.connect(database_url, read_only=True) as ops:
        detail, listed = await ops.task(task_id), await ops.stale_candidates()
    (swept,) = listed.tasks
    assert detail is not None
    assert detail.recovery_decision is not None
    assert (
        (detail.recovery_decision.decision, detail.recovery_decision.reason)
        == (swept.decision, swept.reason)
        == ("retry", "OWNER_STOPPED")
    )


@pytest.mark.parametrize(
    ("worker_s", "silent_s", "is_listed"),
    [(0, 20, False), (0, 50, True), (60, 20, True), (0, 310, False)],
    ids=["healthy", "silent task", "silent worker", "stale"],
)
async def test_silent_task_is_listed_with_its_decision(
    database_url: str, worker_s: float, silent_s: float, *, is_listed: bool
) -> None:
    await insert_listening_worker(database_url)
    owner = await insert_listening_worker(database_url, silent_s=worker_s)
    policy = {"max_retries": 2, "task_options": RETRY_ON_CRASH}
    task_id = await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=silent_s, **policy)
    async with horsies_ops.connect(database_url, read_only=True) as ops:
        silent = await ops.silent_tasks()
    assert [(task.task_id, task.phrase) for task in silent] == (
        [(task_id, "retry, attempt 2 of 3")] if is_listed else []
    )
    assert all(
        abs(task.due_in - timedelta(seconds=300 - silent_s)) < timedelta(seconds=30) for task in silent if task.due_in
    )


async def test_silent_tasks_are_sorted_by_the_time_of_the_decision(database_url: str) -> None:
    await insert_listening_worker(database_url)
    gone = await insert_listening_worker(database_url, silent_s=100)
    tasks = {
        "last": await insert_owned_task(database_url, "RUNNING", owner=gone, silent_s=70),
        "second": await insert_owned_task(database_url, "RUNNING", owner=gone, silent_s=100),
        "first": await insert_owned_task(database_url, "CLAIMED", owner=gone, silent_s=100),
    }
    async with horsies_ops.connect(database_url, read_only=True) as ops:
        silent = await ops.silent_tasks()
    names = {task_id: name for name, task_id in tasks.items()}
    assert [(names[task.task_id], task.decision) for task in silent] == [
        ("first", "requeue"),
        ("second", "fail"),
        ("last", "fail"),
    ]


async def test_forecast_is_what_a_sweep_decides_at_that_time(database_url: str) -> None:
    await insert_listening_worker(database_url)
    gone = await insert_listening_worker(database_url, silent_s=280)
    await insert_owned_task(
        database_url, "RUNNING", owner=gone, silent_s=280, task_options=RETRY_ON_CRASH, max_retries=2
    )
    async with horsies_ops.connect(database_url) as ops:
        (coming,) = await ops.silent_tasks()
        # As if the time until the decision had passed.
        threshold = timedelta(seconds=300) - (coming.due_in or timedelta(0))
        (swept,) = (await ops.sweep(SweepOptions(sweep_threshold=threshold))).tasks
    assert (coming.task_id, coming.decision, coming.phrase) == (swept.task_id, swept.decision, swept.phrase)
