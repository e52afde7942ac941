"""The probe detects whether a listener receives notifications."""

from __future__ import annotations

import pytest

from horsies.errors import DatabaseUnreachable
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.listen import is_notify_delivered


async def test_listener_of_same_database_receives_probe(database: Database) -> None:
    assert await is_notify_delivered(database, database.connection_spec, within_s=10)


async def test_listener_of_another_database_receives_nothing(database: Database, empty_database: Database) -> None:
    assert not await is_notify_delivered(database, empty_database.connection_spec, within_s=0.1)


async def test_probe_raises_if_listener_cannot_connect(database: Database) -> None:
    nowhere = "postgresql://127.0.0.1:1/db"
    with pytest.raises(DatabaseUnreachable):
        await is_notify_delivered(database, ConnectionSpec(url=nowhere, masked_url=nowhere), within_s=1)
