"""Operators' actions on schedules, and what they read of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from horsies import IntervalSchedule
from horsies.errors import NotFound, Refused
from horsies.scheduler.firing import fire_due
from horsies.store.database import Database
from horsies_ops.actions.schedules import MAX_BACKFILL
from horsies_ops.ops import Ops
from horsies_tui.proposals.schedules import propose_backfill
from tests.support.schedules import hourly, make_due, outcomes, state_of, sync
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
    await sync(database, database_url, hourly("minutely", pattern=IntervalSchedule(minutes=1)))
    daily = await propose_backfill(ops, "minutely")
    assert daily.with_next_option is not None
    assert (await daily.with_next_option()).option_text == "the last 1h00m"  # 7 days are 10,080 slots


async def test_only_undefined_schedules_are_forgotten(ops: Ops, connection: Connection) -> None:
    with pytest.raises(Refused, match="defined by app 'shop'"):
        await ops.forget_schedule("hourly")
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
