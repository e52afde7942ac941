"""A server of the test's own that is taken away and brought back, with the ledger on another."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg

from horsies.embedded import EmbeddedServer
from tests.support.embedded import server_process
from tests.support.ledger import Entry, Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


class OwnServer:
    """An embedded server that may crash: what was committed is there when it is back."""

    def __init__(self, folder: Path) -> None:
        # Only a crash of the machine needs what is left out here.
        self._server = EmbeddedServer(folder, durable=False, settings={"synchronous_commit": "on"})

    async def start(self) -> None:
        await asyncio.to_thread(self._server.keep)

    async def crash(self) -> None:
        """End it as `pg_ctl stop -m immediate` does, and every connection to it."""
        await asyncio.to_thread(self._crash)

    async def new_database(self) -> str:
        """The address of one with nothing in it."""
        name = f"test_{uuid4().hex}"
        connection: asyncpg.Connection[Any] = await asyncpg.connect(self._server.url)
        await connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        await connection.close()
        head, query = self._server.url.split("?")
        return f"{head.rsplit('/', 1)[0]}/{name}?{query}"

    def _crash(self) -> None:
        process = server_process(self._server)
        process.send_signal(signal.SIGQUIT)
        process.wait(timeout=10)


class LedgerElsewhere(Ledger):
    """The queue's tables on one server, what the tasks wrote on another."""

    def __init__(self, tables: asyncpg.Connection[Any], ledger: Ledger) -> None:
        super().__init__(tables)
        self._ledger = ledger

    async def entries(self) -> list[Entry]:
        return await self._ledger.entries()

    @classmethod
    @asynccontextmanager
    async def beside(cls, tables_url: str, ledger: Ledger) -> AsyncGenerator[LedgerElsewhere]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(tables_url)
        try:
            yield cls(connection, ledger)
        finally:
            await connection.close()
