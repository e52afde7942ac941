"""Definitions: new, changed, superseded, retired, of two apps, and made at run time."""

from __future__ import annotations

import asyncio
import json
from datetime import time, timedelta
from uuid import uuid4

import pytest

from horsies import CronSchedule, DailySchedule, ErrorCode, HorsiesError, TaskSchedule
from horsies.model.schedule.decide import SchedulePolicy
from horsies.scheduler.firing import fire_due
from horsies.scheduler.sync import retire_undefined
from horsies.store.database import Database
from horsies.store.schedules import ScheduleStore
from tests.support.schedules import hourly, make_due, outcomes, schedule_app, state_of, sync
from tests.support.store import Connection

DAILY = CronSchedule.parse("@daily")


async def test_new_schedule_starts_after_now(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly(), hourly("off", enabled=False))
    state = await state_of(connection)
    now = await connection.fetchval("SELECT clock_timestamp()")
    assert now < state["next_run_at"] <= now + timedelta(hours=1)
    assert (state["owner"], state["source"], state["revision"]) == ("shop", "code", 1)
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_state") == 1
    assert (await fire_due(database)).fired == 0


async def test_changed_call_keeps_the_next_slot(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly())
    slot = await make_due(connection, 1)
    await sync(database, database_url, hourly(kwargs={"a": 9}))
    state = await state_of(connection)
    assert (state["next_run_at"], state["revision"]) == (slot, 2)


async def test_changed_pattern_starts_after_now(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly())
    await make_due(connection, 3)
    await sync(database, database_url, hourly(pattern=DailySchedule(time=time(3, 0))))
    now = await connection.fetchval("SELECT clock_timestamp()")
    assert (await state_of(connection))["next_run_at"] > now


async def test_superseded_definition_returns_only_by_force(
    database: Database, database_url: str, connection: Connection
) -> None:
    old, new = hourly(kwargs={"a": 1}), hourly(kwargs={"a": 2})
    await sync(database, database_url, old)
    await sync(database, database_url, new)
    for _ in range(3):
        assert (await sync(database, database_url, old)).superseded == ("hourly",)
        assert (await sync(database, database_url, new)).changes == ()
    assert (await state_of(connection))["revision"] == 2
    await sync(database, database_url, old, force=True)
    assert (await sync(database, database_url, new)).superseded == ("hourly",)


async def test_name_of_another_app_is_refused(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly())
    with pytest.raises(HorsiesError, match="'billing' already belongs to app 'shop'") as caught:
        await sync(database, database_url, hourly("other"), hourly(), name="billing")
    assert caught.value.code is ErrorCode.CONFIG_INVALID_SCHEDULE
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_state") == 1


async def test_schedule_retires_when_no_live_process_defines_it(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly(), hourly("gone"))
    await sync(database, database_url, hourly("other"), name="billing")
    store, old, new = ScheduleStore(database), uuid4(), uuid4()
    await store.join(old, "shop", ["hourly", "gone"], hostname="a", pid=1)
    await store.join(new, "shop", ["hourly"], hostname="b", pid=2)
    assert await retire_undefined(database, "shop") == []
    await store.leave(old)
    assert await retire_undefined(database, "shop") == ["gone"]
    await make_due(connection, 2, "gone")
    assert (await fire_due(database)).fired == 0
    await sync(database, database_url, hourly("gone"))
    assert (await state_of(connection, "gone"))["state"] == "active"
    assert await outcomes(connection, "gone") == []


async def test_pause_survives_a_deploy(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly())
    await ScheduleStore(database).pause("hourly", by="ann", reason=None)
    await sync(database, database_url, hourly(kwargs={"a": 3}, pattern=CronSchedule.parse("*/5 * * * *")))
    assert (await state_of(connection))["paused_by"] == "ann"


async def test_newer_zone_data_recomputes_future_slots(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly())
    before = (await state_of(connection))["next_run_at"]
    await connection.execute(
        "UPDATE horsies_schedule_state SET tz_version = '2000a', next_run_at = next_run_at + interval '9 days'"
    )
    await sync(database, database_url, hourly())
    assert (await state_of(connection))["next_run_at"] - before <= timedelta(hours=1)


# At run time


async def test_run_time_schedule_belongs_to_the_transaction(
    database_url: str, database: Database, connection: Connection
) -> None:
    app = schedule_app(database_url)
    transaction = connection.transaction()
    await transaction.start()
    await app.schedules.create_async(hourly(), connection=connection)
    assert await app.schedules.get_async("hourly") is None
    await transaction.rollback()
    assert await app.schedules.get_async("hourly") is None
    async with connection.transaction():
        await app.schedules.create_async(hourly(), connection=connection)
    await make_due(connection, 1)
    assert (await fire_due(database)).fired == 1
    await app.close_async()


async def test_run_time_schedules_change_and_end(database_url: str) -> None:
    app = schedule_app(database_url)
    created = await app.schedules.create_async(hourly())
    assert (created.source, created.target, created.revision) == ("dynamic", "add", 1)
    # Stored without its defaults, shown with them.
    assert created.definition == json.loads(SchedulePolicy.of(hourly()).to_json())
    with pytest.raises(HorsiesError, match="exists"):
        await app.schedules.create_async(hourly())
    updated = await app.schedules.update_async(hourly(kwargs={"a": 4}))
    assert (updated.revision, updated.next_run_at) == (2, created.next_run_at)
    assert await app.schedules.delete_async("hourly")
    assert not await app.schedules.delete_async("hourly")
    with pytest.raises(HorsiesError, match="no schedule 'hourly'"):
        await app.schedules.update_async(hourly())
    await app.close_async()


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda: hourly(timezone="Mars/Olympus"), "IANA time zone"),
        (lambda: hourly(task_name="nope"), "no task named 'nope'"),
        (lambda: hourly(queue_name="nope"), "nope"),
        (lambda: hourly(pattern="0 0 31 2 *"), "match some date"),
        (lambda: hourly(kwargs={"c": 1}), "invalid arguments"),
        (lambda: hourly(kwargs={"a": "x"}), "invalid arguments"),
        (lambda: TaskSchedule(name="x", pattern=DAILY), "either task_name or workflow"),
        (lambda: TaskSchedule(name="x", workflow="nope", pattern=DAILY), "no workflow definition"),
    ],
)
async def test_invalid_schedule_stores_nothing(
    database_url: str, connection: Connection, schedule: object, message: str
) -> None:
    app = schedule_app(database_url)
    with pytest.raises(HorsiesError, match=message):
        await app.schedules.create_async(schedule())  # type: ignore[operator]
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_state") == 0
    await app.close_async()


async def test_code_and_run_time_may_not_share_a_name(database_url: str, database: Database) -> None:
    app = schedule_app(database_url)
    await app.schedules.create_async(hourly())
    with pytest.raises(HorsiesError, match="taken by a schedule made at run time"):
        await sync(database, database_url, hourly())
    with pytest.raises(HorsiesError, match="used twice"):
        await sync(database, database_url, hourly("a"), hourly("a", kwargs={"a": 2}))
    await app.close_async()


async def test_run_time_schedule_of_another_app_is_not_deleted(database_url: str, connection: Connection) -> None:
    shop, billing = schedule_app(database_url), schedule_app(database_url, name="billing")
    await shop.schedules.create_async(hourly())
    with pytest.raises(HorsiesError, match="'hourly' belongs to app 'shop', not to 'billing'"):
        await billing.schedules.delete_async("hourly")
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_state") == 1
    await asyncio.gather(shop.close_async(), billing.close_async())


async def test_deletion_waits_for_a_change_of_the_owner(database_url: str, connection: Connection) -> None:
    app = schedule_app(database_url)
    await app.schedules.create_async(hourly())
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("UPDATE horsies_schedule_state SET owner = 'billing'")
    deleting = asyncio.create_task(app.schedules.delete_async("hourly"))
    await until_waiting_for_a_lock(connection)
    await transaction.commit()
    with pytest.raises(HorsiesError, match="'hourly' belongs to app 'billing', not to 'shop'"):
        await deleting
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_state") == 1
    await app.close_async()


async def until_waiting_for_a_lock(connection: Connection) -> None:
    async with asyncio.timeout(30):
        while not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):  # noqa: ASYNC110  # it has to be polled
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("other", ["shop", "billing"])
async def test_concurrent_creation_stores_one(database_url: str, connection: Connection, other: str) -> None:
    first, second = schedule_app(database_url), schedule_app(database_url, name=other)
    transaction = connection.transaction()
    await transaction.start()
    await first.schedules.create_async(hourly(), connection=connection)
    creating = asyncio.create_task(second.schedules.create_async(hourly(kwargs={"a": 5})))
    await until_waiting_for_a_lock(connection)
    await transaction.commit()
    with pytest.raises(HorsiesError, match="schedule 'hourly' exists"):
        await creating
    row = await connection.fetchrow("SELECT owner, revision FROM horsies_schedule_state")
    assert row is not None
    assert tuple(row) == ("shop", 1)
    await asyncio.gather(first.close_async(), second.close_async())
