"""Counts, facets, tasks by id and last heartbeats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from horsies.store.database import Database
from horsies_ops.reads.filters import TaskFilter, format_filter
from horsies_ops.reads.search import Count, Facet
from tests.support.rows import insert, insert_task
from tests.support.store import ops_on

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
RUN = UUID("4e14a9f1-8f6a-4c1e-9b7a-0d52a91f03c2")


async def test_count_is_exact_up_to_its_cap(database: Database, database_url: str) -> None:
    for queue in ("mail", "mail", "web"):
        await insert_task(database_url, queue_name=queue)
    mail = TaskFilter(queues=["mail"])
    assert await ops_on(database).count_tasks(mail) == Count(number=2)
    assert await ops_on(database).count_tasks(mail, cap=1) == Count(number=1, is_capped=True)
    assert await ops_on(database).count_tasks(TaskFilter()) == Count(number=3)


async def test_count_of_all_tasks_is_estimated_beyond_the_cap(database: Database, database_url: str) -> None:
    for _ in range(5):
        await insert_task(database_url)
    connection = await asyncpg.connect(database_url)
    await connection.execute("ANALYZE horsies_tasks")
    await connection.close()
    assert await ops_on(database).count_tasks(TaskFilter(), cap=2) == Count(number=5, is_estimate=True)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (Count(number=1204), "1,204"),
        (Count(number=10_000, is_capped=True), "10,000+"),
        (Count(number=1_600_000, is_estimate=True), "~1,600,000"),
    ],
)
def test_count_is_formatted_with_cap_and_estimate_marks(count: Count, shown: str) -> None:
    assert str(count) == shown


async def test_facets_count_values_of_matching_tasks_most_frequent_first(database: Database, database_url: str) -> None:
    for queue, status in (("mail", "FAILED"), ("web", "FAILED"), ("web", "FAILED"), ("web", "PENDING")):
        await insert_task(database_url, queue_name=queue, status=status)
    found = await ops_on(database).facets(TaskFilter(statuses=["FAILED"]))
    assert found.queues == (Facet(value="web", count=2), Facet(value="mail", count=1))
    assert found.statuses == (Facet(value="FAILED", count=3),)
    assert found.error_codes == (Facet(value="UNHANDLED_EXCEPTION", count=3),)
    assert (await ops_on(database).facets(TaskFilter(queues=["none"]))).names == ()


@pytest.mark.parametrize(
    "task_filter",
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
async def test_index_search_and_its_exclusion_together_find_every_task(
    database: Database, database_url: str, task_filter: TaskFilter
) -> None:
    rows: tuple[dict[str, Any], ...] = (
        {"status": "RUNNING", "started_at": NOW - HOUR, "claimed_at": NOW, "claim_token": 1},
        {"status": "PENDING", "enqueued_at": NOW + HOUR},
        {"status": "FAILED", "error_code": "X"},
        {"status": "CANCELLED", "workflow_id": RUN},
        {"status": "COMPLETED"},
    )
    all_ids = {await insert_task(database_url, **row) for row in rows}
    by_index = {task.id for task in (await ops_on(database).list_tasks(task_filter)).tasks}
    excluded = {task.id for task in (await ops_on(database).list_tasks(TaskFilter(exclude=task_filter))).tasks}
    assert by_index
    assert (by_index | excluded, by_index & excluded) == (all_ids, set())


async def test_tasks_by_id_are_newest_first_without_unknown_ones(database: Database, database_url: str) -> None:
    ids = [await insert_task(database_url) for _ in range(2)]
    assert [task.id for task in await ops_on(database).tasks_by_id([*ids, uuid4()])] == ids[::-1]
    assert await ops_on(database).tasks_by_id([]) == ()


async def test_last_heartbeat_is_of_current_claim_or_the_claim_itself(database: Database, database_url: str) -> None:
    claimed_at, heartbeat_at = NOW - HOUR, NOW - HOUR / 2
    columns = {"claim_token": 2, "claimed_at": claimed_at, "started_at": claimed_at - HOUR}
    claimed = await insert_task(database_url, status="CLAIMED", **columns)
    running = await insert_task(database_url, status="RUNNING", **columns | {"started_at": claimed_at})
    finished = await insert_task(database_url, status="COMPLETED", **columns)
    for token, at in ((1, NOW), (2, heartbeat_at)):
        heartbeat = {"role": "runner", "sender_id": "w:1", "task_id": running, "claim_token": token, "sent_at": at}
        await insert(database_url, "horsies_heartbeats", **heartbeat)
    tasks = await ops_on(database).tasks_by_id([claimed, running, finished])
    assert {task.id: task.last_heartbeat_at for task in tasks} == {
        claimed: claimed_at,
        running: heartbeat_at,
        finished: None,
    }
    (task,) = (await ops_on(database).list_tasks(TaskFilter(statuses=["RUNNING"]))).tasks
    assert (task.last_heartbeat_at, task.silence is not None and task.silence >= HOUR / 2) == (heartbeat_at, True)
