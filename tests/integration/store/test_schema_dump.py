from __future__ import annotations

import pytest

from horsies.embedded import find_binaries
from horsies.errors import ConfigurationError
from tests.support.databases import DUMP, MAJOR, dump


def test_the_documented_schema_is_the_one_that_the_migrations_make(database_url: str) -> None:
    try:
        find_binaries(MAJOR)
    except ConfigurationError:
        pytest.skip(f"pg_dump of PostgreSQL {MAJOR} is not here")
    assert dump(database_url) == DUMP.read_text(), "run: make schema"
