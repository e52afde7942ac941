"""The one gateway to the database: a pool, typed statements, our errors, another try where the server asks for it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Self, TypeVar

import asyncpg

from horsies.errors import DatabaseUnreachable, HorsiesError
from horsies.store.connection import (
    CONFLICT_ERRORS,
    LOST_CONNECTION,
    Connection,
    ConnectionSpec,
    Row,
    is_database_error,
    translate_error,
)
from horsies.store.queries import Query

# Giving up on statements that take too long.

CHECKS_PER_TIMEOUT = 10
"""How often within the limit the statements under way are looked at."""


class StatementTimeouts:
    """One timer for all statements under way: the driver's own, one for each, costs a short statement a thirtieth.

    A statement is given up between its limit and a tenth more, and its connection with it. The server's limit, a little
    longer than ours, ends what it may still be doing.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None
        self.active: dict[Connection, float] = {}
        """When the statement on a connection began. Whoever begins one puts it here, and takes it away at its end: it
        is no longer there where the connection was given up."""
        self.is_watching = limit_s is None

    def watch(self) -> None:
        """To be called where they are not watched, after one has begun."""
        if self._limit_s is not None:
            self.is_watching = True
            self._timer = asyncio.get_running_loop().call_later(
                self._limit_s / CHECKS_PER_TIMEOUT, self._look, self._limit_s
            )

    def stop(self) -> None:
        """Look no more, until the next statement begins; that may be in another event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.is_watching = False

    def _look(self, limit_s: float) -> None:
        self._timer, self.is_watching = None, False
        oldest = time.monotonic() - limit_s
        for connection in [each for each, since in self.active.items() if since <= oldest]:
            del self.active[connection]
            connection.terminate()
        if self.active:
            self.watch()


# Connections to one database, made when needed and used again.
#
# Taking one and giving it back costs no task, no timer and no round trip: a send holds a connection for one statement,
# and the driver's own pool spent two timers and a task on that, a sixth of the whole send.

CHECK_AFTER_IDLE_S = 30.0
CHECK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How many connections, how long to wait for one, and how long an idle one is kept."""

    min_size: int = 0
    max_size: int = 15
    acquire_timeout_s: float = 30.0
    idle_s: float = 1800.0
    check_idle: bool = True
    setting_name: str = "broker.pool_size"
    """What an operator would raise to have more of them."""


class ConnectionPool:
    """At most `largest` connections, the one used last first, so that the others can grow old and be closed.

    `smallest` are kept however long they lie idle; none is made before it is needed. Nothing is reset at release,
    since no session state is kept; a connection that lay idle for half a minute is asked whether it still lives.
    """

    def __init__(self, link: ConnectionSpec, size: PoolSettings) -> None:
        self._link = link
        self._size = size
        self._free = size.max_size
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: deque[tuple[Connection, float]] = deque()
        """Those that wait for work, each with the time since when; the one used last is on the right."""
        self._ageing: asyncio.TimerHandle | None = None
        self._is_closed = False

    def try_acquire(self) -> Connection | None:
        """As `acquire`, where that needs no waiting: a connection that was given back a moment ago; else None."""
        idle = self._idle
        if not self._free or not idle or time.monotonic() - idle[-1][1] >= CHECK_AFTER_IDLE_S:
            return None
        connection, _ = idle.pop()
        if connection.is_closed():
            return None
        self._free -= 1
        return connection

    async def acquire(self) -> Connection:
        """A connection of the caller's own until `release`; DatabaseUnreachable when all are in use for too long."""
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_connection()
        try:
            return await self._alive() or await self._link.connect()
        except BaseException:
            self._wake_next_waiter()
            raise

    def release(self, connection: Connection) -> None:
        """Take one back in whatever state it is."""
        if connection.is_closed():  # asked first: of one that was given up the driver knows nothing else
            self._wake_next_waiter()
        elif connection.is_in_transaction():
            self._wake_next_waiter()
            connection.terminate()
        else:
            self.release_clean(connection)

    def release_clean(self, connection: Connection) -> None:
        """The same for one whose last statement was answered, and which is therefore in order."""
        if self._waiting:
            self._wake_next_waiter()
        else:
            self._free += 1
        if self._is_closed:
            connection.terminate()
            return
        self._idle.append((connection, time.monotonic()))
        if self._ageing is None:
            self._watch_age()

    async def close(self) -> None:
        """Close what is idle; a connection in use is closed when it is released."""
        self._is_closed = True
        self._stop_watching()
        while self._idle:
            connection, _ = self._idle.pop()
            await _close(connection)

    def terminate(self) -> None:
        """Drop what is idle without a word; for a process that is going down or was forked."""
        self._is_closed = True
        self._stop_watching()
        while self._idle:
            connection, _ = self._idle.pop()
            connection.terminate()

    def _wake_next_waiter(self) -> None:
        """The turn goes to whoever waits longest; it is free only where nobody waits, so that nobody is overtaken."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _wait_for_connection(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._size.acquire_timeout_s):
                await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self._wake_next_waiter()  # it came in the very moment in which it was given up
            if not isinstance(error, TimeoutError):
                raise
            raise DatabaseUnreachable(
                f"all {self._size.max_size} connections are in use, for {self._size.acquire_timeout_s:g} s",
                hint=f"raise {self._size.setting_name} or broker.pool_timeout",
            ) from None

    async def _alive(self) -> Connection | None:
        """An idle connection, as far as can be known; a restarted server leaves only dead ones, which are dropped."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_closed():
                continue
            is_fresh = time.monotonic() - since < CHECK_AFTER_IDLE_S
            if is_fresh or not self._size.check_idle or await _answers(connection):
                return connection
        return None

    def _watch_age(self) -> None:
        self._ageing = asyncio.get_running_loop().call_later(self._size.idle_s, self._drop_old)

    def _stop_watching(self) -> None:
        if self._ageing is not None:
            self._ageing.cancel()
            self._ageing = None

    def _drop_old(self) -> None:
        self._ageing = None
        oldest_kept = time.monotonic() - self._size.idle_s
        while len(self._idle) > self._size.min_size and self._idle[0][1] <= oldest_kept:
            connection, _ = self._idle.popleft()
            connection.terminate()
        if self._idle:
            self._watch_age()


async def _answers(connection: Connection) -> bool:
    try:
        await connection.execute("SELECT 1", timeout=CHECK_TIMEOUT_S)
    except (asyncpg.PostgresError, *LOST_CONNECTION):
        connection.terminate()
        return False
    return True


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=CHECK_TIMEOUT_S)
    except (asyncpg.PostgresError, *LOST_CONNECTION):
        connection.terminate()


R = TypeVar("R")
A = TypeVar("A")

MAX_CONFLICT_RETRIES = 8
SLOW_STATEMENT_S = 0.5
"""Far above what any statement of a worker takes, unless it waits for somebody or its plan is out of date."""


class Transaction:
    """Statements on one connection inside one transaction."""

    def __init__(self, connection: Connection, *, timeout_s: float | None) -> None:
        self.connection = connection
        self._timeout_s = timeout_s

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        return query.to_rows(await self.connection.fetch(query.sql, *arguments, timeout=self._timeout_s))

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

    def __init__(self, connection_spec: ConnectionSpec, pool_settings: PoolSettings | None = None) -> None:
        self.connection_spec = connection_spec
        self._size = pool_settings or PoolSettings()
        self._pool = ConnectionPool(connection_spec, self._size)
        # Behind a pooler, and where the server is to refuse writes, no statement is on its own.
        self._needs_transaction = connection_spec.is_pooled or connection_spec.read_only
        self._deadlines = StatementTimeouts(connection_spec.statement_timeout_s)
        self._no_deadlines = StatementTimeouts(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; a later statement opens new ones. One that is under way keeps its limit."""
        if not self._deadlines.active:
            self._deadlines.stop()
        pool, self._pool = self._pool, ConnectionPool(self.connection_spec, self._size)
        await pool.close()

    def terminate(self) -> None:
        """Drop every connection without a word; for a process that is going down or was forked."""
        self._deadlines.stop()
        pool, self._pool = self._pool, ConnectionPool(self.connection_spec, self._size)
        pool.terminate()

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        """Run one statement as a transaction of its own and return its rows as records."""
        return query.to_rows(await self.fetch_raw(query, *arguments))

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
        return self._with_retry(
            lambda connection: connection.fetch(query.sql, *arguments, timeout=timeout_s), deadlines
        )

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self.fetch_raw(query, *arguments)

    def prepared(self, query: Query[Any]) -> Callable[[tuple[object, ...]], Coroutine[Any, Any, list[Row]]]:
        """What runs a statement as `fetch_raw` does, to be kept for one that is run thousands of times."""
        if (
            self._needs_transaction or self.connection_spec.logs_statements
        ):  # the driver says nothing of what is at hand
            return lambda arguments: self.fetch_raw(query, *arguments)
        return partial(self._with_retry, Connection.fetch_prepared, self._deadlines, query.sql)

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in one transaction, and from its beginning again when the server chose it to step back."""

        async def inside(connection: Connection) -> A:
            async with self._transaction(connection):
                return await work(Transaction(connection, timeout_s=self.connection_spec.statement_timeout_s))

        return await self._with_retry(inside, self._no_deadlines)

    @asynccontextmanager
    async def lock_transaction(self) -> AsyncGenerator[Transaction]:
        """A transaction that stays open while others do the work, and is rolled back in the end: it is for a lock.

        Where the pool has one connection only, which the work needs, it has another. Losing it while the work is done
        harms nobody, and nobody is told.
        """
        try:
            async with self._dedicated_connection() as connection:
                await connection.execute(
                    self.connection_spec.begin_sql, timeout=self.connection_spec.statement_timeout_s
                )
                try:
                    yield Transaction(connection, timeout_s=self.connection_spec.statement_timeout_s)
                finally:
                    await _roll_back(connection)
        except Exception as error:
            if is_database_error(error):
                raise translate_error(error, where=self.connection_spec.masked_url) from error
            raise

    @asynccontextmanager
    async def _dedicated_connection(self) -> AsyncGenerator[Connection]:
        if self._size.max_size > 1:
            pool = self._pool
            connection = await pool.acquire()
            try:
                yield connection
            finally:
                pool.release(connection)
        else:
            connection = await self.connection_spec.connect()
            try:
                yield connection
            finally:
                connection.terminate()

    async def _with_retry(
        self, work: Callable[Concatenate[Connection, ...], Awaitable[A]], deadlines: StatementTimeouts, *given: object
    ) -> A:
        # In one piece: every statement comes through here, and each step in between would cost all of them.
        tried, is_in_time = 0, True
        while True:
            tried += 1
            pool = self._pool
            try:
                connection = pool.try_acquire() or await pool.acquire()
                deadlines.active[connection] = time.monotonic()
                if not deadlines.is_watching:
                    deadlines.watch()
                try:
                    if self.connection_spec.force_generic_plan:
                        done = await self._watched(work(connection, *given), connection)
                    else:
                        done = await work(connection, *given)
                except BaseException:
                    is_in_time = deadlines.active.pop(connection, None) is not None
                    pool.release(connection)
                    raise
                deadlines.active.pop(connection, None)
                pool.release_clean(connection)
                return done  # noqa: TRY300  # an `else` at the end would be far from here
            except Exception as error:
                if not is_in_time:  # whatever the driver makes of a connection that is closed under it
                    late = TimeoutError()
                    late.__cause__ = error
                    raise self._translate(late) from late
                if not is_database_error(error):
                    raise
                if tried > MAX_CONFLICT_RETRIES or not isinstance(error, CONFLICT_ERRORS):
                    raise self._translate(error) from error
            # Linear and short: whoever won holds its locks for one statement only.
            await asyncio.sleep(0.005 * tried)

    async def _watched(self, work: Awaitable[A], connection: Connection) -> A:
        """Work whose plans are kept; not for longer than they do.

        One that was made while a table was empty goes through all pairs of rows where it should look them up, until
        the next ANALYZE. A plan that was not to blame is made again in a few milliseconds.
        """
        began = time.monotonic()
        done = await work
        if time.monotonic() - began > SLOW_STATEMENT_S:
            await _forget_plans(connection)
        return done

    def _translate(self, error: Exception) -> HorsiesError:
        return translate_error(
            error, where=self.connection_spec.masked_url, expects_writes=not self.connection_spec.read_only
        )

    @asynccontextmanager
    async def _transaction(self, connection: Connection) -> AsyncGenerator[None]:
        limit_s = self.connection_spec.statement_timeout_s
        try:
            await connection.execute(self.connection_spec.begin_sql, timeout=limit_s)
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
