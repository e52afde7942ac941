"""A TCP server in front of a test's server, which can lose an answer after the work is done."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import asyncpg

from horsies.embedded import EmbeddedServer
from horsies.recovery.retention import RetentionWindows, clean
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query
from tests.support.databases import server_process
from tests.support.ledger import POLL_S, Entry, Ledger
from tests.support.store import Connection


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


# A database for someone who dies: before or after a statement of one's choice, as a process that is killed does.


class SimulatedCrash(BaseException):
    """Nothing that catches errors may catch this."""


class CrashingDatabase(Database):
    """Dies at the statement with this number, from 0; what had not been committed is lost with the connection.

    `written` names the statements that were sent. Without a number it lives, and counts.
    """

    def __init__(self, link: ConnectionSpec, crash_at: int | None = None, *, after_statement: bool = False) -> None:
        super().__init__(link)
        self.statements: list[str] = []
        self._dies_at = crash_at
        self._is_after = after_statement

    async def fetch(self, query: Query[Any], *arguments: object) -> list[Any]:
        return await self._at(query, lambda: super(CrashingDatabase, self).fetch(query, *arguments))

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self._at(query, lambda: super(CrashingDatabase, self).execute(query, *arguments))

    async def run(self, work: Callable[[Transaction], Awaitable[Any]]) -> Any:
        async def mortally(transaction: Transaction) -> Any:
            return await work(_CrashingTransaction(transaction, self))

        return await super().run(mortally)

    async def _at(self, query: Query[Any], send: Callable[[], Awaitable[Any]]) -> Any:
        is_last = len(self.statements) == self._dies_at
        self.statements.append(query.name)
        if is_last and not self._is_after:
            raise SimulatedCrash(query.name)
        answer = await send()
        if is_last:
            raise SimulatedCrash(query.name)
        return answer


class _CrashingTransaction(Transaction):
    def __init__(self, inner: Transaction, mortal: CrashingDatabase) -> None:
        super().__init__(inner.connection, timeout_s=None)
        self._mortal = mortal

    async def fetch(self, query: Query[Any], *arguments: object) -> list[Any]:
        return await self._mortal._at(query, lambda: super(_CrashingTransaction, self).fetch(query, *arguments))

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self._mortal._at(query, lambda: super(_CrashingTransaction, self).execute(query, *arguments))


# A gate at a commit: whoever is about to store what it names waits there, and may die waiting.

# ruff: noqa: ASYNC110  # the database sets no events


KEEPER = """
CREATE OR REPLACE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$
"""
WAITING = """
SELECT l.pid
  FROM pg_locks AS l
  JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
 WHERE l.locktype = 'advisory' AND l.objid = 4711 AND NOT l.granted
"""


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """A write, by the rows that make it."""

    table: str
    event: str
    condition: str


class CommitGate:
    """Holds commits of one boundary, the last thing before they are stored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str, boundary: WriteCondition) -> AsyncGenerator[CommitGate]:
        connection: Connection = await asyncpg.connect(url)
        try:
            await connection.execute(KEEPER)
            await connection.execute("SELECT pg_advisory_lock(4711)")
            # A deferred trigger fires when all else of its transaction is done.
            await connection.execute(
                f"CREATE CONSTRAINT TRIGGER gate AFTER {boundary.event} ON {boundary.table} DEFERRABLE INITIALLY"
                f" DEFERRED FOR EACH ROW WHEN ({boundary.condition}) EXECUTE FUNCTION wait_at_the_gate()"
            )
            yield cls(connection)
            await connection.execute(f"DROP TRIGGER gate ON {boundary.table}")
        finally:
            await connection.close()

    async def until_someone_waits(self) -> None:
        async with asyncio.timeout(30):
            while not await self._connection.fetch(WAITING):
                await asyncio.sleep(POLL_S)

    async def open(self) -> None:
        """What waits is stored, also for those who are dead by now."""
        await self._connection.execute("SELECT pg_advisory_unlock(4711)")

    async def abort_waiting(self) -> None:
        """Nothing of what waits is stored."""
        await self._connection.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM ({WAITING}) AS waiting")
        await self.open()


# A server of the test's own that is taken away and brought back, with the ledger on another.


class CrashableServer:
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


class RemoteLedger(Ledger):
    """The queue's tables on one server, what the tasks wrote on another."""

    def __init__(self, tables: asyncpg.Connection[Any], ledger: Ledger) -> None:
        super().__init__(tables)
        self._ledger = ledger

    async def entries(self) -> list[Entry]:
        return await self._ledger.entries()

    @classmethod
    @asynccontextmanager
    async def open_beside(cls, tables_url: str, ledger: Ledger) -> AsyncGenerator[RemoteLedger]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(tables_url)
        try:
            yield cls(connection, ledger)
        finally:
            await connection.close()


# A process that cleans without end, to be killed: `python -m tests.support.faults URL`.

SECOND = timedelta(seconds=1)
WINDOWS = RetentionWindows(heartbeats=SECOND, worker_states=SECOND, terminal_records=SECOND, audit=SECOND, batch_size=4)


async def main(url: str) -> None:
    async with Database(ConnectionSpec(url=url, masked_url=url)) as database:
        sys.stdout.write("cleaning\n")
        sys.stdout.flush()
        while True:
            await clean(database, WINDOWS, budget_s=None)
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
