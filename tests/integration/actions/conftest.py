from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from horsies.model.settings import PostgresConfig
from horsies_ops.ops import Ops, open_ops
from tests.support.store import Connection


@pytest.fixture
async def ops(database_url: str) -> AsyncIterator[Ops]:
    """The toolkit with the operator `ada`."""
    async with open_ops(PostgresConfig(database_url=database_url), actor="ada") as ops:
        yield ops


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """A plain connection to the test database, to read rows directly."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
