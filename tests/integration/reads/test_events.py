"""Events, the audit log and schedules."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import horsies_ops
from horsies.model.events import EventRecord
from horsies.store.database import Database
from horsies.store.operators import EventStore
from tests.support.rows import insert, insert_task
from tests.support.store import ops_on

HOUR = timedelta(hours=1)


async def test_events_are_paged_in_id_order_in_both_directions(database: Database, database_url: str) -> None:
    for kind in ("a", "b", "c", "d"):
        await insert(database_url, "horsies_events", kind=kind)
    first, *_, last = await ops_on(database).events()
    assert [event.kind for event in await ops_on(database).events(limit=2)] == ["c", "d"]
    assert [event.kind for event in await ops_on(database).events(after=first.id, limit=2)] == ["b", "c"]
    assert [event.kind for event in await ops_on(database).events(before=last.id, limit=2)] == ["b", "c"]


async def test_events_are_filtered_by_kind_task_and_age(database: Database, database_url: str) -> None:
    task = uuid4()
    await insert(database_url, "horsies_events", kind="a", task_id=task, evidence={"x": 1})
    await insert(database_url, "horsies_events", kind="b", at=datetime.now(UTC) - 2 * HOUR)
    (event,) = await ops_on(database).events(task_id=task)
    assert (event.kind, event.evidence) == ("a", {"x": 1})
    assert [event.kind for event in await ops_on(database).events(kinds=["b", "c"])] == ["b"]
    assert [event.kind for event in await ops_on(database).events(since=HOUR)] == ["a"]


async def test_tail_yields_past_events_then_new_ones(database: Database, database_url: str) -> None:
    store = EventStore(database)
    await store.record(EventRecord(kind="before"))
    async with (
        horsies_ops.connect(database_url, read_only=True) as ops,
        aclosing(ops.tail_events(since=HOUR)) as tail,
        asyncio.timeout(20),
    ):
        assert (await anext(tail)).kind == "before"
        await store.record(EventRecord(kind="first"))
        await store.record(EventRecord(kind="second"))
        assert [(await anext(tail)).kind, (await anext(tail)).kind] == ["first", "second"]


async def test_audit_entries_are_read_as_stored(database: Database, database_url: str) -> None:
    task = await insert_task(database_url)
    action = {"actor": "ana", "host": "h", "action": "retry", "via": "cli", "matched": 2, "filter": {"queue": "mail"}}
    await insert(database_url, "horsies_audit", **action, task_ids=[task])
    (row,) = await ops_on(database).audit()
    assert (row.actor, row.action, row.matched, row.filter, list(row.task_ids)) == (
        "ana",
        "retry",
        2,
        {"queue": "mail"},
        [task],
    )
    assert await ops_on(database).audit(after=row.id) == ()
    assert await ops_on(database).audit(before=row.id) == ()
