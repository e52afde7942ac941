"""A shared database per module; each test starts with empty task tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from horsies import Horsies
from tests.support.databases import Cluster
from tests.support.store import fetch_rows, make_app


@pytest.fixture(scope="module")
def shared_url(cluster: Cluster) -> Iterator[str]:
    """One database for all tests of a module; they may change only rows."""
    with cluster.database(migrated=True) as url:
        yield url


@pytest.fixture
def database_url(shared_url: str) -> Iterator[str]:
    yield shared_url
    fetch_rows(shared_url, "TRUNCATE horsies_tasks, horsies_task_attempts")


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Horsies]:
    """An app for asynchronous tests."""
    app = make_app(database_url)
    yield app
    await app.close_async()


@pytest.fixture
def blocking_app(database_url: str) -> Iterator[Horsies]:
    """An app for tests without an event loop."""
    app = make_app(database_url)
    yield app
    app.close()


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A plain connection, independent of the library."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
