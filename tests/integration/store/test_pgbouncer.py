"""Behind PgBouncer in transaction mode no session state is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from horsies.store.connection import ConnectionSpec, StatementFailed
from horsies.store.database import Database
from horsies.store.migrate import schema_state
from horsies.store.queries import Query
from tests.support.databases import PGBOUNCER, pgbouncer
from tests.support.store import ops_on

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="needs the pgbouncer package")


@dataclass(frozen=True, slots=True)
class SessionState:
    search_path: str
    timeout: str
    prepared: int


STATE: Query[SessionState] = Query(
    name="test.state",
    sql="SELECT current_setting('search_path') AS search_path, current_setting('statement_timeout') AS timeout,"
    " (SELECT count(*) FROM pg_prepared_statements) AS prepared",
    row_type=SessionState,
)


@pytest.fixture
async def pooled(database_url: str) -> AsyncIterator[Database]:
    with pgbouncer(database_url, pool_size=2) as url:
        async with Database(ConnectionSpec(url=url, masked_url=url, schema="public", is_pooled=True)) as database:
            yield database


async def test_forty_clients_share_two_connections_with_correct_settings(pooled: Database) -> None:
    found = await asyncio.gather(*(pooled.fetch(STATE) for _ in range(40)))
    assert {row for rows in found for row in rows} == {SessionState("public", "31s", 0)}


async def test_schema_and_status_reads_work(pooled: Database) -> None:
    assert not (await schema_state(pooled)).pending
    assert (await ops_on(pooled).database_status()).is_current


async def test_settings_do_not_leak_to_the_next_client(pooled: Database) -> None:
    await pooled.fetch(STATE)
    async with Database(
        ConnectionSpec(url=pooled.connection_spec.url, masked_url="test", schema="other", is_pooled=True)
    ) as neighbour:
        (state,) = await neighbour.fetch(STATE)
    assert state.search_path == "other"
    (again,) = await pooled.fetch(STATE)
    assert again.search_path == "public"


async def test_read_only_works_behind_the_pooler(pooled: Database) -> None:
    spec = ConnectionSpec(url=pooled.connection_spec.url, masked_url="test", is_pooled=True, read_only=True)
    async with Database(spec) as viewer:
        with pytest.raises(StatementFailed, match="read-only"):
            await viewer.execute(Query(name="test.write", sql="DELETE FROM horsies_tasks", row_type=type(None)))
