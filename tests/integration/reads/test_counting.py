"""How many tasks match, what occurs among them, and when they last gave a sign of life."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from horsies.store.database import Database
from horsies_ops.reads.filters import TaskFilter, format_filter
from horsies_ops.reads.search import Count, Facet, count_tasks, facets
from horsies_ops.reads.tasks import last_heartbeats, list_tasks, tasks_by_id
from tests.support.rows import insert, insert_task

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
RUN = UUID("4e14a9f1-8f6a-4c1e-9b7a-0d52a91f03c2")


async def test_a_count_is_exact_up_to_its_cap_and_says_where_it_stopped(database: Database, database_url: str) -> None:
    for queue in ("mail", "mail", "web"):
        await insert_task(database_url, queue_name=queue)
    mail = TaskFilter(queues=["mail"])
    assert await count_tasks(database, mail) == Count(number=2)
    assert await count_tasks(database, mail, cap=1) == Count(number=1, is_capped=True)
    assert await count_tasks(database, TaskFilter()) == Count(number=3)


async def test_all_tasks_of_a_large_table_are_estimated(database: Database, database_url: str) -> None:
    for _ in range(5):
        await insert_task(database_url)
    connection = await asyncpg.connect(database_url)
    await connection.execute("ANALYZE horsies_tasks")
    await connection.close()
    assert await count_tasks(database, TaskFilter(), cap=2) == Count(number=5, is_estimate=True)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (Count(number=1204), "1,204"),
        (Count(number=10_000, is_capped=True), "10,000+"),
        (Count(number=1_600_000, is_estimate=True), "~1,600,000"),
    ],
)
def test_a_count_shows_how_far_it_may_be_trusted(count: Count, shown: str) -> None:
    assert str(count) == shown


async def test_facets_tell_what_occurs_among_what_matches_the_most_frequent_first(
    database: Database, database_url: str
) -> None:
    for queue, status in (("mail", "FAILED"), ("web", "FAILED"), ("web", "FAILED"), ("web", "PENDING")):
        await insert_task(database_url, queue_name=queue, status=status)
    found = await facets(database, TaskFilter(statuses=["FAILED"]))
    assert found.queues == (Facet(value="web", count=2), Facet(value="mail", count=1))
    assert found.statuses == (Facet(value="FAILED", count=3),)
    assert found.error_codes == (Facet(value="UNHANDLED_EXCEPTION", count=3),)
    assert (await facets(database, TaskFilter(queues=["none"]))).names == ()


@pytest.mark.parametrize(
    "wanted",
    [
        TaskFilter(statuses=["RUNNING"]),
        TaskFilter(statuses=["PENDING", "CLAIMED"]),
        TaskFilter(statuses=["FAILED", "CANCELLED"]),
        TaskFilter(error_codes=["*"]),
        TaskFilter(workflow_id=str(RUN)),
        TaskFilter(due_later=True),
        TaskFilter(min_silence=HOUR / 2),
    ],
    ids=format_filter,
)
async def test_what_an_index_finds_and_what_is_left_of_the_whole_table_are_all_there_is(
    database: Database, database_url: str, wanted: TaskFilter
) -> None:
    columns: tuple[dict[str, Any], ...] = (
        {"status": "RUNNING", "started_at": NOW - HOUR, "claimed_at": NOW, "claim_token": 1},
        {"status": "PENDING", "enqueued_at": NOW + HOUR},
        {"status": "FAILED", "error_code": "X"},
        {"status": "CANCELLED", "workflow_id": RUN},
        {"status": "COMPLETED"},
    )
    every = {await insert_task(database_url, **each) for each in columns}
    by_index = {task.id for task in (await list_tasks(database, wanted)).tasks}
    left = {task.id for task in (await list_tasks(database, TaskFilter(exclude=wanted))).tasks}
    assert by_index
    assert (by_index | left, by_index & left) == (every, set())


async def test_tasks_come_by_their_ids_the_newest_first_without_those_that_are_gone(
    database: Database, database_url: str
) -> None:
    ids = [await insert_task(database_url) for _ in range(2)]
    assert [task.id for task in await tasks_by_id(database, [*ids, uuid4()])] == ids[::-1]
    assert await tasks_by_id(database, []) == ()


async def test_the_last_beat_is_of_the_present_claim_and_the_claim_itself_is_the_first(
    database: Database, database_url: str
) -> None:
    old, beaten = NOW - HOUR, NOW - HOUR / 2
    columns = {"claim_token": 2, "claimed_at": old, "started_at": old - HOUR}
    claimed = await insert_task(database_url, status="CLAIMED", **columns)
    running = await insert_task(database_url, status="RUNNING", **columns | {"started_at": old})
    ended = await insert_task(database_url, status="COMPLETED", **columns)
    for token, at in ((1, NOW), (2, beaten)):
        beat = {"role": "runner", "sender_id": "w:1", "task_id": running, "claim_token": token, "sent_at": at}
        await insert(database_url, "horsies_heartbeats", **beat)
    beats = await last_heartbeats(database, [claimed, running, ended])
    assert {task: (beat.role, beat.at) for task, beat in beats.items()} == {
        claimed: ("claimer", old),
        running: ("runner", beaten),
    }
    (page,) = (await list_tasks(database, TaskFilter(statuses=["RUNNING"]))).tasks
    assert (page.last_heartbeat_at, page.silence is not None and page.silence >= HOUR / 2) == (beaten, True)
