from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.store import Connection


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """A plain connection to the test database."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
