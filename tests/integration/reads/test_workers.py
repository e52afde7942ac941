"""Live workers, busy children and malformed worker rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from horsies.store.database import Database
from tests.support.rows import insert, insert_snapshot, insert_task, insert_worker
from tests.support.store import ops_on


async def test_stopped_lost_and_silent_workers_are_not_live(database: Database, database_url: str) -> None:
    now = datetime.now(UTC)
    assert not (await ops_on(database).maintenance_status()).has_live_worker
    for state, at in (("running", now - timedelta(hours=1)), ("stopped", now), ("lost", now)):
        worker = {"id": uuid4(), "hostname": "h", "pid": 1, "version": "1", "processes": 1}
        await insert(database_url, "horsies_workers", **worker, state=state, last_heartbeat_at=at)
    assert not (await ops_on(database).maintenance_status()).has_live_worker
    await insert_worker(database_url)
    assert (await ops_on(database).maintenance_status()).has_live_worker


async def test_child_with_several_tasks_counts_as_one_busy_child(database: Database, database_url: str) -> None:
    worker_id = await insert_worker(database_url)
    for pid in (11, 11, 12):
        await insert_task(database_url, status="RUNNING", claimed_by_worker_id=worker_id, worker_pid=pid)
    await insert_task(database_url, status="CLAIMED", claimed_by_worker_id=worker_id)
    (worker,) = await ops_on(database).list_active_workers(timedelta(minutes=5))
    assert (worker.children_busy, worker.tasks_running) == (2, 3)


@pytest.mark.parametrize("health", [{"listening_since": "noon", "last_pass_at": 7}, ["none at all"]])
async def test_worker_with_malformed_health_does_not_hide_others(
    database: Database, database_url: str, health: object
) -> None:
    since = datetime(2026, 3, 1, tzinfo=UTC)
    await insert_worker(database_url, hostname="malformed", health=health)
    await insert_worker(database_url, hostname="valid", health={"listening_since": since.isoformat()})
    rows = await ops_on(database).list_active_workers(timedelta(minutes=5))
    assert {row.hostname: row.listening_since for row in rows} == {"malformed": None, "valid": since}


async def test_queue_with_malformed_priority_does_not_hide_others(database: Database, database_url: str) -> None:
    worker_id = await insert_worker(database_url, queues=["malformed", "valid"])
    await insert_snapshot(database_url, worker_id, queue_priorities={"malformed": "first", "valid": 7})
    assert {row.name: row.priority for row in await ops_on(database).list_queues()} == {"malformed": 100, "valid": 7}
