"""The measured server: a private, durable embedded PostgreSQL."""

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

# A minimal queue, so that ratios show the cost of features. Claimed rows have their own table, because updates
# leave free space in a table that inserts would benefit from.
BASELINE_TABLES = "".join(
    f"""
CREATE TABLE {name} (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status  text   NOT NULL DEFAULT 'PENDING',
    payload jsonb  NOT NULL,
    result  jsonb
);
CREATE INDEX {name}_pending ON {name} (id) WHERE status = 'PENDING';
"""
    for name in ("baseline_tasks", "baseline_claims")
)


def _exit_on_signal(number: int, _frame: object) -> None:
    sys.exit(128 + number)


@contextmanager
def durable_server() -> Generator[str]:
    """Start a new server that flushes every commit, yield its URL, and delete it afterwards."""
    # Stop the server if the benchmark is terminated.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    folder = Path(tempfile.mkdtemp(prefix="horsies-bench-"))
    folder.chmod(0o755)
    try:
        with EmbeddedServer(folder / "pg", durable=True, linger_s=0).use() as server:
            yield server.url
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def connect(url: str) -> AsyncGenerator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def create_tables(url: str) -> None:
    async with Database(ConnectionSpec(url=url, masked_url=url)) as database:
        await migrate(database)
    async with connect(url) as connection:
        await connection.execute(BASELINE_TABLES)


async def clear(url: str) -> None:
    """Truncate the tables and checkpoint, so that a measurement does not affect the next one."""
    async with connect(url) as connection:
        await connection.execute("TRUNCATE baseline_tasks, baseline_claims, horsies_tasks")
        await connection.execute("CHECKPOINT")


async def require_durable(url: str) -> None:
    """Raise if the server does not flush every commit."""
    async with connect(url) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            value = await connection.fetchval("SELECT current_setting($1)", setting)
            if value != "on":
                raise RuntimeError(f"{setting} is {value} on the measured server")
