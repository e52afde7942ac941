"""The baseline: what plain asyncpg achieves on the same server, without horsies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.rounds import Work
from bench.server import connect

PAYLOAD = '{"args":[1,"two"],"kwargs":{}}'
BATCH_ROWS = 1000
CLAIM_ROWS = 100

INSERT = "INSERT INTO baseline_tasks (payload) VALUES ($1::jsonb) RETURNING id"
INSERT_MANY = "INSERT INTO baseline_tasks (payload) SELECT unnest($1::jsonb[])"
FILL = "INSERT INTO baseline_claims (payload) SELECT unnest($1::jsonb[])"
NOTIFY = "SELECT pg_notify('baseline', $1)"
INSERT_AND_NOTIFY = """
WITH new AS (INSERT INTO baseline_tasks (payload) VALUES ($1::jsonb)) SELECT pg_notify('baseline', '')
"""
CLAIM = """
UPDATE baseline_claims SET status = 'RUNNING'
 WHERE id = ANY(ARRAY(
           SELECT id FROM baseline_claims WHERE status = 'PENDING' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING id
"""
COMPLETE = "UPDATE baseline_claims SET status = 'COMPLETED', result = '{\"ok\":null}' WHERE id = ANY($1::bigint[])"


@asynccontextmanager
async def insert_one_by_one(url: str) -> AsyncGenerator[Work]:
    """Insert on one connection, one row after another."""
    async with connect(url) as connection:

        async def insert(rows: int) -> None:
            for _ in range(rows):
                await connection.fetch(INSERT, PAYLOAD)

        yield insert


@asynccontextmanager
async def insert_in_bulk(url: str) -> AsyncGenerator[Work]:
    """Insert in one transaction, 1,000 rows per statement."""
    async with connect(url) as connection:
        batch = [PAYLOAD] * BATCH_ROWS

        async def insert(rows: int) -> None:
            async with connection.transaction():
                for _ in range(rows // BATCH_ROWS):
                    await connection.execute(INSERT_MANY, batch)

        yield insert


@asynccontextmanager
async def claim_and_complete(url: str) -> AsyncGenerator[Work]:
    """Claim 100 rows with one statement and complete them with another, on one connection."""
    async with connect(url) as connection:

        async def work(rows: int) -> None:
            for _ in range(rows // CLAIM_ROWS):
                claimed = await connection.fetch(CLAIM, CLAIM_ROWS)
                await connection.execute(COMPLETE, [row["id"] for row in claimed])

        yield work


async def fill(url: str, rows: int) -> None:
    """Insert rows for `claim_and_complete`."""
    async with connect(url) as connection:
        await connection.execute(FILL, [PAYLOAD] * rows)


@asynccontextmanager
async def notify(url: str) -> AsyncGenerator[Work]:
    """Send a NOTIFY and wait until it is received."""
    async with _wait_for_notification(url, NOTIFY) as work:
        yield work


@asynccontextmanager
async def insert_and_notify(url: str) -> AsyncGenerator[Work]:
    """Insert a row with a NOTIFY and wait until it is received."""
    async with _wait_for_notification(url, INSERT_AND_NOTIFY) as work:
        yield work


@asynccontextmanager
async def _wait_for_notification(url: str, statement: str) -> AsyncGenerator[Work]:
    received = asyncio.Event()

    def on_notification(*_: object) -> None:
        received.set()

    async with connect(url) as listener, connect(url) as sender:
        await listener.add_listener("baseline", on_notification)

        async def work(times: int) -> None:
            for _ in range(times):
                received.clear()
                await sender.execute(statement, PAYLOAD)
                await received.wait()

        yield work
