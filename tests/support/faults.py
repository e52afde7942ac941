"""Fault injection: a proxy that loses answers, crashes at chosen statements, blocked commits, a crashing server."""

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
from horsies.recovery.retention import Cleanup, RetentionWindows
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query
from tests.support.databases import server_process
from tests.support.ledger import POLL_S, Entry, Ledger
from tests.support.store import Connection


class Proxy:
    """A TCP proxy in front of the test server.

    If a request contains `lose_answer_to`, the server executes it but both connections are closed before the answer
    arrives; `lose_answer` does the same for the answer of one statement. The next `refusals` connections are closed at
    once. `cut` closes all connections and accepts no new ones, `freeze` forwards no bytes; `restore` ends both.
    `half_open` forwards no more bytes of the connections that exist, while new ones work.
    """

    def __init__(self, database_url: str) -> None:
        parts = urlsplit(database_url)
        self._socket = parse_qs(parts.query)["host"][0] + "/.s.PGSQL.5432"
        self._database = parts.path.lstrip("/")
        self._user = parts.username or "horsies"
        self.url = ""
        self.lose_answer_to: bytes | None = None
        self.lost = 0
        """Number of answers lost so far."""
        self.refusals = 0
        self._answer_to_lose: tuple[bytes, bytes] | None = None
        self._is_cut = False
        self._is_open = _set_event()
        self._half_open: list[asyncio.Event] = []
        self._writers: set[asyncio.StreamWriter] = set()

    def lose_answer(self, statement: str, *, containing: bytes) -> None:
        """Lose the next answer of this statement that contains these bytes."""
        self._answer_to_lose = f"/* {statement} */".encode(), containing

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.close()

    def freeze(self) -> None:
        """Keep connections open but forward no bytes."""
        self._is_open.clear()

    def half_open(self) -> None:
        self._is_open.clear()
        self._half_open.append(self._is_open)
        self._is_open = _set_event()

    def restore(self) -> None:
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
            for event in self._half_open:
                event.set()  # ends the tasks that wait for it
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusals or self._is_cut:
            self.refusals = max(0, self.refusals - 1)
            writer.close()
            return
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        requests = _Requests(self._is_open)
        forwarding = asyncio.create_task(self._forward_requests(reader, to_server, requests))
        self._writers |= {writer, to_server}
        try:
            while answer := await from_server.read(65536):
                await requests.is_open.wait()
                if requests.loses_answer or self._should_lose(requests, answer):
                    self.lost += 1
                    break
                writer.write(answer)
        except ConnectionError:
            pass  # one side was closed
        finally:
            forwarding.cancel()
            self._writers -= {writer, to_server}
            to_server.close()
            writer.close()

    async def _forward_requests(
        self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter, requests: _Requests
    ) -> None:
        with suppress(ConnectionError):
            while request := await reader.read(65536):
                await requests.is_open.wait()
                if self.lose_answer_to is not None and self.lose_answer_to in request:
                    self.lose_answer_to = None
                    requests.loses_answer = True
                requests.parse(request)
                to_server.write(request)
        to_server.close()

    def _should_lose(self, requests: _Requests, answer: bytes) -> bool:
        if self._answer_to_lose is None:
            return False
        statement, content = self._answer_to_lose
        if statement != requests.running or content not in answer:
            return False
        self._answer_to_lose = None
        return True


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


class _Requests:
    """Requests of one client; tracks prepared statements to know which one is running."""

    _PREPARE = re.compile(rb"P.{4}(__asyncpg_stmt_\w+__)\0(/\* \S+ \*/)", re.DOTALL)
    _RUN = re.compile(rb"B.{4}\0(__asyncpg_stmt_\w+__)\0", re.DOTALL)

    def __init__(self, is_open: asyncio.Event) -> None:
        self.is_open = is_open
        """Bytes are forwarded while it is set."""
        self.loses_answer = False
        self.running: bytes | None = None
        self._prepared: dict[bytes, bytes] = {}

    def parse(self, request: bytes) -> None:
        if prepared := self._PREPARE.search(request):
            self._prepared[prepared[1]] = prepared[2]
        if run := self._RUN.search(request):
            self.running = self._prepared.get(run[1])


# Crashes at chosen statements


class SimulatedCrash(BaseException):
    """The process dies here; a BaseException, so that no error handler catches it."""


class CrashingDatabase(Database):
    """Raises SimulatedCrash before or after statement number `crash_at` (from 0); an open transaction is lost.

    `statements` lists the names of executed statements. Without `crash_at` it only records them.
    """

    def __init__(
        self, connection_spec: ConnectionSpec, crash_at: int | None = None, *, after_statement: bool = False
    ) -> None:
        super().__init__(connection_spec)
        self.statements: list[str] = []
        self._crash_at = crash_at
        self._crashes_after = after_statement

    async def fetch(self, query: Query[Any], *arguments: object) -> list[Any]:
        return await self.send(query, lambda: super(CrashingDatabase, self).fetch(query, *arguments))

    async def execute(self, query: Query[Any], *arguments: object) -> None:
        await self.send(query, lambda: super(CrashingDatabase, self).execute(query, *arguments))

    async def run(self, work: Callable[[Transaction], Awaitable[Any]]) -> Any:
        async def run_with_crash(transaction: Transaction) -> Any:
            return await work(_CrashingTransaction(transaction, self))

        return await super().run(run_with_crash)

    async def send(self, query: Query[Any], execute: Callable[[], Awaitable[Any]]) -> Any:
        """Execute a statement, or crash before or after it."""
        crashes = len(self.statements) == self._crash_at
        self.statements.append(query.name)
        if crashes and not self._crashes_after:
            raise SimulatedCrash(query.name)
        answer = await execute()
        if crashes:
            raise SimulatedCrash(query.name)
        return answer


class _CrashingTransaction(Transaction):
    def __init__(self, transaction: Transaction, database: CrashingDatabase) -> None:
        super().__init__(transaction.connection)
        self._database = database

    async def fetch(self, query: Query[Any], *arguments: object) -> list[Any]:
        return await self._database.send(query, lambda: super(_CrashingTransaction, self).fetch(query, *arguments))

    async def execute(self, query: Query[Any], *arguments: object) -> None:
        await self._database.send(query, lambda: super(_CrashingTransaction, self).execute(query, *arguments))


# Blocked commits

# ruff: noqa: ASYNC110  # database state has to be polled


_WAIT_FUNCTION = """
CREATE OR REPLACE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$
"""
_WAITING_SESSIONS = """
SELECT l.pid
  FROM pg_locks AS l
  JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
 WHERE l.locktype = 'advisory' AND l.objid = 4711 AND NOT l.granted
"""


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """Which writes to block: an event on a table, for rows that meet a condition."""

    table: str
    event: str
    condition: str


class CommitGate:
    """Blocks commits that contain a certain write, at the last moment before they are stored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str, write: WriteCondition) -> AsyncGenerator[CommitGate]:
        connection: Connection = await asyncpg.connect(url)
        try:
            await connection.execute(_WAIT_FUNCTION)
            await connection.execute("SELECT pg_advisory_lock(4711)")
            # A deferred trigger fires at the commit, after everything else in the transaction.
            await connection.execute(
                f"CREATE CONSTRAINT TRIGGER gate AFTER {write.event} ON {write.table} DEFERRABLE INITIALLY"
                f" DEFERRED FOR EACH ROW WHEN ({write.condition}) EXECUTE FUNCTION wait_at_gate()"
            )
            yield cls(connection)
            await connection.execute(f"DROP TRIGGER gate ON {write.table}")
        finally:
            await connection.close()

    async def wait_for_commit(self) -> None:
        """Wait until a commit is blocked."""
        async with asyncio.timeout(30):
            while not await self._connection.fetch(_WAITING_SESSIONS):
                await asyncio.sleep(POLL_S)

    async def open(self) -> None:
        """Let blocked commits finish, even if their clients are dead by now."""
        await self._connection.execute("SELECT pg_advisory_unlock(4711)")

    async def abort_waiting(self) -> None:
        """Roll back blocked commits, then open the gate."""
        await self._connection.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM ({_WAITING_SESSIONS}) AS waiting")
        await self.open()


# A server that crashes, with the ledger on another one


class CrashableServer:
    """An embedded server that can crash and restart; committed data survives."""

    def __init__(self, folder: Path) -> None:
        # Without fsync: only the server crashes, not the machine.
        self._server = EmbeddedServer(folder, durable=False, settings={"synchronous_commit": "on"})

    async def start(self) -> None:
        await asyncio.to_thread(self._server.keep)

    async def crash(self) -> None:
        """Stop it like `pg_ctl stop -m immediate`, with all its connections."""
        await asyncio.to_thread(self._crash)

    async def new_database(self) -> str:
        """Create an empty database and return its URL."""
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
    """A ledger on another server than the queue's tables."""

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


# A process that runs retention in a loop until it is killed: `python -m tests.support.faults URL`

SECOND = timedelta(seconds=1)
WINDOWS = RetentionWindows(heartbeats=SECOND, worker_states=SECOND, terminal_records=SECOND, audit=SECOND, batch_size=4)


async def main(url: str) -> None:
    async with Database(ConnectionSpec(url=url, masked_url=url)) as database:
        sys.stdout.write("cleaning\n")
        sys.stdout.flush()
        while True:
            await Cleanup(database, WINDOWS, budget_s=None).run()
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
