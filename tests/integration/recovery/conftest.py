from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.support.rows import SweepDatabase, insert_listening_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from horsies.store.database import Database


@pytest.fixture
async def field(database: Database, database_url: str) -> AsyncIterator[SweepDatabase]:
    await insert_listening_worker(database_url)
    connection = await asyncpg.connect(database_url)
    yield SweepDatabase(database_url, database, connection)
    await connection.close()
