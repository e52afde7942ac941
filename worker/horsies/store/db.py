"""The one gateway to the database: a pool, typed statements, our errors, another try where the server asks for it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Self, TypeVar

import asyncpg

from horsies.store.deadlines import Deadlines
from horsies.store.failures import LOST_CONNECTION, STEP_BACK, explain, is_failure_of_database
from horsies.store.link import Connection
from horsies.store.pool import CHECK_TIMEOUT_S, Pool, PoolSize

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

    from horsies.errors import HorsiesError
    from horsies.store.link import Link, Row
    from horsies.store.queries import Query

__all__ = ["Database", "PoolSize", "Transaction"]

R = TypeVar("R")
A = TypeVar("A")

STEP_BACK_TRIES = 8
SLOW_S = 0.5
"""Far above what any statement of a worker takes, unless it waits for somebody or its plan is out of date."""


class Transaction:
    """Statements on one connection inside one transaction."""

    def __init__(self, connection: Connection, *, timeout_s: float | None) -> None:
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
    """One database through a pool of connections, each made when first needed; closed by `async with`."""

    def __init__(self, link: Link, size: PoolSize | None = None) -> None:
        self.link = link
        self._size = size or PoolSize()
        self._pool = Pool(link, self._size)
        # Behind a pooler, and where the server is to refuse writes, no statement is on its own.
        self._needs_transaction = link.pooled or link.read_only
        self._deadlines = Deadlines(link.statement_timeout_s)
        self._no_deadlines = Deadlines(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; a later statement opens new ones. One that is under way keeps its limit."""
        if not self._deadlines.under_way:
            self._deadlines.stop()
        pool, self._pool = self._pool, Pool(self.link, self._size)
        await pool.close()

    def terminate(self) -> None:
        """Drop every connection without a word; for a process that is going down or was forked."""
        self._deadlines.stop()
        pool, self._pool = self._pool, Pool(self.link, self._size)
        pool.terminate()

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        """Run one statement as a transaction of its own and return its rows as records."""
        return query.rows(await self.fetch_raw(query, *arguments))

    async def fetch_one(self, query: Query[R], *arguments: object) -> R | None:
        rows = await self.fetch(query, *arguments)
        return rows[0] if rows else None

    def fetch_raw(
        self, query: Query[Any], *arguments: object, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, list[Row]]:
        """Its rows as the driver gives them, for paths where a value a row is too dear."""
        if self._needs_transaction:
            return self.run(lambda transaction: transaction.fetch_raw(query, *arguments, timeout_s=timeout_s))
        # Who brings a limit of its own has a timer of its own.
        deadlines = self._deadlines if timeout_s is None else self._no_deadlines
        return self._with_another_try(
            lambda connection: connection.fetch(query.sql, *arguments, timeout=timeout_s), deadlines
        )

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self.fetch_raw(query, *arguments)

    def often(self, query: Query[Any]) -> Callable[[tuple[object, ...]], Coroutine[Any, Any, list[Row]]]:
        """What runs a statement as `fetch_raw` does, to be kept for one that is run thousands of times."""
        if self._needs_transaction or self.link.logs_statements:  # the driver says nothing of what is at hand
            return lambda arguments: self.fetch_raw(query, *arguments)
        return partial(self._with_another_try, Connection.fetch_often, self._deadlines, query.sql)

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in one transaction, and from its beginning again when the server chose it to step back."""

        async def inside(connection: Connection) -> A:
            async with self._begun(connection):
                return await work(Transaction(connection, timeout_s=self.link.statement_timeout_s))

        return await self._with_another_try(inside, self._no_deadlines)

    @asynccontextmanager
    async def aside(self) -> AsyncGenerator[Transaction]:
        """A transaction that stays open while others do the work, and is rolled back in the end: it is for a lock.

        Where the pool has one connection only, which the work needs, it has another. Losing it while the work is done
        harms nobody, and nobody is told.
        """
        try:
            async with self._one_to_keep() as connection:
                await connection.execute(self.link.begin, timeout=self.link.statement_timeout_s)
                try:
                    yield Transaction(connection, timeout_s=self.link.statement_timeout_s)
                finally:
                    await _roll_back(connection)
        except Exception as error:
            if is_failure_of_database(error):
                raise explain(error, where=self.link.masked_url) from error
            raise

    @asynccontextmanager
    async def _one_to_keep(self) -> AsyncGenerator[Connection]:
        if self._size.largest > 1:
            pool = self._pool
            connection = await pool.acquire()
            try:
                yield connection
            finally:
                pool.release(connection)
        else:
            connection = await self.link.connect()
            try:
                yield connection
            finally:
                connection.terminate()

    async def _with_another_try(
        self, work: Callable[Concatenate[Connection, ...], Awaitable[A]], deadlines: Deadlines, *given: object
    ) -> A:
        # In one piece: every statement comes through here, and each step in between would cost all of them.
        tried, is_in_time = 0, True
        while True:
            tried += 1
            pool = self._pool
            try:
                connection = pool.at_once() or await pool.acquire()
                deadlines.under_way[connection] = time.monotonic()
                if not deadlines.are_watched:
                    deadlines.watch()
                try:
                    if self.link.plans_once:
                        done = await self._watched(work(connection, *given), connection)
                    else:
                        done = await work(connection, *given)
                except BaseException:
                    is_in_time = deadlines.under_way.pop(connection, None) is not None
                    pool.release(connection)
                    raise
                deadlines.under_way.pop(connection, None)
                pool.give_back(connection)
                return done  # noqa: TRY300  # an `else` at the end would be far from here
            except Exception as error:
                if not is_in_time:  # whatever the driver makes of a connection that is closed under it
                    late = TimeoutError()
                    late.__cause__ = error
                    raise self._explained(late) from late
                if not is_failure_of_database(error):
                    raise
                if tried > STEP_BACK_TRIES or not isinstance(error, STEP_BACK):
                    raise self._explained(error) from error
            # Linear and short: whoever won holds its locks for one statement only.
            await asyncio.sleep(0.005 * tried)

    async def _watched(self, work: Awaitable[A], connection: Connection) -> A:
        """Work whose plans are kept; not for longer than they do.

        One that was made while a table was empty goes through all pairs of rows where it should look them up, until
        the next ANALYZE. A plan that was not to blame is made again in a few milliseconds.
        """
        began = time.monotonic()
        done = await work
        if time.monotonic() - began > SLOW_S:
            await _forget_plans(connection)
        return done

    def _explained(self, error: Exception) -> HorsiesError:
        return explain(error, where=self.link.masked_url, expects_writes=not self.link.read_only)

    @asynccontextmanager
    async def _begun(self, connection: Connection) -> AsyncGenerator[None]:
        limit_s = self.link.statement_timeout_s
        try:
            await connection.execute(self.link.begin, timeout=limit_s)
            yield
        except asyncio.CancelledError:
            connection.terminate()  # whoever gives up waits for no answer, which may never come
            raise
        except BaseException:
            await _roll_back(connection)
            raise
        await connection.execute("COMMIT", timeout=limit_s)


async def _forget_plans(connection: Connection) -> None:
    """What was done before it stays done: a connection that cannot even do this is given up, and nobody is told."""
    try:
        await connection.execute("DISCARD PLANS", timeout=CHECK_TIMEOUT_S)
    except (asyncpg.PostgresError, *LOST_CONNECTION):
        connection.terminate()


async def _roll_back(connection: Connection) -> None:
    if connection.is_closed():
        return
    try:
        await connection.execute("ROLLBACK", timeout=CHECK_TIMEOUT_S)
    except (asyncpg.PostgresError, *LOST_CONNECTION):
        connection.terminate()
