"""Retention in a running worker."""

from __future__ import annotations

from tests.support.ledger import Ledger
from tests.support.rows import (
    HOUR,
    count_rows,
    insert_finished_run,
    insert_finished_task,
    insert_old_heartbeat,
    insert_task,
)
from tests.support.workers import worker_in_process

LONG_AGO = 9_000 * HOUR


async def test_heartbeats_are_deleted_before_finished_tasks(database_url: str) -> None:
    await insert_old_heartbeat(database_url, await insert_task(database_url, queue_name="elsewhere"), age=LONG_AGO)
    await insert_finished_task(database_url, age=LONG_AGO)

    async def heartbeats_are_gone() -> bool:
        return await count_rows(database_url, "horsies_heartbeats") == 0

    async with Ledger.open(database_url) as ledger, worker_in_process(database_url):
        await ledger.until(heartbeats_are_gone)
    assert await count_rows(database_url, "horsies_task_attempts") == 1


async def test_finished_rows_are_deleted_and_unfinished_ones_stay(database_url: str) -> None:
    await insert_finished_task(database_url, age=LONG_AGO, status="EXPIRED")
    await insert_finished_run(database_url, age=LONG_AGO, tasks=("FAILED",))
    paused = await insert_finished_run(database_url, age=LONG_AGO, status="PAUSED")
    config = {"retention": {"interval_s": 1}}
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, config=config):

        async def something_was_deleted() -> bool:
            return bool(await ledger.events("retention_finished"))

        await ledger.until(something_was_deleted)
        (event,) = await ledger.events("retention_finished")
        left = await ledger.fetch("SELECT workflow_id FROM horsies_tasks")
    assert event["evidence"] == '{"tasks": 1, "workflows": 1}'
    assert [row["workflow_id"] for row in left] == [paused]
