"""A plain connection, to move slots into the past and to read rows without the library."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.store import Connection


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
