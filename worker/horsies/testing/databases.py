"""Databases with the current schema, on a server of their own, gone afterwards."""

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
    """A running server, and a template from which a database is made in a moment."""

    connection_spec: ConnectionSpec

    @contextmanager
    def database(self) -> Generator[str]:
        """Yield the URL of a fresh database; it is dropped in the end, whoever is still connected."""
        name = f"test_{uuid4().hex}"
        BRIDGE.run(create_database(self.connection_spec, name, template=TEMPLATE))
        try:
            yield self._spec_for(name).url
        finally:
            BRIDGE.run(drop_database(self.connection_spec, name))

    async def make_template(self) -> None:
        await create_database(self.connection_spec, TEMPLATE, template="template0")
        async with Database(self._spec_for(TEMPLATE)) as database:
            await migrate(database)

    def _spec_for(self, name: str) -> ConnectionSpec:
        head, _, query = self.connection_spec.url.partition("?")
        url = f"{head.rpartition('/')[0]}/{name}?{query}"
        return replace(self.connection_spec, url=url, masked_url=url)


@contextmanager
def temporary_server() -> Generator[TemporaryServer]:
    """Start an embedded PostgreSQL that forgets everything in the end; for many databases, one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-testing-"))
    folder.chmod(0o711)  # as root the server runs as another user, who must be able to enter
    try:
        with EmbeddedServer(folder / "pg", durable=False).use() as lease:
            server = TemporaryServer(ConnectionSpec(url=lease.url, masked_url=lease.url))
            BRIDGE.run(server.make_template())
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def temporary_database() -> Generator[str]:
    """Yield the URL of a fresh database with the current schema, on a server of its own; a few seconds to start."""
    with temporary_server() as server, server.database() as url:
        yield url


@asynccontextmanager
async def temporary_database_async() -> AsyncGenerator[str]:
    """The same inside a running event loop."""
    manager = temporary_database()
    url = await asyncio.to_thread(manager.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


# Pointing an app that exists already at another database.


@contextmanager
def using_database(app: Horsies, url: str) -> Generator[None]:
    """Inside the block `app` uses the database at `url`, whatever its settings say.

    For apps made at import, which is before any fixture. Enter and leave it outside event loops: connections of the
    app are closed at both ends.
    """
    broker = app.get_broker()
    app.close()
    before = broker.settings
    broker.settings = before.model_copy(
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
        broker.settings = before
