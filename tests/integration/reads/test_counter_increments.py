"""Increments of the Prometheus counters between two reads."""

from __future__ import annotations

from datetime import datetime, timedelta

import asyncpg

from horsies.store.database import Database
from horsies_ops.reads.overview import CounterIncrements, read_increments
from tests.support.rows import insert, insert_task

FINISH = "UPDATE horsies_tasks SET status = 'COMPLETED', terminal_at = now() WHERE id = $1"


async def read(database: Database, since: datetime | None) -> CounterIncrements:
    return await read_increments(database, since=since, bucket_bounds_s=[1.0, 10.0])


async def test_first_read_counts_nothing_and_the_next_only_new_tasks(database: Database, database_url: str) -> None:
    before = await insert_task(database_url)
    after = await insert_task(database_url, queue_name="mail")
    connection = await asyncpg.connect(database_url)
    await connection.execute(FINISH, before)
    first = await read(database, None)
    await connection.execute(FINISH, after)
    second = await read(database, first.until)
    third = await read(database, second.until)
    await connection.close()
    assert first.finished == ()
    assert [(row.queue, row.status, row.tasks) for row in second.finished] == [("mail", "COMPLETED", 1)]
    assert third.finished == ()


async def test_task_finished_in_an_open_transaction_is_counted_after_commit(
    database: Database, database_url: str
) -> None:
    early, late = await insert_task(database_url), await insert_task(database_url)
    slow, quick = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    start = (await read(database, None)).until
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute(FINISH, early)
    await quick.execute(FINISH, late)
    meanwhile = await read(database, start)
    await transaction.commit()
    afterwards = await read(database, meanwhile.until)
    await slow.close()
    await quick.close()
    assert sum(row.tasks for row in (*meanwhile.finished, *afterwards.finished)) == 2


async def test_attempts_are_counted_by_duration(database: Database, database_url: str) -> None:
    start = (await read(database, None)).until
    now = start + timedelta(microseconds=1)
    for attempt, seconds in enumerate((0.5, 2.0, 3.0, 60.0), start=1):
        spent = {"started_at": now - timedelta(seconds=seconds), "finished_at": now, "outcome": "COMPLETED"}
        task_id = await insert_task(database_url)
        await insert(database_url, "horsies_task_attempts", task_id=task_id, attempt=attempt, claim_token=1, **spent)
    increments = await read(database, start)
    assert {bucket.index: (bucket.attempts, bucket.total_s) for bucket in increments.durations} == {
        0: (1, 0.5),
        1: (2, 5.0),
        2: (1, 60.0),
    }


async def test_recoveries_and_late_results_are_counted_by_decision(database: Database, database_url: str) -> None:
    start = (await read(database, None)).until
    await insert(database_url, "horsies_events", kind="task_recovered", evidence={"decision": "requeue"})
    await insert(database_url, "horsies_events", kind="late_result_refused", evidence={})
    await insert(database_url, "horsies_events", kind="child_died", evidence={})
    increments = await read(database, start)
    assert {(row.kind, row.decision, row.events) for row in increments.events} == {
        ("task_recovered", "requeue", 1),
        ("late_result_refused", "", 1),
    }
