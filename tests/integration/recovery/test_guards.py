"""Decisions are checked again under the row lock: a change made in between wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.sweep import Sweep
from horsies.store.database import Database
from tests.support.rows import CRASH_RETRY, OPERATOR_OBSERVER, insert_listening_worker, insert_owned_task
from tests.support.store import Connection

POLL_S = 0.01
WAITING_SWEEPS = """
SELECT count(*) FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND query LIKE '%recovery.apply_decision%' AND datname = current_database()
"""
HEARTBEAT = (
    "INSERT INTO horsies_heartbeats (task_id, claim_token, role, sender_id) SELECT id, 1, '{}', 'x' FROM horsies_tasks"
)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def _sweep_during_change(
    database: Database, database_url: str, connection: Connection, change: str
) -> list[bool]:
    """Return whether a sweep applied its decisions that it made before `change` was committed."""
    holder = await asyncpg.connect(database_url)
    try:
        async with holder.transaction():
            await holder.execute("SELECT FROM horsies_tasks FOR UPDATE")
            sweeping = asyncio.create_task(Sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER).run())
            async with asyncio.timeout(30):
                while not await connection.fetchval(WAITING_SWEEPS):  # noqa: ASYNC110  # polls pg_stat_activity, which has no notifications
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
        HEARTBEAT.format("runner"),
    ],
    ids=["claimed again", "status changed", "workflow paused", "held by a hook", "heartbeat sent"],
)
async def test_task_changed_in_the_meantime_is_left_alone(
    database: Database, database_url: str, connection: Connection, change: str
) -> None:
    await insert_listening_worker(database_url)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=900, task_options=CRASH_RETRY, max_retries=1)
    assert await _sweep_during_change(database, database_url, connection, change) == [False]
    assert await connection.fetchval("SELECT count(*) FROM horsies_task_attempts") == 0
    assert await connection.fetchval("SELECT count(*) FROM horsies_events") == 0


async def test_heartbeat_of_another_role_does_not_count(
    database: Database, database_url: str, connection: Connection
) -> None:
    await insert_listening_worker(database_url)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=900)
    assert await _sweep_during_change(database, database_url, connection, HEARTBEAT.format("claimer")) == [True]
