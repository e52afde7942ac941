from __future__ import annotations

import pytest

from horsies.embedded import find_binaries
from horsies.errors import ConfigurationError
from tests.support.databases import PG_DUMP_VERSION, SCHEMA_FILE, dump_schema


def test_documented_schema_matches_migrations(database_url: str) -> None:
    try:
        find_binaries(PG_DUMP_VERSION)
    except ConfigurationError:
        pytest.skip(f"pg_dump of PostgreSQL {PG_DUMP_VERSION} not found")
    assert dump_schema(database_url) == SCHEMA_FILE.read_text(), "run: make schema"
