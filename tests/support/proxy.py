"""A TCP server in front of a test's server, which can lose an answer after the work is done."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Proxy:
    """Passes bytes on both ways.

    `lose_answer_to` names what a request must hold to get no answer: the server does its work, and then both
    connections end. `lose_answer` does the same to the first answer of a statement that holds certain bytes. While
    `refusals` are left, a connection ends as soon as it is made; after `cut` none can be made, and after `freeze`
    nothing passes, until `heal`.
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
        self._doomed: tuple[bytes, bytes] | None = None
        self._is_cut = False
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._lines: set[asyncio.StreamWriter] = set()

    def lose_answer(self, statement: str, *, holding: bytes) -> None:
        """Let the next answer of this statement that holds these bytes get lost."""
        self._doomed = f"/* {statement} */".encode(), holding

    def cut(self) -> None:
        self._is_cut = True
        for line in self._lines:
            line.close()

    def freeze(self) -> None:
        """Let every connection look alive, and no byte pass."""
        self._is_open.clear()

    def heal(self) -> None:
        self._is_cut = False
        self._is_open.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._user}@127.0.0.1:{port}/{self._database}"
        try:
            yield self
        finally:
            self.cut()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusals or self._is_cut:
            self.refusals = max(0, self.refusals - 1)
            writer.close()
            return
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        requests = _Requests()
        asking = asyncio.create_task(self._pass_requests(reader, to_server, requests))
        self._lines |= {writer, to_server}
        try:
            while answer := await from_server.read(65536):
                await self._is_open.wait()
                if requests.is_doomed or self._is_lost(requests, answer):
                    self.lost += 1
                    break
                writer.write(answer)
        except ConnectionError:
            pass  # the one side or the other was cut
        finally:
            asking.cancel()
            self._lines -= {writer, to_server}
            to_server.close()
            writer.close()

    async def _pass_requests(
        self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter, requests: _Requests
    ) -> None:
        with suppress(ConnectionError):
            while request := await reader.read(65536):
                await self._is_open.wait()
                if self.lose_answer_to is not None and self.lose_answer_to in request:
                    self.lose_answer_to = None
                    requests.is_doomed = True
                requests.read(request)
                to_server.write(request)
        to_server.close()

    def _is_lost(self, requests: _Requests, answer: bytes) -> bool:
        if self._doomed is None or self._doomed[0] != requests.running or self._doomed[1] not in answer:
            return False
        self._doomed = None
        return True


class _Requests:
    """What one client asks: it prepares each statement once, under a name, and names it whenever it runs it."""

    _PREPARE = re.compile(rb"P.{4}(__asyncpg_stmt_\w+__)\0(/\* \S+ \*/)", re.DOTALL)
    _RUN = re.compile(rb"B.{4}\0(__asyncpg_stmt_\w+__)\0", re.DOTALL)

    def __init__(self) -> None:
        self.is_doomed = False
        self.running: bytes | None = None
        self._prepared: dict[bytes, bytes] = {}

    def read(self, request: bytes) -> None:
        if prepared := self._PREPARE.search(request):
            self._prepared[prepared[1]] = prepared[2]
        if run := self._RUN.search(request):
            self.running = self._prepared.get(run[1])
