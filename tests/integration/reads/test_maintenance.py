"""Automatic maintenance of workers, and what a cleanup would delete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import horsies_ops
from horsies.model.retention import RetentionCategory
from tests.support.rows import count_rows, insert, insert_finished_task, insert_listening_worker, insert_worker

NOW = datetime.now(UTC)


async def test_no_maintenance_without_live_worker(database_url: str) -> None:
    await insert_listening_worker(database_url, silent_s=86_400)
    async with horsies_ops.connect(database_url, read_only=True) as ops:
        status = await ops.maintenance_status()
    assert (status.config, status.last_pass_at, status.last_retention_at) == (None, None, None)


async def test_last_pass_of_any_worker_and_last_retention_are_reported(database_url: str) -> None:
    await insert_listening_worker(database_url, running_stale_threshold_ms=600_000)
    earlier, later = NOW - timedelta(seconds=40), NOW - timedelta(seconds=10)
    for at in (earlier, later):
        last = await insert_worker(database_url, health={"last_pass_at": at.isoformat()})
    await insert(database_url, "horsies_events", kind="retention_finished", at=earlier)
    async with horsies_ops.connect(database_url, read_only=True) as ops:
        status = await ops.maintenance_status()
    assert (status.last_pass_at, status.last_pass_by, status.last_retention_at) == (later, last, earlier)
    assert status.config is not None
    assert status.config.running_stale_threshold_ms == 600_000


async def test_cleanup_candidates_writes_nothing(database_url: str) -> None:
    await insert_finished_task(database_url, age=timedelta(days=31))
    async with horsies_ops.connect(database_url) as ops:
        found = await ops.cleanup_candidates()
    rows = {portion.category: portion.rows for portion in found.categories}
    assert rows[RetentionCategory.TASKS] == 1
    assert await count_rows(database_url, "horsies_tasks") == 1
    assert await count_rows(database_url, "horsies_audit") == 0
