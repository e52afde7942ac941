"""Deadlocks, as the server counts them."""

# ruff: noqa: ASYNC110  # the database sets no events

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.work import Connection

OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


async def deadlocks(connection: Connection) -> int:
    """How many there were in this database; asked when all others have left it, for a session counts as it goes."""
    async with asyncio.timeout(20):
        while await connection.fetchval(OTHERS):
            await asyncio.sleep(0.01)
    return await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
