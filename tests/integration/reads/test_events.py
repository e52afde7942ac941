"""What happened, what operators did, and schedules."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import horsies_ops
from horsies.model.settings import TaskSchedule
from horsies.store.database import Database
from horsies.store.operators import EventStore, StoredEvent
from horsies_ops.reads.events import audit, events
from horsies_ops.reads.schedules import list_schedules
from tests.support.rows import insert, insert_task

HOUR = timedelta(hours=1)


async def test_events_come_in_the_order_of_writing_from_either_end(database: Database, database_url: str) -> None:
    for kind in ("a", "b", "c", "d"):
        await insert(database_url, "horsies_events", kind=kind)
    first, *_, last = await events(database)
    assert [event.kind for event in await events(database, limit=2)] == ["c", "d"]
    assert [event.kind for event in await events(database, after=first.id, limit=2)] == ["b", "c"]
    assert [event.kind for event in await events(database, before=last.id, limit=2)] == ["b", "c"]


async def test_events_are_found_by_kind_task_and_age(database: Database, database_url: str) -> None:
    task = uuid4()
    await insert(database_url, "horsies_events", kind="a", task_id=task, evidence={"x": 1})
    await insert(database_url, "horsies_events", kind="b", at=datetime.now(UTC) - 2 * HOUR)
    (event,) = await events(database, task_id=task)
    assert (event.kind, event.evidence) == ("a", {"x": 1})
    assert [each.kind for each in await events(database, kinds=["b", "c"])] == ["b"]
    assert [each.kind for each in await events(database, since=HOUR)] == ["a"]


async def test_what_is_followed_begins_with_the_past_and_goes_on_with_what_is_written(
    database: Database, database_url: str
) -> None:
    store = EventStore(database)
    await store.record(StoredEvent(kind="before"))
    async with (
        horsies_ops.connect(database_url, read_only=True) as ops,
        aclosing(ops.tail_events(since=HOUR)) as following,
        asyncio.timeout(20),
    ):
        assert (await anext(following)).kind == "before"
        await store.record(StoredEvent(kind="first"))
        await store.record(StoredEvent(kind="second"))
        assert [(await anext(following)).kind, (await anext(following)).kind] == ["first", "second"]


async def test_the_actions_of_operators_are_read_as_they_were_written(database: Database, database_url: str) -> None:
    task = await insert_task(database_url)
    action = {"actor": "ana", "host": "h", "action": "retry", "via": "cli", "matched": 2, "filter": {"queue": "mail"}}
    await insert(database_url, "horsies_audit", **action, task_ids=[task])
    (row,) = await audit(database)
    assert (row.actor, row.action, row.matched, row.filter, list(row.task_ids)) == (
        "ana",
        "retry",
        2,
        {"queue": "mail"},
        [task],
    )
    assert await audit(database, after=row.id) == ()
    assert await audit(database, before=row.id) == ()


async def test_schedules_are_those_of_the_settings_and_those_the_database_remembers(
    database: Database, database_url: str
) -> None:
    task = await insert_task(database_url, status="FAILED", error_code="X")
    soon = datetime.now(UTC) + HOUR
    state = {"schedule_name": "digest", "config_hash": "", "next_run_at": soon, "last_task_id": task, "run_count": 3}
    await insert(database_url, "horsies_schedule_state", **state)
    configured = TaskSchedule(name="etl", task_name="etl.run", pattern={"type": "daily", "time": "02:00"})
    remembered, unseen = await list_schedules(database, [configured])
    assert (remembered.name, remembered.task_name, remembered.run_count) == ("digest", None, 3)
    assert (remembered.next_run_at, remembered.last_status, remembered.last_error_code) == (soon, "FAILED", "X")
    assert (unseen.name, unseen.task_name, unseen.pattern) == ("etl", "etl.run", "daily time=02:00")
    assert (unseen.next_run_at, unseen.is_enabled, unseen.run_count) == (None, True, 0)
