"""The PostgreSQL cluster of a test run."""

from __future__ import annotations

import asyncio
import fcntl
import os
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from horsies.embedded import EmbeddedServer
from horsies.store.connection import Link
from horsies.store.database import Database
from horsies.store.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Generator

CLUSTER_FOLDER = "HORSIES_TEST_CLUSTER"
TEMPLATE = "horsies_template"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running server whose databases are thrown away."""

    url: str

    @classmethod
    @contextmanager
    def in_this_run(cls) -> Generator[Cluster]:
        """Start or join the run's server; the last process of the run to leave stops it."""
        folder = Path(os.environ[CLUSTER_FOLDER])
        # Autovacuum comes when it likes, and its transactions count as ours: tests that count would fail at random.
        settings = {"max_connections": "300", "autovacuum_naptime": "1d"}
        server = EmbeddedServer(folder / "pg", durable=False, settings=settings)
        with server.use() as lease:
            cluster = cls(lease.url)
            with (folder / "template.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                asyncio.run(cluster._make_template())
            yield cluster

    def url_of(self, name: str) -> str:
        head, query = self.url.split("?")
        return f"{head.rsplit('/', 1)[0]}/{name}?{query}"

    @contextmanager
    def database(self, *, migrated: bool) -> Generator[str]:
        name = f"test_{uuid.uuid4().hex}"
        template = TEMPLATE if migrated else "template0"
        # A file copy of a small template takes a third of the time of the default strategy.
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield self.url_of(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def run(self, sql: str) -> None:
        """Run one administrative statement."""
        asyncio.run(self._run(sql))

    async def _run(self, sql: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def _make_template(self) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            if await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", TEMPLATE):
                return
            await connection.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
        finally:
            await connection.close()
        url = self.url_of(TEMPLATE)
        async with Database(Link(url=url, masked_url=url)) as database:
            await migrate(database)
