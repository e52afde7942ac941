"""A plain connection, and a driver that runs workflows without workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from horsies.store.database import Database
from tests.support.store import Connection
from tests.support.workflows import WorkflowDriver


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """A plain connection to the test database, to read rows without the library."""
    connection: Any = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
def driver(database: Database) -> WorkflowDriver:
    return WorkflowDriver(database)
