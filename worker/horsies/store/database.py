"""Database access: a connection pool, typed statements, timeouts, and retries after deadlocks."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

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

R = TypeVar("R")
A = TypeVar("A")

CHECK_AFTER_IDLE_S = 30.0
"""A connection idle for longer is checked before it is used."""
CHECK_TIMEOUT_S = 5.0
CHECKS_PER_TIMEOUT = 10
"""How often running statements are checked within their timeout."""
MAX_CONFLICT_RETRIES = 8
SLOW_STATEMENT_S = 0.5
"""A worker's statement that takes longer has waited for a lock or has a bad plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Size of a pool, how long to wait for a connection, and how long an idle one is kept."""

    min_size: int = 0
    max_size: int = 15
    acquire_timeout_s: float = 30.0
    idle_s: float = 1800.0
    check_idle: bool = True
    setting_name: str = "broker.pool_size"
    """The setting to name in errors about an exhausted pool."""


class Executor(ABC):
    """Runs statements: a `Database` runs each in a transaction of its own, a `Transaction` all of them in one."""

    @abstractmethod
    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        """Run a statement and return its rows."""

    async def fetch_one(self, query: Query[R], *arguments: object) -> R | None:
        """The first row; None if there is none."""
        rows = await self.fetch(query, *arguments)
        return rows[0] if rows else None

    async def fetch_single(self, query: Query[R], *arguments: object) -> R:
        """The row of a statement that always returns exactly one."""
        (row,) = await self.fetch(query, *arguments)
        return row

    @abstractmethod
    async def execute(self, query: Query[Any], *arguments: object) -> None:
        """Run a statement and ignore its rows."""

    @abstractmethod
    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in one transaction."""


class Database(Executor):
    """Runs statements on a pool of connections, translates errors, and retries after deadlocks."""

    def __init__(self, connection_spec: ConnectionSpec, pool_settings: PoolSettings | None = None) -> None:
        self.connection_spec = connection_spec
        self._pool_settings = pool_settings or PoolSettings()
        self._pool = ConnectionPool(connection_spec, self._pool_settings)
        # Behind a pooler and for read-only access, session settings are applied per transaction (`begin_sql`), so even
        # a single statement needs one.
        self._needs_transaction = connection_spec.is_pooled or connection_spec.read_only
        self._timeouts = StatementTimeouts(connection_spec.statement_timeout_s)
        self._no_timeouts = StatementTimeouts(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; a later statement opens new ones. Running statements keep their timeout."""
        if not self._timeouts.active:
            self._timeouts.stop()
        # Replaced before the await, so that a statement started meanwhile does not use the pool being closed.
        pool, self._pool = self._pool, ConnectionPool(self.connection_spec, self._pool_settings)
        await pool.close()

    def terminate(self) -> None:
        """Close all sockets at once, without ending the sessions; for a process that is exiting or was forked."""
        self._timeouts.stop()
        pool, self._pool = self._pool, ConnectionPool(self.connection_spec, self._pool_settings)
        pool.terminate()

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        return query.to_rows(await self.fetch_raw(query, *arguments))

    def fetch_raw(
        self, query: Query[Any], *arguments: object, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, list[Row]]:
        """Like `fetch`, but returns the driver's rows, for hot paths. With `timeout_s` the driver's timer is used."""
        if self._needs_transaction:
            return self.run(lambda transaction: transaction.fetch_raw(query, *arguments, timeout_s=timeout_s))
        timeouts = self._timeouts if timeout_s is None else self._no_timeouts
        return self._with_retry(lambda connection: connection.fetch(query.sql, *arguments, timeout=timeout_s), timeouts)

    async def execute(self, query: Query[Any], *arguments: object) -> None:
        await self.fetch_raw(query, *arguments)

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in one transaction; all of it runs again after a deadlock or serialization failure."""

        async def in_transaction(connection: Connection) -> A:
            async with self._transaction(connection):
                return await work(Transaction(connection, timeout_s=self.connection_spec.statement_timeout_s))

        # No overall timeout: each statement of the transaction has its own.
        return await self._with_retry(in_transaction, self._no_timeouts)

    @asynccontextmanager
    async def lock_transaction(self) -> AsyncGenerator[Transaction]:
        """A transaction that only holds a lock while statements run on other connections; rolled back at the end.

        Opens a connection of its own if the pool has only one, which the other statements need. Losing the connection,
        and the lock with it, raises no error by itself.
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
        if self._pool_settings.max_size > 1:
            # Kept in a local: `close` may replace the pool before the release.
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
        self,
        work: Callable[[Connection], Awaitable[A]],
        timeouts: StatementTimeouts,
    ) -> A:
        """Run `work` on a pooled connection; again after a deadlock or serialization failure."""
        # Not split into functions: every statement takes this path, and each call would slow down all of them.
        tries, has_timed_out = 0, False
        while True:
            tries += 1
            pool = self._pool  # the connection goes back to this one, even if `close` replaces it meanwhile
            try:
                connection = pool.try_acquire() or await pool.acquire()
                timeouts.active[connection] = time.monotonic()
                if not timeouts.is_watching:
                    timeouts.watch()
                try:
                    if self.connection_spec.force_generic_plan:
                        result = await self._with_plan_check(work(connection), connection)
                    else:
                        result = await work(connection)
                except BaseException:
                    has_timed_out = timeouts.active.pop(connection, None) is None
                    pool.release(connection)
                    raise
                timeouts.active.pop(connection, None)
                pool.release_clean(connection)
                return result  # noqa: TRY300
            except Exception as error:
                if has_timed_out:  # our timer closed the connection, so the driver may raise anything
                    timeout = TimeoutError()
                    timeout.__cause__ = error
                    raise self._translate(timeout) from timeout
                if not is_database_error(error):
                    raise
                if tries > MAX_CONFLICT_RETRIES or not isinstance(error, CONFLICT_ERRORS):
                    raise self._translate(error) from error
            # A short, linear backoff: the winner of the conflict holds its locks for one statement only.
            await asyncio.sleep(0.005 * tries)

    async def _with_plan_check(self, work: Awaitable[A], connection: Connection) -> A:
        """Discard cached plans after a slow statement.

        A generic plan made while a table was empty may use nested loops over all rows until the next ANALYZE. If the
        plan was not the reason, planning again takes a few milliseconds.
        """
        started = time.monotonic()
        result = await work
        if time.monotonic() - started > SLOW_STATEMENT_S:
            # Must not raise, because the statement has succeeded.
            await _execute_or_terminate(connection, "DISCARD PLANS")
        return result

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
            connection.terminate()  # ROLLBACK would wait for the server, which may not be responding
            raise
        except BaseException:
            await _roll_back(connection)
            raise
        await connection.execute("COMMIT", timeout=limit_s)


async def _roll_back(connection: Connection) -> None:
    if not connection.is_closed():
        await _execute_or_terminate(connection, "ROLLBACK")


async def _execute_or_terminate(connection: Connection, sql: str) -> None:
    """Run a clean-up statement; drop the connection if it fails."""
    try:
        await connection.execute(sql, timeout=CHECK_TIMEOUT_S)
    except (asyncpg.PostgresError, *LOST_CONNECTION):
        connection.terminate()


class Transaction(Executor):
    """Statements on one connection inside one transaction."""

    def __init__(self, connection: Connection, *, timeout_s: float | None) -> None:
        self.connection = connection
        self._timeout_s = timeout_s

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        return query.to_rows(await self.connection.fetch(query.sql, *arguments, timeout=self._timeout_s))

    async def fetch_raw(self, query: Query[Any], *arguments: object, timeout_s: float | None = None) -> list[Row]:
        """Like `fetch`, but returns the driver's rows, for hot paths."""
        return await self.connection.fetch(query.sql, *arguments, timeout=timeout_s or self._timeout_s)

    async def execute(self, query: Query[Any], *arguments: object) -> None:
        await self.connection.execute(query.sql, *arguments, timeout=self._timeout_s)

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` as a part of this transaction."""
        return await work(self)

    async def run_script(self, sql: str) -> None:
        """Run several statements without arguments, such as a migration."""
        await self.connection.execute(sql)


class ConnectionPool:
    """A connection pool without a task, timer or round trip per use: the driver's own pool costs 17 % of a send.

    Connections are opened on demand and reused last in, first out, so that surplus ones become idle and are closed.
    Sessions keep no state, so nothing is reset on release. A connection idle for 30 s is checked before use.
    """

    def __init__(self, connection_spec: ConnectionSpec, settings: PoolSettings) -> None:
        self._connection_spec = connection_spec
        self._settings = settings
        self._free_slots = settings.max_size
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle: deque[tuple[Connection, float]] = deque()
        """Idle connections, each with the time it became idle; the most recently used is on the right."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def try_acquire(self) -> Connection | None:
        """Like `acquire`, but without waiting: a recently used idle connection, or None."""
        idle = self._idle
        if not self._free_slots or not idle or time.monotonic() - idle[-1][1] >= CHECK_AFTER_IDLE_S:
            return None
        connection, _ = idle.pop()
        if connection.is_closed():
            return None
        self._free_slots -= 1
        return connection

    async def acquire(self) -> Connection:
        """Return a connection to use until `release`; raises DatabaseUnreachable if none becomes free in time."""
        if self._free_slots:
            self._free_slots -= 1
        else:
            await self._wait_for_slot()
        try:
            return await self._pop_idle() or await self._connection_spec.connect()
        except BaseException:
            self._release_slot()
            raise

    def release(self, connection: Connection) -> None:
        """Return a connection in any state to the pool; it is dropped if it is still in a transaction."""
        if connection.is_closed():  # checked first: the driver raises on other calls to a closed connection
            self._release_slot()
        elif connection.is_in_transaction():
            self._release_slot()
            connection.terminate()
        else:
            self.release_clean(connection)

    def release_clean(self, connection: Connection) -> None:
        """Like `release`, for a connection whose last statement succeeded."""
        # `_release_slot` inlined for the usual case without waiters, because every statement takes this path.
        if self._waiters:
            self._release_slot()
        else:
            self._free_slots += 1
        if self._is_closed:
            connection.terminate()
            return
        # The waiter woken above runs only after this call, so it finds this connection.
        self._idle.append((connection, time.monotonic()))
        if self._idle_timer is None:
            self._start_idle_timer()

    async def close(self) -> None:
        """Close idle connections; one in use is closed when it is released."""
        self._is_closed = True
        self._stop_idle_timer()
        while self._idle:
            connection, _ = self._idle.pop()
            await _close(connection)

    def terminate(self) -> None:
        """Close idle sockets at once, without ending the sessions; for a process that is exiting or was forked."""
        self._is_closed = True
        self._stop_idle_timer()
        while self._idle:
            connection, _ = self._idle.pop()
            connection.terminate()

    def _release_slot(self) -> None:
        """Pass the slot to the longest waiter; it becomes free only if there is none, so waiters keep their order."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free_slots += 1

    async def _wait_for_slot(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._settings.acquire_timeout_s):
                await waiter
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():
                self._release_slot()  # the slot was granted just as the wait ended
            if not isinstance(error, TimeoutError):
                raise
            settings = self._settings
            raise DatabaseUnreachable(
                f"all {settings.max_size} connections are in use; none became free in {settings.acquire_timeout_s:g} s",
                hint=f"raise {settings.setting_name} or broker.pool_timeout",
            ) from None

    async def _pop_idle(self) -> Connection | None:
        """Return an idle connection that works, and drop those that do not, for example after a server restart."""
        while self._idle:
            connection, idle_since = self._idle.pop()
            if connection.is_closed():
                continue
            is_fresh = time.monotonic() - idle_since < CHECK_AFTER_IDLE_S
            if is_fresh or not self._settings.check_idle or await _is_alive(connection):
                return connection
        return None

    def _start_idle_timer(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(self._settings.idle_s, self._drop_idle)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _drop_idle(self) -> None:
        self._idle_timer = None
        oldest_kept = time.monotonic() - self._settings.idle_s
        # Connections are reused from the right, so those idle for longest are on the left.
        while len(self._idle) > self._settings.min_size and self._idle[0][1] <= oldest_kept:
            connection, _ = self._idle.popleft()
            connection.terminate()
        if self._idle:
            self._start_idle_timer()


async def _is_alive(connection: Connection) -> bool:
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


class StatementTimeouts:
    """Statement timeouts with one timer for all running statements; the driver's timer per statement costs 3 %.

    A statement over its limit is aborted by dropping its connection, at most 10 % late. The server then still runs it
    until the server's own statement_timeout, which is a little longer.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None
        self.active: dict[Connection, float] = {}
        """Start time of the statement on each busy connection. The caller adds and removes its entry; if the entry is
        already gone, the statement timed out."""
        self.is_watching = limit_s is None

    def watch(self) -> None:
        """Start the timer. Call it after a statement has started while `is_watching` is False."""
        if self._limit_s is not None:
            self.is_watching = True
            self._timer = asyncio.get_running_loop().call_later(
                self._limit_s / CHECKS_PER_TIMEOUT, self._check, self._limit_s
            )

    def stop(self) -> None:
        """Stop the timer; the next statement, perhaps in another event loop, starts it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.is_watching = False

    def _check(self, limit_s: float) -> None:
        self._timer, self.is_watching = None, False
        newest_overdue = time.monotonic() - limit_s
        for connection in [connection for connection, started in self.active.items() if started <= newest_overdue]:
            # Removed first: the missing entry tells the caller why its connection was dropped.
            del self.active[connection]
            connection.terminate()
        if self.active:
            self.watch()
