"""Storage of the tables, and cleanup through `Ops`."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from horsies.errors import Refused
from horsies.model.retention import RetentionWindows
from horsies.store.database import Database
from horsies_ops.actions.report import ActionProgress
from horsies_ops.ops import connect
from tests.support.rows import HOUR, count_rows, insert_finished_task
from tests.support.store import ops_on

TASKS = RetentionWindows(terminal_records=HOUR, batch_size=2)


async def test_tables_are_listed_largest_first_with_dead_rows(database: Database, database_url: str) -> None:
    await insert_finished_task(database_url, age=2 * HOUR)
    connection = await asyncpg.connect(database_url)
    await connection.execute("UPDATE horsies_tasks SET priority = 7")
    await connection.execute("SELECT pg_stat_force_next_flush()")
    await connection.close()
    found = await ops_on(database).storage()
    sizes = [table.bytes for table in found.tables]
    (tasks,) = [table for table in found.tables if table.name == "horsies_tasks"]
    assert sizes == sorted(sizes, reverse=True)
    assert (tasks.rows, tasks.dead_rows, tasks.dead_share) == (1, 1, 0.5)
    assert 0 <= found.notify_queue_usage < 1


async def test_longest_transaction_is_reported_with_its_pid(database: Database, database_url: str) -> None:
    connection = await asyncpg.connect(database_url, server_settings={"application_name": "psql"})
    async with connection.transaction():
        await connection.fetch("SELECT 1")
        longest = (await ops_on(database).storage()).longest_transaction
        assert longest is not None
        assert (longest.pid, longest.application_name) == (connection.get_server_pid(), "psql")
        assert timedelta() < longest.age < timedelta(minutes=1)
    await connection.close()


async def test_storage_needs_none_of_our_tables(empty_database: Database) -> None:
    assert (await ops_on(empty_database).storage()).tables == ()


async def test_cleanup_reports_progress_and_has_one_audit_entry(database_url: str) -> None:
    for _ in range(5):
        await insert_finished_task(database_url, age=2 * HOUR)
    progress: list[ActionProgress] = []
    async with connect(database_url, actor="ana") as ops:
        report = await ops.cleanup(TASKS, progress=progress.append)
    assert [(step.done, step.total) for step in progress] == [(2, 5), (4, 5), (5, 5)]
    assert (report.matched, report.affected, report.cleaned.is_complete) == (5, 5, True)
    assert await count_rows(database_url, "horsies_audit") == 1


async def test_read_only_connection_counts_but_does_not_delete(database_url: str) -> None:
    await insert_finished_task(database_url, age=2 * HOUR)
    async with connect(database_url, read_only=True) as ops:
        report = await ops.cleanup(TASKS, dry_run=True)
        assert (report.matched, report.affected, report.audit_id) == (1, 0, None)
        with pytest.raises(Refused):
            await ops.cleanup(TASKS)
    assert await count_rows(database_url, "horsies_tasks") == 1
