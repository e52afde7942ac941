"""Pytest fixtures; enable them with `pytest_plugins = ["horsies.testing.pytest_plugin"]` in the top conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from horsies.testing.databases import TemporaryServer, temporary_server


@pytest.fixture(scope="session")
def horsies_server() -> Iterator[TemporaryServer]:
    """A server shared by all tests of the session; started when first needed."""
    with temporary_server() as server:
        yield server


@pytest.fixture
def horsies_database(horsies_server: TemporaryServer) -> Iterator[str]:
    """URL of a new database with the current schema, one per test."""
    with horsies_server.database() as url:
        yield url
