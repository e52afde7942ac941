"""The probe knows whether a listener would hear."""

from __future__ import annotations

import pytest

from horsies.errors import DatabaseUnreachable
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.listen import is_notify_delivered


async def test_a_listener_of_the_same_database_hears(database: Database) -> None:
    assert await is_notify_delivered(database, database.connection_spec, within_s=10)


async def test_a_listener_of_another_database_does_not(database: Database, empty_database: Database) -> None:
    assert not await is_notify_delivered(database, empty_database.connection_spec, within_s=0.1)


async def test_a_listener_that_cannot_connect_says_why(database: Database) -> None:
    nowhere = "postgresql://127.0.0.1:1/db"
    with pytest.raises(DatabaseUnreachable):
        await is_notify_delivered(database, ConnectionSpec(url=nowhere, masked_url=nowhere), within_s=1)
