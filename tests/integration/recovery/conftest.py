from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from horsies.store.database import Database
from tests.support.rows import SweepDatabase, insert_listening_worker


@pytest.fixture
async def sweeps(database: Database, database_url: str) -> AsyncIterator[SweepDatabase]:
    await insert_listening_worker(database_url)
    connection = await asyncpg.connect(database_url)
    yield SweepDatabase(database_url, database, connection)
    await connection.close()
