"""The floor: what plain asyncpg reaches on the same server, with nothing of ours in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.rounds import Work
from bench.server import connected

PAYLOAD = '{"args":[1,"two"],"kwargs":{}}'
BATCH_ROWS = 1000
CLAIM_ROWS = 100

INSERT = "INSERT INTO floor_tasks (payload) VALUES ($1::jsonb) RETURNING id"
INSERT_MANY = "INSERT INTO floor_tasks (payload) SELECT unnest($1::jsonb[])"
FILL = "INSERT INTO floor_claims (payload) SELECT unnest($1::jsonb[])"
NOTIFY = "SELECT pg_notify('floor', $1)"
INSERT_AND_NOTIFY = "WITH new AS (INSERT INTO floor_tasks (payload) VALUES ($1::jsonb)) SELECT pg_notify('floor', '')"
CLAIM = """
UPDATE floor_claims SET status = 'RUNNING'
 WHERE id = ANY(ARRAY(SELECT id FROM floor_claims WHERE status = 'PENDING' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING id
"""
COMPLETE = "UPDATE floor_claims SET status = 'COMPLETED', result = '{\"ok\":null}' WHERE id = ANY($1::bigint[])"


@asynccontextmanager
async def inserting_one_by_one(url: str) -> AsyncGenerator[Work]:
    """One connection, each row awaited before the next."""
    async with connected(url) as connection:

        async def insert(rows: int) -> None:
            for _ in range(rows):
                await connection.fetch(INSERT, PAYLOAD)

        yield insert


@asynccontextmanager
async def inserting_in_bulk(url: str) -> AsyncGenerator[Work]:
    """One transaction, a thousand rows a statement, from a list that is ready made."""
    async with connected(url) as connection:
        batch = [PAYLOAD] * BATCH_ROWS

        async def insert(rows: int) -> None:
            async with connection.transaction():
                for _ in range(rows // BATCH_ROWS):
                    await connection.execute(INSERT_MANY, batch)

        yield insert


@asynccontextmanager
async def claiming_and_completing(url: str) -> AsyncGenerator[Work]:
    """One connection; a hundred tasks claimed by one statement and completed by another."""
    async with connected(url) as connection:

        async def claim_and_complete(rows: int) -> None:
            for _ in range(rows // CLAIM_ROWS):
                claimed = await connection.fetch(CLAIM, CLAIM_ROWS)
                await connection.execute(COMPLETE, [row["id"] for row in claimed])

        yield claim_and_complete


async def fill(url: str, rows: int) -> None:
    """Tasks for the others to claim."""
    async with connected(url) as connection:
        await connection.execute(FILL, [PAYLOAD] * rows)


@asynccontextmanager
async def notifying(url: str) -> AsyncGenerator[Work]:
    """From NOTIFY until it is heard."""
    async with _heard(url, NOTIFY) as work:
        yield work


@asynccontextmanager
async def inserting_and_notifying(url: str) -> AsyncGenerator[Work]:
    """From an INSERT that notifies until it is heard."""
    async with _heard(url, INSERT_AND_NOTIFY) as work:
        yield work


@asynccontextmanager
async def _heard(url: str, statement: str) -> AsyncGenerator[Work]:
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    async with connected(url) as listener, connected(url) as sender:
        await listener.add_listener("floor", hear)

        async def say(times: int) -> None:
            for _ in range(times):
                heard.clear()
                await sender.execute(statement, PAYLOAD)
                await heard.wait()

        yield say
