"""What was judged is looked at again under the lock: whatever came in between wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.sweep import sweep
from horsies.store.database import Database
from tests.support.rows import CRASH_RETRY, OPERATOR_OBSERVER, insert_listening_worker, insert_owned_task
from tests.support.store import Connection

POLL_S = 0.01
WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND query LIKE '%recovery.apply_decision%' AND datname = current_database()
"""
BEAT = (
    "INSERT INTO horsies_heartbeats (task_id, claim_token, role, sender_id) SELECT id, 1, '{}', 'x' FROM horsies_tasks"
)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def _swept_during(database: Database, database_url: str, connection: Connection, change: str) -> list[bool]:
    """Whether each task was settled by a sweep that judged it before `change` was committed."""
    holder = await asyncpg.connect(database_url)
    try:
        async with holder.transaction():
            await holder.execute("SELECT FROM horsies_tasks FOR UPDATE")
            sweeping = asyncio.create_task(sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER))
            async with asyncio.timeout(30):
                while not await connection.fetchval(WAITING):  # noqa: ASYNC110  # the server sets no events
                    await asyncio.sleep(POLL_S)
            await holder.execute(change)
    finally:
        await holder.close()
    return [task.applied for task in (await sweeping).tasks]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE horsies_tasks SET claim_token = 2",
        "UPDATE horsies_tasks SET status = 'PENDING', started_at = NULL",
        "UPDATE horsies_tasks SET no_restart = 'paused'",
        "UPDATE horsies_tasks SET recovery_hold_until = now() + interval '1 minute'",
        BEAT.format("runner"),
    ],
    ids=["claimed anew", "moved", "its workflow was paused", "held by a hook", "beaten for"],
)
async def test_a_task_is_left_alone_that_was_meanwhile(
    database: Database, database_url: str, connection: Connection, change: str
) -> None:
    await insert_listening_worker(database_url)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=900, task_options=CRASH_RETRY, max_retries=1)
    assert await _swept_during(database, database_url, connection, change) == [False]
    assert await connection.fetchval("SELECT count(*) FROM horsies_task_attempts") == 0
    assert await connection.fetchval("SELECT count(*) FROM horsies_events") == 0


async def test_a_beat_in_another_role_says_nothing_about_a_run(
    database: Database, database_url: str, connection: Connection
) -> None:
    await insert_listening_worker(database_url)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=900)
    assert await _swept_during(database, database_url, connection, BEAT.format("claimer")) == [True]
