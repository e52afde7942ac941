"""Rows that task lists read in a large table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from horsies.store.database import Database
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import MAX_ID, MIN_ID, RANGE_SIZE, SEARCH, sent_at_from_id
from horsies_ops.reads.tasks import TaskOrder
from tests.support.store import ops_on, rows_read

ROWS = 50_000
PAGE = 50
NO_TIME = timedelta(0)

# Ids in the order of sending, seven queues, one task in a thousand failed.
FILL = f"""
    INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueue_sha, status, terminal_at, error_code)
    SELECT ('01890a5d-ac96-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'mail.send', 'queue_' || n % 7, now(), '',
           CASE WHEN n % 1000 = 0 THEN 'FAILED' ELSE 'PENDING' END, CASE WHEN n % 1000 = 0 THEN now() END,
           CASE WHEN n % 1000 = 0 THEN 'SMTP_DOWN' END
      FROM generate_series(1, {ROWS}) AS n
"""


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(database_url)
    await connection.execute(FILL)
    await connection.execute("ANALYZE horsies_tasks")
    yield connection
    await connection.close()


@pytest.mark.parametrize("plan_mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize(
    ("task_filter", "bound"),
    [
        (TaskFilter(), PAGE + 1),
        (TaskFilter(queues=["queue_3"]), RANGE_SIZE),
        (TaskFilter(names=["*.send"], exclude=TaskFilter(queues=["queue_3"])), RANGE_SIZE),
    ],
    ids=["plain", "one queue", "names"],
)
async def test_page_statements_read_a_limited_number_of_rows(
    connection: asyncpg.Connection[asyncpg.Record],
    task_filter: TaskFilter,
    bound: int,
    oldest_first: bool,
    plan_mode: str,
) -> None:
    await connection.execute(f"SET plan_cache_mode = {plan_mode}")
    start, end = (MIN_ID, MAX_ID) if oldest_first else (MAX_ID, MIN_ID)
    arguments = (oldest_first, start, bound, end)
    assert await rows_read(connection, SEARCH.id_range.sql, *arguments) <= bound
    id_range = await connection.fetchrow(SEARCH.id_range.sql, *arguments)
    assert id_range is not None
    matching = (id_range["lowest"], id_range["highest"], None, task_filter.to_json(), oldest_first, PAGE + 1)
    assert await rows_read(connection, SEARCH.matches.sql, *matching) <= bound


@pytest.mark.parametrize("plan_mode", ["force_generic_plan", "force_custom_plan"])
async def test_only_candidates_of_an_index_are_read(
    connection: asyncpg.Connection[asyncpg.Record], plan_mode: str
) -> None:
    await connection.execute(f"SET plan_cache_mode = {plan_mode}")
    ids = (UUID("01890a5d-ac96-7000-8000-000000000001"), UUID("01890a5d-ac96-7000-8000-000000000007"))
    among = (MIN_ID, MAX_ID, ids, TaskFilter(queues=["queue_1"]).to_json(), False, PAGE + 1)
    assert await rows_read(connection, SEARCH.matches.sql, *among) == len(ids)
    assert await rows_read(connection, SEARCH.candidates.sql, "failed", None, ROWS) == ROWS / 1000
    assert await rows_read(connection, SEARCH.candidates.sql, "owned", None, ROWS) == 0


async def test_page_is_filled_even_if_matches_are_rare(
    connection: asyncpg.Connection[asyncpg.Record], database: Database
) -> None:
    task_filter = TaskFilter(statuses=["FAILED", "COMPLETED"])
    newest = await ops_on(database).list_tasks(task_filter, limit=40)
    rest = await ops_on(database).list_tasks(task_filter, limit=40, after=newest.next)
    oldest = await ops_on(database).list_tasks(task_filter, order=TaskOrder.OLDEST_FIRST, limit=50)
    assert (len(newest.tasks), len(rest.tasks), rest.next) == (40, 10, None)
    assert [task.id for task in (*newest.tasks, *rest.tasks)] == [task.id for task in oldest.tasks][::-1]


async def test_page_cut_by_time_limit_has_searched_to_and_continues(
    connection: asyncpg.Connection[asyncpg.Record], database: Database
) -> None:
    task_filter = TaskFilter(statuses=["FAILED", "COMPLETED"])
    first = await ops_on(database).list_tasks(task_filter, limit=40, max_search_time=NO_TIME)
    second = await ops_on(database).list_tasks(task_filter, limit=40, max_search_time=NO_TIME, after=first.next)
    whole = await ops_on(database).list_tasks(task_filter, limit=10)
    assert [task.id for task in (*first.tasks, *second.tasks)] == [task.id for task in whole.tasks]
    assert first.searched_to == sent_at_from_id(whole.tasks[0].id)
    assert whole.searched_to is None


async def test_search_without_matches_ends_with_the_table(
    connection: asyncpg.Connection[asyncpg.Record], database: Database
) -> None:
    page = await ops_on(database).list_tasks(TaskFilter(names=["unknown"]), max_search_time=None)
    assert (page.tasks, page.next, page.searched_to) == ((), None, None)


def test_sent_at_is_computed_from_any_id() -> None:
    assert sent_at_from_id(uuid7(nanoseconds=1_700_000_000_500_000_000)) == datetime.fromtimestamp(1_700_000_000.5, UTC)
    assert sent_at_from_id(MAX_ID).year == 9999
