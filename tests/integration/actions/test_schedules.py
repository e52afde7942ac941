"""Operators' actions on schedules, and what they read of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from horsies import IntervalSchedule
from horsies.errors import NotFound, Refused
from horsies.scheduler.firing import fire_due
from horsies.scheduler.sync import retire_undefined
from horsies.store.database import Database
from horsies.store.schedules import ScheduleStore
from horsies_ops.actions.schedules import MAX_BACKFILL
from horsies_ops.doctor import CheckStatus, check_schedules
from horsies_ops.ops import Ops
from horsies_tui.proposals.schedules import propose_backfill
from tests.support.rows import insert_worker
from tests.support.schedules import finish, fired_ids, hourly, make_due, outcomes, state_of, sync
from tests.support.store import Connection


@pytest.fixture(autouse=True)
async def _stored(database: Database, database_url: str) -> None:
    await sync(database, database_url, hourly())


async def test_paused_schedule_does_not_fire_until_resumed(
    ops: Ops, database: Database, connection: Connection
) -> None:
    assert (await ops.pause_schedule("hourly", reason="month end")).affected == 1
    assert (await ops.pause_schedule("hourly")).affected == 0
    await make_due(connection, 3)
    assert (await fire_due(database)).fired == 0
    assert (await ops.resume_schedule("hourly")).affected == 1
    assert (await fire_due(database)).fired == 0
    row = await ops.schedule("hourly")
    assert row.due_in is not None
    assert row.due_in > timedelta()


async def test_resume_may_catch_up(ops: Ops, database: Database, connection: Connection) -> None:
    await ops.pause_schedule("hourly")
    await make_due(connection, 3)
    await ops.resume_schedule("hourly", catch_up=True)
    await fire_due(database)
    assert await outcomes(connection) == ["skipped", "skipped", "fired"]


async def test_run_now_leaves_the_slots_alone(ops: Ops, connection: Connection) -> None:
    before = (await state_of(connection))["next_run_at"]
    first, second = await ops.run_schedule("hourly", reason="again"), await ops.run_schedule("hourly")
    assert first.new_ids != second.new_ids
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 2
    assert (await state_of(connection))["next_run_at"] == before
    assert [run.kind for run in await ops.schedule_history("hourly")] == ["manual", "manual"]


async def test_backfill_fires_what_did_not_fire(ops: Ops, database: Database, connection: Connection) -> None:
    first = await make_due(connection, 4)
    await fire_due(database)
    assert await outcomes(connection) == ["skipped"] * 3 + ["fired"]
    since, until = first - timedelta(hours=2), first + timedelta(hours=3)
    plan = await ops.plan_backfill("hourly", since, until)
    assert (len(plan.slots), plan.already_fired) == (5, 1)
    preview = await ops.backfill_schedule("hourly", since, until, dry_run=True)
    assert (preview.matched, preview.affected) == (5, 0)
    report = await ops.backfill_schedule("hourly", since, until, reason="outage")
    assert (report.affected, report.skipped_count) == (5, 1)
    assert await outcomes(connection) == ["fired"] * 6
    assert (await ops.backfill_schedule("hourly", since, until)).affected == 0
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 6


async def test_huge_backfill_is_refused(ops: Ops, connection: Connection) -> None:
    now = await connection.fetchval("SELECT now()")
    with pytest.raises(Refused, match=f"more than {MAX_BACKFILL:,} slots"):
        await ops.backfill_schedule("hourly", now - timedelta(days=800), now)
    assert await outcomes(connection) == []


async def test_proposed_backfill_leaves_out_times_with_too_many_slots(
    ops: Ops, database: Database, database_url: str
) -> None:
    await sync(database, database_url, hourly("often", pattern=IntervalSchedule(seconds=1)))
    proposal = await propose_backfill(ops, "often")
    assert (proposal.option_text, proposal.apply_label) == ("the last 1h00m", "backfill 3,600")
    await sync(database, database_url, hourly("hourly", pattern=IntervalSchedule(minutes=1)))
    daily = await propose_backfill(ops, "hourly")
    assert daily.with_next_option is not None
    assert (await daily.with_next_option()).option_text == "the last 1h00m"  # 7 days are 10,080 slots


async def test_forgetting_deletes_a_schedule_and_its_history(ops: Ops, connection: Connection) -> None:
    await ops.run_schedule("hourly")
    await connection.execute("UPDATE horsies_schedule_state SET state = 'retired'")
    assert (await ops.forget_schedule("hourly", dry_run=True)).affected == 0
    assert (await ops.forget_schedule("hourly")).affected == 1
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_runs") == 0
    with pytest.raises(NotFound, match="no schedule 'hourly'"):
        await ops.pause_schedule("hourly")


async def test_every_action_is_audited(ops: Ops) -> None:
    await ops.pause_schedule("hourly", reason="r", dry_run=True)
    await ops.pause_schedule("hourly", reason="r")
    await ops.resume_schedule("hourly")
    await ops.run_schedule("hourly")
    found = [(row.action, row.affected, row.dry_run) for row in await ops.audit()]
    assert found == [
        ("pause_schedule", 0, True),
        ("pause_schedule", 1, False),
        ("resume_schedule", 1, False),
        ("run_schedule", 1, False),
    ]


async def test_overdue_schedules_come_first(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly(), hourly("late"))
    await make_due(connection, 5, "late")
    late, other = await ops.list_schedules()
    assert (late.name, late.is_overdue, other.is_overdue) == ("late", True, False)
    assert (late.pattern, late.overlap, late.target, late.owner) == ("every 1 hour", "allow", "add", "shop")
    await fire_due(database)
    row = await ops.schedule("late")
    assert (list(row.recent), row.is_overdue, row.run_count) == (["skipped"] * 4 + ["fired"], False, 1)
    assert row.next_slots(3)[2] - row.next_slots(3)[0] == timedelta(hours=2)


async def _with_waiting_slot(database: Database, url: str, connection: Connection) -> None:
    await sync(database, url, hourly(missed="all", overlap="queue_one"))
    await make_due(connection, 2)
    await fire_due(database)
    assert await outcomes(connection) == ["fired", "waiting"]


@pytest.mark.parametrize(
    ("catch_up", "expected"), [(False, ["fired", "skipped"]), (True, ["fired", "fired"])], ids=["now", "catch-up"]
)
async def test_waiting_slot_fires_after_a_pause_only_by_catch_up(
    ops: Ops, database: Database, database_url: str, connection: Connection, catch_up: bool, expected: list[str]
) -> None:
    await _with_waiting_slot(database, database_url, connection)
    await ops.pause_schedule("hourly")
    await finish(connection, await fired_ids(connection))
    assert (await fire_due(database)).fired == 0
    await ops.resume_schedule("hourly", catch_up=catch_up)
    await fire_due(database)
    assert (await outcomes(connection))[:2] == expected
    assert (await state_of(connection))["waiting_slot_at"] is None


@pytest.mark.parametrize("change", ["pattern", "disabled", "retired"])
async def test_changed_schedule_skips_its_waiting_slot(
    database: Database, database_url: str, connection: Connection, change: str
) -> None:
    await _with_waiting_slot(database, database_url, connection)
    if change == "retired":
        await retire_undefined(database, "shop")
    else:
        changed: dict[str, Any] = {"enabled": False} if change == "disabled" else {"pattern": IntervalSchedule(hours=3)}
        await sync(database, database_url, hourly(missed="all", overlap="queue_one", **changed))
    assert await outcomes(connection) == ["fired", "skipped"]
    assert (await state_of(connection))["waiting_slot_at"] is None


async def test_only_live_participants_count(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    store = ScheduleStore(database)
    long_ago = timedelta(minutes=2)
    workers = [
        await insert_worker(database_url),
        await insert_worker(database_url, state="lost"),
        await insert_worker(database_url, last_heartbeat_at=datetime.now(UTC) - long_ago),
    ]
    alone, gone = uuid4(), uuid4()
    for participant in (*workers, alone, gone):
        await store.join(participant, "shop", [], hostname="host", pid=1)
    await connection.execute(
        "UPDATE horsies_schedule_participants SET seen_at = now() - $2::interval WHERE id = $1", gone, long_ago
    )
    assert await ops.schedule_participants() == 2


async def test_doctor_fails_for_refused_and_overdue_schedules(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    assert (await check_schedules(ops)).status is CheckStatus.OK
    await sync(database, database_url, hourly(missed="all"))
    await connection.execute("""UPDATE horsies_schedule_state SET call = call || '{"plan": "{}"}'""")
    await make_due(connection, 3)
    await fire_due(database)
    refused = await check_schedules(ops)
    assert (refused.status, refused.detail) == (CheckStatus.FAIL, "refused again and again: hourly")
    await make_due(connection, 2)
    overdue = await check_schedules(ops)
    assert (overdue.status, overdue.detail) == (CheckStatus.FAIL, "1 overdue: hourly")
    assert overdue.hint == "start a worker of the app, or horsies scheduler"


async def test_window_of_a_backfilled_slot_begins_at_the_slot_before_it(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly(missed_within=1))
    first = await make_due(connection, 4)
    await fire_due(database)
    second, third = first + timedelta(hours=1), first + timedelta(hours=2)
    await ops.backfill_schedule("hourly", second, second)
    await ops.backfill_schedule("hourly", first, third)
    rows = await connection.fetch(
        "SELECT sent_at, (context #>> '{schedule,previous_slot_at}')::timestamptz AS previous FROM horsies_tasks"
    )
    assert {row["sent_at"]: row["previous"] for row in rows} == {second: None, first: None, third: second}


async def test_schedule_of_an_app_without_live_processes_is_forgotten(
    ops: Ops, database: Database, connection: Connection
) -> None:
    store, participant = ScheduleStore(database), uuid4()
    await store.join(participant, "shop", ["hourly"], hostname="a", pid=1)
    with pytest.raises(Refused, match="defined by app 'shop', which is running"):
        await ops.forget_schedule("hourly")
    await store.leave(participant)
    assert (await ops.forget_schedule("hourly")).affected == 1
    assert await connection.fetchval("SELECT count(*) FROM horsies_schedule_state") == 0


@pytest.mark.parametrize("verb", ["resume_schedule", "backfill_schedule"])
async def test_action_on_an_unknown_zone_is_refused(ops: Ops, connection: Connection, verb: str) -> None:
    await ops.pause_schedule("hourly")
    await connection.execute(
        """UPDATE horsies_schedule_state
              SET definition = '{"pattern": {"type": "daily", "time": "02:30"}, "timezone": "Mars/Olympus"}'"""
    )
    now = datetime.now(UTC)
    arguments = (now - timedelta(days=1), now) if verb == "backfill_schedule" else ()
    with pytest.raises(Refused, match="unknown time zone 'Mars/Olympus' of schedule 'hourly'"):
        await getattr(ops, verb)("hourly", *arguments)


@pytest.mark.parametrize(
    ("first", "message"),
    [(datetime.min.replace(tzinfo=UTC), "before 1970"), (datetime(2030, 1, 2, tzinfo=UTC), "ends before it begins")],
)
async def test_impossible_range_of_a_backfill_is_refused(ops: Ops, first: datetime, message: str) -> None:
    with pytest.raises(Refused, match=message):
        await ops.plan_backfill("hourly", first, datetime(2030, 1, 1, tzinfo=UTC))


async def test_slot_that_a_backfill_fired_is_counted_once(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    await sync(database, database_url, hourly(missed="all"))
    first = await make_due(connection, 3)
    await ops.backfill_schedule("hourly", first, first)
    assert (await state_of(connection))["run_count"] == 1
    assert (await fire_due(database)).fired == 2
    assert await outcomes(connection) == ["fired"] * 3
    assert (await state_of(connection))["run_count"] == 3
