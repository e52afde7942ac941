"""Sessions that wait for each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.work import Connection

SOMEONE_WAITS = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')
"""


async def until_someone_waits(connection: Connection) -> None:
    """Look until a session of this database waits for a lock; also from inside a transaction."""
    async with asyncio.timeout(30):
        while not await connection.fetchval(SOMEONE_WAITS):
            # What a transaction has seen of the others' activity, it sees until its end unless it asks anew.
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0.01)
