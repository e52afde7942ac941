"""Due slots: missed ones, overlap, good_until, jitter, failures and refusals."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from horsies import TaskError, TaskResult, TaskSchedule, current_task
from horsies.model.schedule.decide import MAX_SLOTS, SchedulePolicy, slot_id
from horsies.model.task import ScheduledSlot
from horsies.scheduler.firing import fire_due
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query
from horsies.store.schedules import SCHEDULES, ScheduleStore
from horsies.testing import drain_async
from tests.support.schedules import (
    finish,
    fired_ids,
    hourly,
    make_due,
    outcomes,
    schedule_app,
    state_of,
    sync,
    sync_app,
)
from tests.support.store import Connection


async def test_due_slot_sends_the_stored_call(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly(kwargs={"a": 5}, priority=7, good_for="next"))
    slot = await make_due(connection, 1)
    assert (await fire_due(database)).fired == 1
    task = await connection.fetchrow("SELECT *, kwargs::text AS call FROM horsies_tasks")
    assert task is not None
    assert (task["id"], task["sent_at"], task["priority"]) == (slot_id("hourly", slot), slot, 7)
    assert json.loads(task["call"]) == {"a": 5}
    assert task["good_until"] == slot + timedelta(hours=1)
    state = await state_of(connection)
    assert (state["next_run_at"], state["last_slot_at"]) == (slot + timedelta(hours=1), slot)
    assert (state["run_count"], state["last_task_id"]) == (1, task["id"])


async def test_running_task_knows_its_slot(database: Database, database_url: str, connection: Connection) -> None:
    app = schedule_app(database_url)
    seen: list[ScheduledSlot | None] = []

    @app.task("probe")
    def probe() -> TaskResult[None, TaskError]:
        context = current_task()
        seen.append(context and context.schedule)
        return TaskResult(ok=None)

    app.add_schedules([hourly(task_name="probe", missed="all")])
    await sync_app(database, app)
    first = await make_due(connection, 2)
    await fire_due(database)
    await drain_async(app)
    await app.close_async()
    second = first + timedelta(hours=1)
    found = sorted((slot for slot in seen if slot), key=lambda slot: slot.slot_at)
    assert [(slot.slot_at, slot.previous_slot_at) for slot in found] == [(first, None), (second, first)]
    assert found[0].name == "hourly"
    assert found[0].lateness > timedelta(hours=1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["skipped", "skipped", "skipped", "fired"]),
        ({"missed": "all"}, ["fired"] * 4),
        ({"catch_up_missed": True}, ["fired"] * 4),
        ({"missed": "all", "missed_within": 5_400}, ["skipped", "skipped", "fired", "fired"]),
        ({"missed": "none", "grace": 5_400}, ["skipped", "skipped", "fired", "fired"]),
        ({"missed": "all", "overlap": "skip"}, ["fired", "skipped", "skipped", "skipped"]),
        ({"missed": "all", "overlap": "queue_one"}, ["fired", "waiting", "skipped", "skipped"]),
        ({"missed": "all", "overlap": "replace"}, ["skipped", "skipped", "skipped", "fired"]),
    ],
)
async def test_missed_slots_follow_the_policy(
    database: Database, database_url: str, connection: Connection, options: dict[str, Any], expected: list[str]
) -> None:
    await sync(database, database_url, hourly(**options))
    first = await make_due(connection, 4)
    # Keep clear of the limits of 90 minutes, whatever the minute of the slot is.
    if {"missed_within", "grace"} & options.keys():
        limit = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp() - $1)::float8", first)
        key = "missed_within" if "missed_within" in options else "grace"
        await sync(database, database_url, hourly(**options | {key: limit - 5_400}))
    await fire_due(database)
    assert await outcomes(connection) == expected


async def test_definition_stored_with_its_defaults_means_the_same(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly(overlap="skip"))
    complete = SchedulePolicy.of(hourly(overlap="skip")).to_json()  # as earlier versions stored it
    await connection.execute("UPDATE horsies_schedule_state SET definition = $1::jsonb", complete)
    for _ in range(2):
        await make_due(connection, 1)
        await fire_due(database)
        await connection.execute("UPDATE horsies_schedule_runs SET slot_at = slot_at - interval '1 hour'")
    assert await outcomes(connection) == ["fired", "skipped"]


async def test_catch_up_is_limited_per_check(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly(missed="all", max_catch_up_runs=2))
    await make_due(connection, 5)
    results = [await fire_due(database) for _ in range(3)]
    assert [result.fired for result in results] == [2, 2, 1]
    assert not any(result.has_more for result in results)


async def test_long_outage_is_recorded_in_chunks(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly())
    await make_due(connection, MAX_SLOTS + 5)
    first, second = await fire_due(database), await fire_due(database)
    assert (first.fired, first.has_more, second.fired, second.has_more) == (0, True, 1, False)
    found = await outcomes(connection)
    assert (len(found), found[-1], set(found[:-1])) == (MAX_SLOTS + 5, "fired", {"skipped"})


async def test_waiting_slot_fires_when_the_earlier_one_ends(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly(missed="all", overlap="queue_one"))
    await make_due(connection, 2)
    await fire_due(database)
    assert (await fire_due(database)).fired == 0
    await finish(connection, await fired_ids(connection))
    assert (await fire_due(database)).fired == 1
    assert await outcomes(connection) == ["fired", "fired"]
    assert (await state_of(connection))["waiting_slot_at"] is None


async def test_replace_cancels_the_earlier_task(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly(overlap="replace"))
    await make_due(connection, 2)
    await fire_due(database)
    await connection.execute("UPDATE horsies_schedule_runs SET slot_at = slot_at - interval '1 hour'")
    await make_due(connection, 1)
    await connection.execute("UPDATE horsies_tasks SET id = gen_random_uuid()")
    await connection.execute("UPDATE horsies_schedule_runs SET task_id = (SELECT id FROM horsies_tasks)")
    await fire_due(database)
    rows = await connection.fetch("SELECT status FROM horsies_tasks ORDER BY created_at")
    assert [row["status"] for row in rows] == ["CANCELLED", "PENDING"]


async def test_jitter_delays_the_start_only(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly(jitter_s=3600))
    slot = await make_due(connection, 1)
    await fire_due(database)
    task = await connection.fetchrow("SELECT sent_at, enqueued_at FROM horsies_tasks")
    assert task is not None
    assert task["sent_at"] == slot
    assert timedelta() < task["enqueued_at"] - slot < timedelta(hours=1)


async def test_failed_slots_in_a_row_pause_it(database: Database, database_url: str, connection: Connection) -> None:
    await sync(database, database_url, hourly(missed="all", pause_after_failures=2))
    await make_due(connection, 3)
    await fire_due(database)
    ids = await fired_ids(connection)
    await finish(connection, ids[:1], "COMPLETED")
    await finish(connection, ids[1:], "FAILED")
    await connection.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '1 second'")
    assert (await fire_due(database)).fired == 0
    state = await state_of(connection)
    assert (state["paused_by"], state["pause_reason"]) == ("horsies", "2 failed slots in a row")
    assert await connection.fetchval("SELECT count(*) FROM horsies_events WHERE kind = 'schedule_paused'") == 1


async def test_permanent_error_refuses_one_schedule_only(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly("good"), hourly("bad"))
    await connection.execute("UPDATE horsies_schedule_state SET call = call - 'task_name' WHERE schedule_name = 'bad'")
    for name in ("good", "bad"):
        await make_due(connection, 1, name)
    assert (await fire_due(database)).fired == 1
    assert (await outcomes(connection, "good"), await outcomes(connection, "bad")) == (["fired"], ["refused"])
    assert (await state_of(connection, "bad"))["refusals"] == 1
    assert (await fire_due(database)).schedules == 0


async def test_unknown_zone_pauses_that_schedule_alone(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly("good"), hourly("bad"))
    for name in ("good", "bad"):
        await make_due(connection, 1, name)
    await connection.execute(
        """UPDATE horsies_schedule_state SET definition = definition || '{"timezone": "Mars/Olympus"}'
            WHERE schedule_name = 'bad'"""
    )
    assert (await fire_due(database)).fired == 1
    assert (await state_of(connection, "bad"))["pause_reason"] == "unknown time zone Mars/Olympus"


async def test_concurrent_participants_fire_each_slot_once(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, *(hourly(f"s{n}", missed="all") for n in range(20)))
    for n in range(20):
        await make_due(connection, 5, f"s{n}")
    for _ in range(3):
        await asyncio.gather(*(fire_due(database, limit=7) for _ in range(8)))
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 100
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_runs WHERE outcome = 'fired'") == 100


async def test_workflow_run_is_started(database: Database, database_url: str, connection: Connection) -> None:
    app = schedule_app(database_url)
    spec = app.workflow("report", [app.tasks["add"].node()(a=1, b=2)], definition_key="report.v1")
    app.add_schedules([TaskSchedule(name="report", workflow=spec, pattern=hourly().pattern)])
    await sync_app(database, app)
    slot = await make_due(connection, 1, "report")
    assert (await fire_due(database)).fired == 1
    assert await drain_async(app) == 1
    run = await connection.fetchrow("SELECT id, status FROM horsies_workflows")
    assert run is not None
    assert (run["id"], run["status"]) == (slot_id("report", slot), "COMPLETED")
    await app.close_async()


async def test_every_refused_slot_has_the_whole_reason(
    database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly(missed="all"))
    await connection.execute("""UPDATE horsies_schedule_state SET call = call || '{"plan": "{}"}'""")
    await make_due(connection, 3)
    await fire_due(database)
    reasons = [row["reason"] for row in await connection.fetch("SELECT reason FROM horsies_schedule_runs")]
    assert len(reasons) == 3
    assert len(set(reasons)) == 1
    assert "WorkflowPlan" in reasons[0]
    assert "Field required" in reasons[0]


async def test_overlap_is_decided_by_what_was_committed_before_the_lock(
    database: Database, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that locks a row may have begun before the transaction that fired the previous slot ended."""
    await sync(database, database_url, hourly(overlap="skip"))
    await make_due(connection, 1)
    await fire_due(database)
    await finish(connection, await fired_ids(connection))
    await make_due(connection, 1)
    fetch = Transaction.fetch_raw

    async def fetch_while_another_commits(transaction: Transaction, query: Query[Any], *arguments: Any) -> Any:
        rows = await fetch(transaction, query, *arguments)
        if query is SCHEDULES.lock_due:
            await connection.execute("UPDATE horsies_tasks SET status = 'RUNNING', terminal_at = NULL")
        return rows

    monkeypatch.setattr(Transaction, "fetch_raw", fetch_while_another_commits)
    async with asyncio.timeout(10):
        rows = await database.run(lambda transaction: ScheduleStore(transaction).lock_due(limit=1))
    assert [row.is_running for row in rows] == [True]


async def test_name_of_a_schedule_is_stored_as_it_is(
    database: Database, database_url: str, connection: Connection
) -> None:
    name = 'say "hi" \\ {now} ü'
    await sync(database, database_url, hourly(name))
    await make_due(connection, 1, name)
    await fire_due(database)
    assert await connection.fetchval("SELECT context #>> '{schedule,name}' FROM horsies_tasks") == name
