"""A TCP server in front of a test's server, which can lose an answer after the work is done."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Proxy:
    """Passes bytes on both ways.

    `lose_answer_to` names what a request must hold to get no answer: the server does its work, and then both
    connections end. While `refusals` are left, a connection ends as soon as it is made.
    """

    def __init__(self, database_url: str) -> None:
        parts = urlsplit(database_url)
        self._socket = parse_qs(parts.query)["host"][0] + "/.s.PGSQL.5432"
        self._database = parts.path.lstrip("/")
        self._user = parts.username or "horsies"
        self.url = ""
        self.lose_answer_to: bytes | None = None
        self.lost = 0
        self.refusals = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._user}@127.0.0.1:{port}/{self._database}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusals:
            self.refusals -= 1
            writer.close()
            return
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        is_doomed = asyncio.Event()
        asking = asyncio.create_task(self._pass_requests(reader, to_server, is_doomed))
        try:
            while answer := await from_server.read(65536):
                if is_doomed.is_set():
                    self.lost += 1
                    break
                writer.write(answer)
        finally:
            asking.cancel()
            to_server.close()
            writer.close()

    async def _pass_requests(
        self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter, is_doomed: asyncio.Event
    ) -> None:
        while request := await reader.read(65536):
            if self.lose_answer_to is not None and self.lose_answer_to in request:
                self.lose_answer_to = None
                is_doomed.set()
            to_server.write(request)
        to_server.close()
