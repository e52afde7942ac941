"""What reads of tasks cost in a large table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from horsies.model.task import format_id, next_id_value
from horsies.store.database import Database
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import MAX_ID, MIN_ID, RANGE_SIZE, SEARCH, sent_at_from_id
from horsies_ops.reads.tasks import TaskOrder, list_tasks
from tests.support.store import rows_read

ROWS = 50_000
PAGE = 50
AT_ONCE = timedelta(0)

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


@pytest.mark.parametrize("generic", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize(
    ("wanted", "bound"),
    [
        (TaskFilter(), PAGE + 1),
        (TaskFilter(queues=["queue_3"]), RANGE_SIZE),
        (TaskFilter(names=["*.send"], exclude=TaskFilter(queues=["queue_3"])), RANGE_SIZE),
    ],
    ids=["plain", "one queue", "names"],
)
async def test_each_statement_of_a_page_goes_through_a_bounded_number_of_rows(
    connection: asyncpg.Connection[asyncpg.Record], wanted: TaskFilter, bound: int, oldest_first: bool, generic: str
) -> None:
    await connection.execute(f"SET plan_cache_mode = {generic}")
    start, end = (MIN_ID, MAX_ID) if oldest_first else (MAX_ID, MIN_ID)
    window = (oldest_first, start, bound, end)
    assert await rows_read(connection, SEARCH.id_range.sql, *window) <= bound
    stretch = await connection.fetchrow(SEARCH.id_range.sql, *window)
    assert stretch is not None
    matching = (stretch["lowest"], stretch["highest"], None, wanted.to_json(), oldest_first, PAGE + 1)
    assert await rows_read(connection, SEARCH.matches.sql, *matching) <= bound


@pytest.mark.parametrize("generic", ["force_generic_plan", "force_custom_plan"])
async def test_where_an_index_knows_what_can_match_only_that_is_read(
    connection: asyncpg.Connection[asyncpg.Record], generic: str
) -> None:
    await connection.execute(f"SET plan_cache_mode = {generic}")
    few = (UUID("01890a5d-ac96-7000-8000-000000000001"), UUID("01890a5d-ac96-7000-8000-000000000007"))
    among = (MIN_ID, MAX_ID, few, TaskFilter(queues=["queue_1"]).to_json(), False, PAGE + 1)
    assert await rows_read(connection, SEARCH.matches.sql, *among) == len(few)
    assert await rows_read(connection, SEARCH.candidates.sql, "failed", None, ROWS) == ROWS / 1000
    assert await rows_read(connection, SEARCH.candidates.sql, "owned", None, ROWS) == 0


async def test_a_page_is_full_however_far_apart_the_matches_are(
    connection: asyncpg.Connection[asyncpg.Record], database: Database
) -> None:
    wanted = TaskFilter(statuses=["FAILED", "COMPLETED"])
    newest = await list_tasks(database, wanted, limit=40)
    rest = await list_tasks(database, wanted, limit=40, after=newest.next)
    oldest = await list_tasks(database, wanted, order=TaskOrder.OLDEST_FIRST, limit=50)
    assert (len(newest.tasks), len(rest.tasks), rest.next) == (40, 10, None)
    assert [task.id for task in (*newest.tasks, *rest.tasks)] == [task.id for task in oldest.tasks][::-1]


async def test_a_page_whose_time_to_search_is_over_says_how_far_it_came_and_goes_on_from_there(
    connection: asyncpg.Connection[asyncpg.Record], database: Database
) -> None:
    wanted = TaskFilter(statuses=["FAILED", "COMPLETED"])
    first = await list_tasks(database, wanted, limit=40, max_search_time=AT_ONCE)
    second = await list_tasks(database, wanted, limit=40, max_search_time=AT_ONCE, after=first.next)
    whole = await list_tasks(database, wanted, limit=10)
    assert [task.id for task in (*first.tasks, *second.tasks)] == [task.id for task in whole.tasks]
    assert first.searched_to == sent_at_from_id(whole.tasks[0].id)
    assert whole.searched_to is None


async def test_a_search_that_finds_nothing_ends_at_the_end_of_the_table(
    connection: asyncpg.Connection[asyncpg.Record], database: Database
) -> None:
    nobody = await list_tasks(database, TaskFilter(names=["nobody"]), max_search_time=None)
    assert (nobody.tasks, nobody.next, nobody.searched_to) == ((), None, None)


def test_the_time_in_an_id_is_a_time_whatever_the_id() -> None:
    order = next_id_value(1_700_000_000_500, bytes)
    assert sent_at_from_id(UUID(format_id(order))) == datetime.fromtimestamp(1_700_000_000.5, UTC)
    assert sent_at_from_id(MAX_ID).year == 9999
