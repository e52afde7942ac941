"""Why a PENDING task waits, read from the database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from horsies.model.waiting import WaitCause
from horsies.store.database import Database
from tests.support.rows import NOW, insert, insert_snapshot, insert_task, insert_worker
from tests.support.store import ops_on

MINUTE = timedelta(minutes=1)


async def _causes(database: Database, task_id: UUID) -> list[str]:
    detail = await ops_on(database).task(task_id)
    assert detail is not None
    return [reason.cause.value for reason in detail.wait_reasons]


@pytest.mark.parametrize(
    ("columns", "causes"),
    [
        ({}, [WaitCause.NEXT]),
        ({"enqueued_at": NOW + MINUTE}, [WaitCause.DELAYED]),
        ({"good_until": NOW - MINUTE}, [WaitCause.EXPIRED]),
        ({"queue_name": "etl"}, [WaitCause.UNSERVED]),
        ({"status": "COMPLETED"}, []),
    ],
)
async def test_task_itself_gives_the_reason(
    database: Database, database_url: str, columns: dict[str, Any], causes: list[WaitCause]
) -> None:
    await insert_worker(database_url, processes=1)
    assert await _causes(database, await insert_task(database_url, **columns)) == causes


async def test_paused_queue_and_silent_worker_are_reasons(database: Database, database_url: str) -> None:
    await insert(database_url, "horsies_queues", queue_name="default", paused_at=NOW, paused_by="ana")
    await insert_worker(database_url, last_heartbeat_at=NOW - 2 * MINUTE)
    detail = await ops_on(database).task(await insert_task(database_url))
    assert detail is not None
    assert [reason.text for reason in detail.wait_reasons] == [
        "queue default is paused by ana",
        "no worker serves queue default; 1 that did is silent",
    ]


async def test_tasks_ahead_are_counted_in_claim_order(database: Database, database_url: str) -> None:
    await insert_worker(database_url)
    due = NOW - MINUTE
    for columns in ({"priority": 1}, {"enqueued_at": due - MINUTE}, {"priority": 90}, {"queue_name": "etl"}):
        await insert_task(database_url, **{"enqueued_at": due, "priority": 50} | columns)
    detail = await ops_on(database).task(await insert_task(database_url, enqueued_at=due, priority=50))
    assert detail is not None
    assert [reason.text for reason in detail.wait_reasons] == ["2 tasks of its queue are ahead of it"]


async def test_limits_and_busy_slots_are_reasons(database: Database, database_url: str) -> None:
    worker = await insert_worker(database_url, processes=1)
    limits = {"queue_max_concurrency": {"default": 1}, "cluster_wide_cap": 1}
    await insert_snapshot(database_url, worker, **limits)
    running = {"status": "RUNNING", "claimed_at": NOW, "started_at": NOW, "claim_token": 1}
    await insert_task(database_url, task_name="resize", claimed_by_worker_id=worker, **running)
    detail = await ops_on(database).task(await insert_task(database_url))
    assert detail is not None
    assert [reason.text for reason in detail.wait_reasons] == [
        "queue default has reached its limit: 1 of 1 tasks in flight",
        "all workers together have reached their limit: 1 of 1 tasks in flight",
        "the only slot is busy with resize",
    ]
