"""A row whose time no calendar holds is shown, and hides no other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from horsies.model.settings import PostgresConfig
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.queries import Query
from horsies_ops.cli.output import json_line
from horsies_ops.ops import open_ops
from horsies_ops.reads.filters import TaskFilter
from tests.support.rows import insert_task


async def _a_task_due_at(url: str, instant: str) -> UUID:
    task_id = await insert_task(url)
    connection = await asyncpg.connect(url)
    await connection.execute(f"UPDATE horsies_tasks SET enqueued_at = '{instant}', next_retry_at = '{instant}'")
    await connection.close()
    return task_id


@pytest.mark.parametrize("instant", ["10000-01-01 00:00+00", "infinity", "-infinity", "4700-01-01 00:00+00 BC"])
async def test_a_task_that_is_due_out_of_all_time_can_be_looked_at(database_url: str, instant: str) -> None:
    task_id = await _a_task_due_at(database_url, instant)
    async with open_ops(PostgresConfig(database_url=database_url)) as ops:
        page, shown = await ops.list_tasks(TaskFilter()), await ops.task(task_id)
        seen = (page, shown, await ops.overview(), await ops.list_queues(), await ops.stale_candidates())
    assert [task.id for task in page.tasks] == [task_id]
    assert all(json_line(each) for each in seen)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC),
        datetime(1, 1, 2, tzinfo=UTC),
        timedelta(days=400, seconds=3, microseconds=5),
        timedelta(days=-1, microseconds=1),
        timedelta(0),
    ],
    ids=str,
)
async def test_what_a_reader_sends_comes_back_as_it_was(database_url: str, value: datetime | timedelta) -> None:
    kind = "timestamptz" if isinstance(value, datetime) else "interval"
    async with Database(ConnectionSpec(url=database_url, masked_url="test", read_only=True)) as reader:
        (row,) = await reader.fetch_raw(
            Query(name="echo", sql=f"SELECT $1::{kind} AS value", row_type=type(None)), value
        )
    assert row["value"] == value
