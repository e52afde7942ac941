"""Workers written past the engine, for tests of what is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from tests.support.task_rows import insert


async def insert_worker(database_url: str, **columns: Any) -> UUID:
    """Store a run of a worker with these columns; the others are as in one that has just beaten."""
    worker_id = uuid4()
    row = {"id": worker_id, "hostname": "host", "pid": 7, "version": "1", "queues": ["default"], "processes": 4}
    await insert(database_url, "horsies_workers", **row | {"state": "running"} | columns)
    return worker_id


async def insert_snapshot(database_url: str, worker_id: UUID, **columns: Any) -> None:
    row: dict[str, Any] = {
        "worker_id": worker_id,
        "worker_started_at": datetime.now(UTC),
        "hostname": "host",
        "pid": 7,
        "processes": 4,
        "max_claim_batch": 0,
        "max_claim_per_worker": 0,
        "queues": ["default"],
        "tasks_running": 1,
        "tasks_claimed": 0,
    }
    await insert(database_url, "horsies_worker_states", **row | columns)
