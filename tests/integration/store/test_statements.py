"""The server accepts every statement, and each returns the columns of its record."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any

import asyncpg
import pytest

from horsies.store.claims import CLAIMS
from horsies.store.database import LOCKS, Database
from horsies.store.listen import NOTIFY
from horsies.store.migrate import SCHEMA
from horsies.store.operators import OPERATORS
from horsies.store.queries import Query, every_query
from horsies.store.recovery import RECOVERY
from horsies.store.retention import RETENTION
from horsies.store.schedules import SCHEDULES
from horsies.store.tasks import TASKS
from horsies.store.workers import WORKERS
from horsies.store.workflows import WORKFLOW_CONTROL, WORKFLOWS
from horsies_ops.reads.events import EVENT_READS
from horsies_ops.reads.overview import COUNTERS, OVERVIEW, QUEUE_READS
from horsies_ops.reads.schedules import SCHEDULE_READS
from horsies_ops.reads.search import SEARCH
from horsies_ops.reads.server import SECURITY_READS, SERVER_READS
from horsies_ops.reads.stale import STALE_READS
from horsies_ops.reads.tasks import TASK_READS
from horsies_ops.reads.workers import WORKER_READS
from horsies_ops.reads.workflows import WORKFLOW_READS
from tests.support.databases import Cluster

TASK_QUERIES = (TASK_READS, SEARCH, STALE_READS)
SYSTEM_QUERIES = (SERVER_READS, SECURITY_READS, OVERVIEW, QUEUE_READS, WORKER_READS, EVENT_READS, COUNTERS)
READS = (*TASK_QUERIES, *SYSTEM_QUERIES, WORKFLOW_READS, SCHEDULE_READS)
STORE_ROWS = (TASKS, CLAIMS, WORKERS, RECOVERY, OPERATORS, RETENTION, SCHEDULES, WORKFLOWS, WORKFLOW_CONTROL)
STORE = (SCHEMA, NOTIFY, LOCKS, *STORE_ROWS)
EVERY_QUERY = list(every_query(*STORE, *READS))


@pytest.fixture(scope="module")
def untouched_url(cluster: Cluster) -> Iterator[str]:
    """One database for all statements: preparing them changes nothing."""
    with cluster.database(migrated=True) as url:
        yield url


@pytest.mark.parametrize("query", EVERY_QUERY, ids=lambda query: query.name)
async def test_statement_prepares_and_returns_columns_of_its_record(untouched_url: str, query: Query[Any]) -> None:
    connection = await asyncpg.connect(untouched_url)
    try:
        prepared = await connection.prepare(query.sql)
        columns = [attribute.name for attribute in prepared.get_attributes()]
        if query.is_tuple:  # filled by position
            assert columns == list(query.columns)
        elif query.columns:
            assert set(columns) == set(query.columns)
        else:
            assert len(columns) == (0 if query.row_type is NoneType else 1)
    finally:
        await connection.close()


async def test_pg_stat_activity_shows_statement_name(database: Database, database_url: str) -> None:
    await database.fetch(SERVER_READS.table_sizes)
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("SELECT query FROM pg_stat_activity WHERE application_name LIKE 'horsies%'")
    await connection.close()
    assert any(row["query"].startswith("/* server.table_sizes */ SELECT") for row in rows)
