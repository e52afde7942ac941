"""A gate at a commit: whoever is about to store what it names waits there, and may die waiting."""

# ruff: noqa: ASYNC110  # the database sets no events

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from tests.support.ledger import POLL_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.support.work import Connection

KEEPER = """
CREATE OR REPLACE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$
"""
WAITING = """
SELECT l.pid
  FROM pg_locks AS l
  JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
 WHERE l.locktype = 'advisory' AND l.objid = 4711 AND NOT l.granted
"""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A write, by the rows that make it."""

    table: str
    event: str
    condition: str


class Gate:
    """Holds commits of one boundary, the last thing before they are stored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str, boundary: Boundary) -> AsyncGenerator[Gate]:
        connection: Connection = await asyncpg.connect(url)
        try:
            await connection.execute(KEEPER)
            await connection.execute("SELECT pg_advisory_lock(4711)")
            # A deferred trigger fires when all else of its transaction is done.
            await connection.execute(
                f"CREATE CONSTRAINT TRIGGER gate AFTER {boundary.event} ON {boundary.table} DEFERRABLE INITIALLY"
                f" DEFERRED FOR EACH ROW WHEN ({boundary.condition}) EXECUTE FUNCTION wait_at_the_gate()"
            )
            yield cls(connection)
            await connection.execute(f"DROP TRIGGER gate ON {boundary.table}")
        finally:
            await connection.close()

    async def until_someone_waits(self) -> None:
        async with asyncio.timeout(30):
            while not await self._connection.fetch(WAITING):
                await asyncio.sleep(POLL_S)

    async def open(self) -> None:
        """What waits is stored, also for those who are dead by now."""
        await self._connection.execute("SELECT pg_advisory_unlock(4711)")

    async def turn_back(self) -> None:
        """Nothing of what waits is stored."""
        await self._connection.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM ({WAITING}) AS waiting")
        await self.open()
