"""The recovery decision in a task detail, and nearly stale tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import horsies_ops
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
    ("silent_s", "is_listed"), [(260, False), (275, True), (310, False)], ids=["fresh", "nearly stale", "stale"]
)
async def test_nearly_stale_task_is_listed(database_url: str, silent_s: float, *, is_listed: bool) -> None:
    owner = await insert_listening_worker(database_url)
    task_id = await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=silent_s)
    async with horsies_ops.connect(database_url, read_only=True) as ops:
        near = await ops.nearly_stale_tasks(timedelta(seconds=30))
    assert [task.task_id for task in near] == ([task_id] if is_listed else [])


async def test_nearly_stale_tasks_use_the_threshold_of_the_owner(database_url: str) -> None:
    owner = await insert_listening_worker(database_url, running_stale_threshold_ms=600_000)
    await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=310)
    late = await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=590)
    async with horsies_ops.connect(database_url, read_only=True) as ops:
        (near,) = await ops.nearly_stale_tasks(timedelta(seconds=30))
    assert (near.task_id, near.effective_threshold) == (late, timedelta(seconds=600))
