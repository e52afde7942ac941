"""A participant: it fires everything that is due, and what becomes due meanwhile."""

# ruff: noqa: ASYNC110  # database state has to be polled

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from horsies import IntervalSchedule
from horsies.client.schedules import encode_schedules
from horsies.errors import HorsiesError
from horsies.scheduler.firing import BATCH, FIRST_BATCH, fire_all_due
from horsies.scheduler.service import Scheduler, ScheduleSet
from horsies.store.database import Database
from tests.support.schedules import hourly, make_due, outcomes, schedule_app, sync
from tests.support.store import Connection

SLOW_RUNS = """
CREATE FUNCTION slow_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.5); RETURN NEW; END $$;
CREATE TRIGGER slow_run BEFORE INSERT ON horsies_schedule_runs
    FOR EACH ROW WHEN (NEW.schedule_name = 'slow') EXECUTE FUNCTION slow_run();
"""


async def test_slot_that_becomes_due_meanwhile_fires_at_once(
    database: Database, database_url: str, connection: Connection
) -> None:
    now: datetime = await connection.fetchval("SELECT clock_timestamp()")
    slow, quick = now + timedelta(seconds=1), now + timedelta(seconds=1.5)
    app = schedule_app(
        database_url,
        hourly("slow", pattern=IntervalSchedule(days=1, anchor=slow)),
        hourly("quick", pattern=IntervalSchedule(days=1, anchor=quick)),
    )
    definitions = encode_schedules(app, app.get_schedules()).definitions
    schedules = ScheduleSet(owner="shop", definitions=definitions, check_interval_s=3600)
    await connection.execute(SLOW_RUNS)
    stop = asyncio.Event()
    running = asyncio.create_task(Scheduler(database, schedules, uuid4()).run(stop))
    async with asyncio.timeout(30):
        while await outcomes(connection, "quick") != ["fired"]:
            await asyncio.sleep(0.05)
    assert await outcomes(connection, "slow") == ["fired"]
    stop.set()
    await running


async def test_many_due_schedules_fire_once_each(database: Database, database_url: str, connection: Connection) -> None:
    count = BATCH + FIRST_BATCH + 7
    await sync(database, database_url, *(hourly(f"s{n}") for n in range(count)))
    await connection.execute("UPDATE horsies_schedule_state SET next_run_at = next_run_at - interval '1 hour'")
    result = await fire_all_due(database, None, asyncio.Event(), includes_waiting=False)
    assert (result.schedules, result.fired) == (count, count)
    rows = await connection.fetch("SELECT context #>> '{schedule,name}' AS name FROM horsies_tasks")
    assert Counter(row["name"] for row in rows) == dict.fromkeys((f"s{n}" for n in range(count)), 1)
    assert await connection.fetchval("SELECT bool_and(next_run_at > now()) FROM horsies_schedule_state")


async def test_slot_that_fired_is_left_alone(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly("again"), hourly("other"))
    for expected in (2, 1):
        for name in ("again", "other"):
            await make_due(connection, 1, name)
        await connection.execute("DELETE FROM horsies_schedule_runs WHERE schedule_name = 'other'")
        await connection.execute("DELETE FROM horsies_tasks WHERE context #>> '{schedule,name}' = 'other'")
        assert (await fire_all_due(database, None, asyncio.Event())).fired == expected
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 2


async def test_new_schedule_is_found_without_its_notification(
    database: Database, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.scheduler.service.IDLE_CHECK_S", 0.3)
    stop, woken = asyncio.Event(), asyncio.Event()  # there is no listener that sets `woken`
    schedules = ScheduleSet(owner="shop", check_interval_s=0.3)
    running = asyncio.create_task(Scheduler(database, schedules, uuid4(), woken=woken).run(stop))
    while not await connection.fetchval("SELECT EXISTS (SELECT FROM horsies_schedule_participants)"):
        await asyncio.sleep(0.02)
    app = schedule_app(database_url)
    await app.schedules.create_async(hourly("new"))
    await connection.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '1 second'")
    async with asyncio.timeout(30):
        while await outcomes(connection, "new") != ["fired"]:
            await asyncio.sleep(0.05)
    stop.set()
    await running
    await app.close_async()


async def test_participant_that_may_not_sync_leaves(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly())
    app = schedule_app(database_url, hourly(), name="billing")
    participant = Scheduler(database, encode_schedules(app, app.get_schedules()), uuid4())
    with pytest.raises(HorsiesError, match="belongs to app 'shop'"):
        await participant.run(asyncio.Event())
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_participants") == 0
