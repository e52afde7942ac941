"""Rows with times outside the range of `datetime` can be read."""

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


async def _insert_task_due_at(url: str, instant: str) -> UUID:
    task_id = await insert_task(url)
    connection = await asyncpg.connect(url)
    await connection.execute(f"UPDATE horsies_tasks SET enqueued_at = '{instant}', next_retry_at = '{instant}'")
    await connection.close()
    return task_id


@pytest.mark.parametrize("instant", ["10000-01-01 00:00+00", "infinity", "-infinity", "4700-01-01 00:00+00 BC"])
async def test_task_due_beyond_datetime_range_can_be_read(database_url: str, instant: str) -> None:
    task_id = await _insert_task_due_at(database_url, instant)
    async with open_ops(PostgresConfig(database_url=database_url)) as ops:
        page, shown = await ops.list_tasks(TaskFilter()), await ops.task(task_id)
        results = (page, shown, await ops.overview(), await ops.list_queues(), await ops.stale_candidates())
    assert [task.id for task in page.tasks] == [task_id]
    assert all(json_line(result) for result in results)


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
async def test_times_survive_a_round_trip(database_url: str, value: datetime | timedelta) -> None:
    kind = "timestamptz" if isinstance(value, datetime) else "interval"
    async with Database(ConnectionSpec(url=database_url, masked_url="test", read_only=True)) as reader:
        (row,) = await reader.fetch_raw(
            Query(name="echo", sql=f"SELECT $1::{kind} AS value", row_type=type(None)), value
        )
    assert row["value"] == value
