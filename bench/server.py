"""The server that is measured: embedded, of its own, and durable."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg

from horsies.embedded import EmbeddedServer
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.migrate import migrate

# A narrow queue without anything that a product needs: what is measured against it pays for its features. Rows to be
# claimed have a table of their own: one that was filled has room for more, which the table of sends has not.
FLOOR_TABLES = "".join(
    f"""
CREATE TABLE {name} (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status  text   NOT NULL DEFAULT 'PENDING',
    payload jsonb  NOT NULL,
    result  jsonb
);
CREATE INDEX {name}_pending ON {name} (id) WHERE status = 'PENDING';
"""
    for name in ("floor_tasks", "floor_claims")
)


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)


@contextmanager
def durable_server() -> Generator[str]:
    """The address of a new server that flushes every commit; it is thrown away afterwards."""
    # Whoever ends a measurement early does not leave a server behind.
    signal.signal(signal.SIGTERM, _leave)
    folder = Path(tempfile.mkdtemp(prefix="horsies-bench-"))
    folder.chmod(0o755)
    try:
        with EmbeddedServer(folder / "pg", durable=True).use() as lease:
            yield lease.url
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def make_tables(url: str) -> None:
    async with Database(ConnectionSpec(url=url, masked_url=url)) as database:
        await migrate(database)
    async with connected(url) as connection:
        await connection.execute(FLOOR_TABLES)


async def clear(url: str) -> None:
    """Empty tables and a checkpoint, so that no measurement pays for the one before it."""
    async with connected(url) as connection:
        await connection.execute("TRUNCATE floor_tasks, floor_claims, horsies_tasks")
        await connection.execute("CHECKPOINT")


async def refuse_unsafe(url: str) -> None:
    """Durability is never traded: figures of a server that does not flush are worth nothing."""
    async with connected(url) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            value = await connection.fetchval("SELECT current_setting($1)", setting)
            if value != "on":
                raise RuntimeError(f"{setting} is {value} on the measured server")
