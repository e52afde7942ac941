"""What is counted between two looks."""

from __future__ import annotations

from datetime import datetime, timedelta

import asyncpg

from horsies.store.database import Database
from horsies_ops.reads.overview import CounterIncrements, read_increments
from tests.support.rows import insert, insert_task

END = "UPDATE horsies_tasks SET status = 'COMPLETED', terminal_at = now() WHERE id = $1"


async def look(database: Database, since: datetime | None) -> CounterIncrements:
    return await read_increments(database, since=since, bucket_bounds_s=[1.0, 10.0])


async def test_the_first_look_counts_nothing_and_the_next_what_ended_since(
    database: Database, database_url: str
) -> None:
    before = await insert_task(database_url)
    after = await insert_task(database_url, queue_name="mail")
    connection = await asyncpg.connect(database_url)
    await connection.execute(END, before)
    first = await look(database, None)
    await connection.execute(END, after)
    second = await look(database, first.until)
    third = await look(database, second.until)
    await connection.close()
    assert first.finished == ()
    assert [(each.queue, each.status, each.tasks) for each in second.finished] == [("mail", "COMPLETED", 1)]
    assert third.finished == ()


async def test_what_an_open_transaction_ends_is_counted_once_it_is_committed(
    database: Database, database_url: str
) -> None:
    early, late = await insert_task(database_url), await insert_task(database_url)
    slow, quick = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    start = (await look(database, None)).until
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute(END, early)
    await quick.execute(END, late)
    meanwhile = await look(database, start)
    await transaction.commit()
    afterwards = await look(database, meanwhile.until)
    await slow.close()
    await quick.close()
    assert sum(each.tasks for each in (*meanwhile.finished, *afterwards.finished)) == 2


async def test_executions_are_counted_by_how_long_they_took(database: Database, database_url: str) -> None:
    start = (await look(database, None)).until
    now = start + timedelta(microseconds=1)
    for attempt, seconds in enumerate((0.5, 2.0, 3.0, 60.0), start=1):
        spent = {"started_at": now - timedelta(seconds=seconds), "finished_at": now, "outcome": "COMPLETED"}
        task_id = await insert_task(database_url)
        await insert(database_url, "horsies_task_attempts", task_id=task_id, attempt=attempt, claim_token=1, **spent)
    found = await look(database, start)
    assert {each.index: (each.attempts, each.total_s) for each in found.durations} == {
        0: (1, 0.5),
        1: (2, 5.0),
        2: (1, 60.0),
    }


async def test_recoveries_and_late_results_are_counted(database: Database, database_url: str) -> None:
    start = (await look(database, None)).until
    await insert(database_url, "horsies_events", kind="task_recovered", evidence={"decision": "requeue"})
    await insert(database_url, "horsies_events", kind="late_result_refused", evidence={})
    await insert(database_url, "horsies_events", kind="child_died", evidence={})
    found = await look(database, start)
    assert {(each.kind, each.decision, each.events) for each in found.events} == {
        ("task_recovered", "requeue", 1),
        ("late_result_refused", "", 1),
    }
