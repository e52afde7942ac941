from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.support.silence import a_worker
from tests.support.swept import Field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from horsies.store.database import Database


@pytest.fixture
async def field(database: Database, database_url: str) -> AsyncIterator[Field]:
    await a_worker(database_url)
    connection = await asyncpg.connect(database_url)
    yield Field(database_url, database, connection)
    await connection.close()
