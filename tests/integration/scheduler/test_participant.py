"""A participant fires everything that is due."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

from horsies import IntervalSchedule
from horsies.scheduler.firing import BATCH, FIRST_BATCH, fire_all_due
from horsies.store.database import Database
from tests.support.schedules import minutely, sync
from tests.support.store import Connection


async def test_many_due_schedules_fire_once_each(database: Database, database_url: str, connection: Connection) -> None:
    count = BATCH + FIRST_BATCH + 7
    hourly = IntervalSchedule(hours=1, anchor=datetime(2026, 1, 1, tzinfo=UTC))
    await sync(database, database_url, *(minutely(f"s{n}", pattern=hourly) for n in range(count)))
    await connection.execute("UPDATE horsies_schedule_state SET next_run_at = next_run_at - interval '1 hour'")
    result = await fire_all_due(database, None, asyncio.Event(), has_waiting=False)
    assert (result.schedules, result.fired) == (count, count)
    rows = await connection.fetch("SELECT context #>> '{schedule,name}' AS name FROM horsies_tasks")
    assert Counter(row["name"] for row in rows) == dict.fromkeys((f"s{n}" for n in range(count)), 1)
    assert await connection.fetchval("SELECT bool_and(next_run_at > now()) FROM horsies_schedule_state")


async def test_slot_that_fired_is_left_alone(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, minutely("again"), minutely("other"))
    for expected in (2, 1):
        await connection.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('minute', now())")
        await connection.execute("DELETE FROM horsies_schedule_runs WHERE schedule_name = 'other'")
        await connection.execute("DELETE FROM horsies_tasks WHERE context #>> '{schedule,name}' = 'other'")
        assert (await fire_all_due(database, None, asyncio.Event())).fired == expected
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 2
