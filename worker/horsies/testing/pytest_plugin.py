"""Fixtures for pytest: `pytest_plugins = ["horsies.testing.pytest_plugin"]` in the outermost conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from horsies.testing.databases import TemporaryServer, temporary_server


@pytest.fixture(scope="session")
def horsies_server() -> Iterator[TemporaryServer]:
    """A server that all tests of the session share; it starts with the first that asks for a database."""
    with temporary_server() as server:
        yield server


@pytest.fixture
def horsies_database(horsies_server: TemporaryServer) -> Iterator[str]:
    """The URL of a fresh database with the current schema, one for each test."""
    with horsies_server.database() as url:
        yield url
