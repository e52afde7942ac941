"""Which workers count as alive, and how busy they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from horsies.store.database import Database
from horsies_ops.reads.queues import list_queues
from horsies_ops.reads.workers import count_live_workers, list_active_workers
from tests.support.rows import insert, insert_snapshot, insert_task, insert_worker


async def test_workers_that_stopped_or_fell_silent_are_not_live(database: Database, database_url: str) -> None:
    now = datetime.now(UTC)
    for state, at in (("running", now), ("running", now - timedelta(hours=1)), ("stopped", now), ("lost", now)):
        worker = {"id": uuid4(), "hostname": "h", "pid": 1, "version": "1", "processes": 1}
        await insert(database_url, "horsies_workers", **worker, state=state, last_heartbeat_at=at)
    assert await count_live_workers(database, threshold=timedelta(minutes=5)) == 1


async def test_a_child_that_runs_several_tasks_is_busy_once(database: Database, database_url: str) -> None:
    worker_id = await insert_worker(database_url)
    for pid in (11, 11, 12):
        await insert_task(database_url, status="RUNNING", claimed_by_worker_id=worker_id, worker_pid=pid)
    await insert_task(database_url, status="CLAIMED", claimed_by_worker_id=worker_id)
    (worker,) = await list_active_workers(database, timedelta(minutes=5))
    assert (worker.children_busy, worker.tasks_running) == (2, 3)


@pytest.mark.parametrize("health", [{"listening_since": "noon", "last_pass_at": 7}, ["none at all"]])
async def test_a_worker_whose_health_makes_no_sense_hides_no_other(
    database: Database, database_url: str, health: object
) -> None:
    since = datetime(2026, 3, 1, tzinfo=UTC)
    await insert_worker(database_url, hostname="odd", health=health)
    await insert_worker(database_url, hostname="well", health={"listening_since": since.isoformat()})
    rows = await list_active_workers(database, timedelta(minutes=5))
    assert {row.hostname: row.listening_since for row in rows} == {"odd": None, "well": since}


async def test_a_queue_whose_priority_makes_no_sense_hides_no_other(database: Database, database_url: str) -> None:
    worker_id = await insert_worker(database_url, queues=["odd", "well"])
    await insert_snapshot(database_url, worker_id, queue_priorities={"odd": "first of all", "well": 7})
    assert {row.name: row.priority for row in await list_queues(database)} == {"odd": 100, "well": 7}
