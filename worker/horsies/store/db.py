"""The one gateway to the database: a pool, typed statements, our errors, another try where the server asks for it."""

from __future__ import annotations

import asyncio
import time
import weakref
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import asyncpg

from horsies.store.failures import LOST_CONNECTION, STEP_BACK, explain, is_failure_of_database

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from horsies.store.link import Link, Row
    from horsies.store.queries import Query

R = TypeVar("R")
A = TypeVar("A")

CHECK_AFTER_IDLE_S = 30.0
CHECK_TIMEOUT_S = 5.0
STEP_BACK_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """How many connections, how long to wait for one, and how long an idle one is kept."""

    smallest: int = 0
    largest: int = 15
    wait_s: float = 30.0
    idle_s: float = 1800.0
    check_idle: bool = True


class Transaction:
    """Statements on one connection inside one transaction."""

    def __init__(self, connection: asyncpg.pool.PoolConnectionProxy[Row], *, timeout_s: float | None) -> None:
        self.connection = connection
        self._timeout_s = timeout_s

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        return query.rows(await self.connection.fetch(query.sql, *arguments, timeout=self._timeout_s))

    async def fetch_raw(self, query: Query[Any], *arguments: object, timeout_s: float | None = None) -> list[Row]:
        """Rows as the driver gives them, for paths where a value a row is too dear."""
        return await self.connection.fetch(query.sql, *arguments, timeout=timeout_s or self._timeout_s)

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self.connection.execute(query.sql, *arguments, timeout=self._timeout_s)

    async def run_script(self, sql: str) -> None:
        """Run the text of a migration: several statements, no arguments."""
        await self.connection.execute(sql)


class Database:
    """A pool of connections to one database, opened with `async with`.

    Connections are made when first needed. At release nothing is reset, since no session state is kept; a connection
    that lay idle for half a minute is asked whether it still lives before it is used.
    """

    def __init__(self, link: Link, size: PoolSize | None = None) -> None:
        self.link = link
        self._size = size or PoolSize()
        self._released_at: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._pool: asyncpg.Pool[Row] | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def terminate(self) -> None:
        """Drop every connection without a word; for a process that is going down or was forked."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        """Run one statement as a transaction of its own and return its rows as records."""
        return await self._one_statement(lambda transaction: transaction.fetch(query, *arguments))

    async def fetch_one(self, query: Query[R], *arguments: object) -> R | None:
        rows = await self.fetch(query, *arguments)
        return rows[0] if rows else None

    async def fetch_raw(self, query: Query[Any], *arguments: object, timeout_s: float | None = None) -> list[Row]:
        return await self._one_statement(lambda each: each.fetch_raw(query, *arguments, timeout_s=timeout_s))

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self._one_statement(lambda transaction: transaction.execute(query, *arguments))

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in one transaction, and from its beginning again when the server chose it to step back."""

        async def attempt() -> A:
            async with self._connection() as connection, self._transaction(connection) as transaction:
                return await work(transaction)

        return await self._with_another_try(attempt)

    async def _one_statement(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        if self.link.pooled or self.link.read_only:
            return await self.run(work)

        async def attempt() -> A:
            async with self._connection() as connection:
                return await work(Transaction(connection, timeout_s=self.link.statement_timeout_s))

        return await self._with_another_try(attempt)

    async def _with_another_try(self, attempt: Callable[[], Awaitable[A]]) -> A:
        try:
            for tried in range(STEP_BACK_TRIES):
                try:
                    return await attempt()
                except STEP_BACK:
                    # Linear and short: whoever won holds its locks for one statement only.
                    await asyncio.sleep(0.005 * (tried + 1))
            return await attempt()
        except Exception as error:
            if is_failure_of_database(error):
                raise explain(error, where=self.link.masked_url) from error
            raise

    @asynccontextmanager
    async def _transaction(self, connection: asyncpg.pool.PoolConnectionProxy[Row]) -> AsyncGenerator[Transaction]:
        await connection.execute(self.link.begin)
        try:
            yield Transaction(connection, timeout_s=self.link.statement_timeout_s)
        except BaseException:
            await _roll_back(connection)
            raise
        await connection.execute("COMMIT")

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[asyncpg.pool.PoolConnectionProxy[Row]]:
        pool = await self._opened()
        connection = await self._acquire(pool)
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def _acquire(self, pool: asyncpg.Pool[Row]) -> asyncpg.pool.PoolConnectionProxy[Row]:
        # A server restart kills every idle connection at once: each dead one is dropped by its check, so try them all.
        for _ in range(self._size.largest):
            try:
                return await pool.acquire(timeout=self._size.wait_s)
            except _IdleConnectionDied:
                continue
        return await pool.acquire(timeout=self._size.wait_s)

    async def _opened(self) -> asyncpg.Pool[Row]:
        if self._pool is not None:
            return self._pool
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    min_size=self._size.smallest,
                    max_size=self._size.largest,
                    max_queries=0x7FFFFFFF,
                    max_inactive_connection_lifetime=self._size.idle_s,
                    init=self._init,
                    setup=self._check,
                    reset=self._note_release,
                    **self.link.connect_arguments,
                )
        return self._pool

    async def _init(self, connection: Any) -> None:
        self.link.prepare(connection)

    async def _check(self, connection: Any) -> None:
        released_at = self._released_at.get(_bare(connection))
        if not self._size.check_idle or released_at is None or time.monotonic() - released_at < CHECK_AFTER_IDLE_S:
            return
        try:
            await connection.execute("SELECT 1", timeout=CHECK_TIMEOUT_S)
        except (asyncpg.PostgresError, *LOST_CONNECTION) as error:
            raise _IdleConnectionDied from error

    async def _note_release(self, connection: Any) -> None:
        self._released_at[_bare(connection)] = time.monotonic()


class _IdleConnectionDied(Exception):
    """Tells the pool to drop a connection whose check failed; never leaves this module."""


def _bare(connection: Any) -> Any:
    """The connection behind the pool's proxy, the same object from one use to the next."""
    return getattr(connection, "_con", connection)


async def _roll_back(connection: asyncpg.pool.PoolConnectionProxy[Row]) -> None:
    if connection.is_closed():
        return
    try:
        await connection.execute("ROLLBACK", timeout=CHECK_TIMEOUT_S)
    except (asyncpg.PostgresError, *LOST_CONNECTION):
        connection.terminate()
