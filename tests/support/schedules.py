"""Schedules under test: an app with simple tasks, stored schedules whose slots lie in the past, and their runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from horsies import AppConfig, Horsies, IntervalSchedule, PostgresConfig, TaskError, TaskResult, TaskSchedule
from horsies.client.schedules import encode_schedules
from horsies.scheduler.sync import SyncReport, sync_definitions
from horsies.store.database import Database
from tests.support.store import Connection

ANCHOR = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
EVERY_HOUR = IntervalSchedule(hours=1, anchor=ANCHOR)
"""Its next slot is due an hour after this process started, so that none becomes due while a test runs."""


def schedule_app(url: str, *schedules: TaskSchedule, name: str = "shop", **config: Any) -> Horsies:
    """An app with a task `add` and a failing task `fail`."""
    app = Horsies(AppConfig(name=name, broker=PostgresConfig(database_url=url), **config))

    @app.task("add")
    def add(a: int = 1, b: int = 2) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a + b)

    @app.task("fail")
    def fail() -> TaskResult[int, TaskError]:
        return TaskResult(err=TaskError(error_code="BROKEN"))

    app.add_schedules(schedules)
    return app


def hourly(name: str = "hourly", **options: Any) -> TaskSchedule:
    given: dict[str, Any] = {"name": name, "task_name": "add", "pattern": EVERY_HOUR, **options}
    return TaskSchedule(**given)


async def sync(
    database: Database, url: str, *schedules: TaskSchedule, name: str = "shop", **options: Any
) -> SyncReport:
    """Store schedules as the sync of an app does."""
    return await sync_app(database, schedule_app(url, *schedules, name=name), **options)


async def sync_app(database: Database, app: Horsies, **options: Any) -> SyncReport:
    encoded = encode_schedules(app, app.get_schedules())
    return await sync_definitions(database, encoded.owner, encoded.definitions, **options)


async def make_due(connection: Connection, slots: int, name: str = "hourly") -> datetime:
    """Move a schedule with `EVERY_HOUR` back, so that this many slots are due; returns the first one."""
    now: datetime = await connection.fetchval("SELECT clock_timestamp()")
    first = ANCHOR + ((now - ANCHOR) // HOUR - (slots - 1)) * HOUR
    await connection.execute("UPDATE horsies_schedule_state SET next_run_at = $2 WHERE schedule_name = $1", name, first)
    return first


async def outcomes(connection: Connection, name: str = "hourly") -> list[str]:
    """The outcomes of the runs of a schedule, oldest slot first."""
    sql = "SELECT outcome FROM horsies_schedule_runs WHERE schedule_name = $1 ORDER BY slot_at"
    return [row["outcome"] for row in await connection.fetch(sql, name)]


async def state_of(connection: Connection, name: str = "hourly") -> asyncpg.Record:
    row = await connection.fetchrow("SELECT * FROM horsies_schedule_state WHERE schedule_name = $1", name)
    assert row is not None
    return row


async def fired_ids(connection: Connection, name: str = "hourly") -> Sequence[UUID]:
    sql = "SELECT task_id FROM horsies_schedule_runs WHERE schedule_name = $1 AND outcome = 'fired' ORDER BY slot_at"
    return [row["task_id"] for row in await connection.fetch(sql, name)]


async def finish(connection: Connection, task_ids: Sequence[UUID], status: str = "COMPLETED") -> None:
    """End tasks without running them."""
    await connection.execute(
        """UPDATE horsies_tasks SET status = $2, terminal_at = now(), error_code = CASE WHEN $2 = 'FAILED' THEN 'X' END
            WHERE id = ANY($1)""",
        list(task_ids),
        status,
    )
