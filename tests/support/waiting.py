"""Sessions that wait for each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.work import Connection

SOMEONE_WAITS = """
SELECT count(*) >= $1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def until_someone_waits(connection: Connection, *, sessions: int = 1) -> None:
    """Look until so many sessions of this database wait for a lock; also from inside a transaction."""
    async with asyncio.timeout(30):
        while not await connection.fetchval(SOMEONE_WAITS, sessions):
            # What a transaction has seen of the others' activity, it sees until its end unless it asks anew.
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0.01)
