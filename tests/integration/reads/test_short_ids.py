"""Finding tasks by short id."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import pytest

from horsies.store.database import Database
from horsies_ops.reads.search import NEWEST_SEARCHED
from tests.support.store import ops_on

# Ids in sending order, more of them than are searched.
FILL = f"""
    INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, terminal_at)
    SELECT ('01890a5d-ac96-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'mail.send', now(), '', 'COMPLETED', now()
      FROM generate_series(1, {NEWEST_SEARCHED} + 100) AS n
"""


@pytest.fixture
async def connection(database_url: str) -> asyncpg.Connection[asyncpg.Record]:
    connection = await asyncpg.connect(database_url)
    await connection.execute(FILL)
    return connection


async def test_old_task_is_found_only_while_unfinished(
    connection: asyncpg.Connection[asyncpg.Record], database: Database
) -> None:
    oldest = UUID("01890a5d-ac96-7000-8000-000000000001")
    assert await ops_on(database).tasks_by_short_id("00000001") == ()
    for status in ("PENDING", "CLAIMED", "RUNNING"):
        await connection.execute(
            "UPDATE horsies_tasks SET status = $1, terminal_at = NULL WHERE id = $2", status, oldest
        )
        assert [(match.id, match.status) for match in await ops_on(database).tasks_by_short_id("00000001")] == [
            (oldest, status)
        ]
    await connection.close()


async def test_invalid_short_id_is_rejected(database: Database) -> None:
    for text in ("", "1234567", "123456789", "1234567g", "1234567%"):
        with pytest.raises(ValueError, match="invalid short id"):
            await ops_on(database).tasks_by_short_id(text)
