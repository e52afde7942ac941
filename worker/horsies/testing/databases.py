"""Temporary databases with the current schema, on a temporary server."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from horsies.app import Horsies
from horsies.embedded import EmbeddedServer
from horsies.model.settings.broker import DatabaseUrl
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.endpoint import create_database, drop_database
from horsies.store.migrate import migrate
from horsies.sync import BRIDGE

TEMPLATE = "horsies_template"


@dataclass(frozen=True, slots=True)
class TemporaryServer:
    """A running server with a template database, from which new databases are copied quickly."""

    connection_spec: ConnectionSpec

    @contextmanager
    def database(self) -> Generator[str]:
        """Yield the URL of a new database; it is dropped at the end, even if connections are still open."""
        name = f"test_{uuid4().hex}"
        BRIDGE.run(create_database(self.connection_spec, name, template=TEMPLATE))
        try:
            yield self._spec_for(name).url
        finally:
            BRIDGE.run(drop_database(self.connection_spec, name))

    async def make_template(self) -> None:
        # template0 never has open connections, which would block the copy.
        await create_database(self.connection_spec, TEMPLATE, template="template0")
        async with Database(self._spec_for(TEMPLATE)) as database:
            await migrate(database)

    def _spec_for(self, name: str) -> ConnectionSpec:
        head, _, query = self.connection_spec.url.partition("?")
        url = f"{head.rpartition('/')[0]}/{name}?{query}"
        return replace(self.connection_spec, url=url, masked_url=url)


@contextmanager
def temporary_server() -> Generator[TemporaryServer]:
    """Start an embedded PostgreSQL server for many databases; it and its data are removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-testing-"))
    folder.chmod(0o711)  # for root the server runs as another user, who needs access
    try:
        # Not durable (no fsync): the data is thrown away, and tests run much faster.
        with EmbeddedServer(folder / "pg", durable=False, linger_s=0).use() as handle:
            server = TemporaryServer(ConnectionSpec(url=handle.url, masked_url=handle.url))
            BRIDGE.run(server.make_template())
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def temporary_database() -> Generator[str]:
    """Yield the URL of a new database with the current schema on its own server; takes a few seconds to start."""
    with temporary_server() as server, server.database() as url:
        yield url


@asynccontextmanager
async def temporary_database_async() -> AsyncGenerator[str]:
    """Like `temporary_database`, inside a running event loop."""
    # In a thread: it blocks for seconds, and `BRIDGE.run` must not be called on an event loop.
    manager = temporary_database()
    url = await asyncio.to_thread(manager.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


@contextmanager
def using_database(app: Horsies, url: str) -> Generator[None]:
    """Inside the block `app` uses the database at `url` instead of the configured one.

    For apps created at import, before any fixture runs. Enter and leave the block outside event loops: the app's
    connections are closed both times.
    """
    broker = app.get_broker()
    app.close()
    configured = broker.settings
    broker.settings = configured.model_copy(
        update={
            "database_url": DatabaseUrl.parse(url),
            "session_database_url": None,
            "pgbouncer_transaction_mode": False,
        }
    )
    try:
        yield
    finally:
        app.close()
        broker.settings = configured
