"""Every statement we ship is understood by the server and returns the columns its record asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from horsies.store.actions import ACTIONS
from horsies.store.audit import AUDIT
from horsies.store.beats import BEATS
from horsies.store.claims import CLAIMS
from horsies.store.events import EVENTS
from horsies.store.execution import EXECUTION
from horsies.store.finishes import FINISHES
from horsies.store.fleet import FLEET
from horsies.store.flow_control import FLOW_CONTROL
from horsies.store.flow_healing import FLOW_HEALING
from horsies.store.flow_reads import FLOW_READS
from horsies.store.flows import FLOWS
from horsies.store.migrate import SCHEMA
from horsies.store.queries import Query, every_query
from horsies.store.queues import QUEUES
from horsies.store.recovery import RECOVERY
from horsies.store.retention import RETENTION
from horsies.store.tasks import TASKS
from horsies.store.workers import WORKERS
from horsies_ops.reads.clock import CLOCK
from horsies_ops.reads.diagnosis import DIAGNOSIS
from horsies_ops.reads.events import EVENT_READS
from horsies_ops.reads.lookup import LOOKUP
from horsies_ops.reads.matching import MATCHING
from horsies_ops.reads.metering import METERING
from horsies_ops.reads.overview import OVERVIEW
from horsies_ops.reads.payloads import PAYLOADS
from horsies_ops.reads.queues import QUEUE_READS
from horsies_ops.reads.schedules import SCHEDULE_READS
from horsies_ops.reads.status import STATUS
from horsies_ops.reads.storage import STORAGE
from horsies_ops.reads.tasks import TASK_READS
from horsies_ops.reads.throughput import THROUGHPUT
from horsies_ops.reads.verdicts import VERDICTS
from horsies_ops.reads.workers import WORKER_READS
from horsies_ops.reads.workflows import WORKFLOW_READS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horsies.store.db import Database
    from tests.support.cluster import Cluster

TASK_LISTS = (CLOCK, TASK_READS, PAYLOADS, MATCHING, LOOKUP, VERDICTS)
SYSTEM = (OVERVIEW, QUEUE_READS, THROUGHPUT, WORKER_READS, EVENT_READS, STORAGE, DIAGNOSIS, METERING)
READS = (*TASK_LISTS, *SYSTEM, WORKFLOW_READS, SCHEDULE_READS)
WORKER_WRITES = (CLAIMS, FINISHES, BEATS, EVENTS, FLEET, RECOVERY)
FLOW_QUERIES = (FLOWS, FLOW_CONTROL, FLOW_HEALING, FLOW_READS)
OPERATORS_WRITES = (ACTIONS, AUDIT, QUEUES, RETENTION)
EVERY_QUERY = list(
    every_query(SCHEMA, TASKS, EXECUTION, STATUS, WORKERS, *READS, *WORKER_WRITES, *OPERATORS_WRITES, *FLOW_QUERIES)
)


@pytest.fixture(scope="module")
def untouched_url(cluster: Cluster) -> Iterator[str]:
    """One database for all statements: to prepare one changes nothing."""
    with cluster.database(migrated=True) as url:
        yield url


@pytest.mark.parametrize("query", EVERY_QUERY, ids=lambda query: query.name)
async def test_statement_prepares_and_has_the_columns_of_its_record(untouched_url: str, query: Query[Any]) -> None:
    connection = await asyncpg.connect(untouched_url)
    try:
        prepared = await connection.prepare(query.sql)
        assert {attribute.name for attribute in prepared.get_attributes()} == set(query.columns)
    finally:
        await connection.close()


async def test_a_statement_shows_its_name_in_pg_stat_activity(database: Database, database_url: str) -> None:
    await database.fetch(STATUS.tables)
    connection = await asyncpg.connect(database_url)
    seen = await connection.fetch("SELECT query FROM pg_stat_activity WHERE application_name LIKE 'horsies%'")
    await connection.close()
    assert any(row["query"].startswith("/* status.tables */ SELECT") for row in seen)
