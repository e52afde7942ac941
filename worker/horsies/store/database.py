"""Database access: a connection pool, typed statements, timeouts, retries after deadlocks, and holders of our locks."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

from horsies.errors import DatabaseUnreachable
from horsies.store.connection import (
    CONFLICT_ERRORS,
    DRIVER_ERRORS,
    Connection,
    ConnectionSpec,
    Row,
    translate_error,
    translated_errors,
)
from horsies.store.queries import Query, load_queries

R = TypeVar("R")
A = TypeVar("A")

CHECK_AFTER_IDLE_S = 30.0
"""A connection idle for longer is checked before it is used."""
CHECK_TIMEOUT_S = 5.0
MAX_CONFLICT_RETRIES = 8
SLOW_STATEMENT_S = 0.5
"""A statement that takes longer on a connection that keeps its plans has waited for a lock or has a bad plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Size of a pool, how long to wait for a connection, and how long idle ones above `min_size` are kept."""

    min_size: int = 0
    max_size: int = 15
    acquire_timeout_s: float = 30.0
    idle_s: float = 1800.0
    check_idle: bool = True
    """Whether to check a connection that was idle for `CHECK_AFTER_IDLE_S` before it is used."""
    setting_name: str = "broker.pool_size"
    """The setting to name in errors about an exhausted pool."""


class Executor(ABC):
    """Runs statements: a `Database` runs each in a transaction of its own, a `Transaction` all of them in one."""

    @abstractmethod
    def fetch_raw(
        self, query: Query[Any], *arguments: object, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, list[Row]]:
        """Run a statement and return the driver's rows. `timeout_s` replaces the statement timeout."""

    async def fetch(self, query: Query[R], *arguments: object) -> list[R]:
        """Run a statement and return its rows."""
        return list(map(query.to_row, await self.fetch_raw(query, *arguments)))

    async def fetch_one(self, query: Query[R], *arguments: object) -> R | None:
        """The first row; None if there is none."""
        rows = await self.fetch(query, *arguments)
        return rows[0] if rows else None

    async def fetch_single(self, query: Query[R], *arguments: object) -> R:
        """The row of a statement that always returns exactly one."""
        (row,) = await self.fetch(query, *arguments)
        return row

    async def execute(self, query: Query[Any], *arguments: object) -> None:
        """Run a statement and ignore its rows."""
        await self.fetch_raw(query, *arguments)

    @abstractmethod
    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in one transaction."""


class Database(Executor):
    """Runs statements on a pool of connections, translates errors, and retries after deadlocks."""

    def __init__(
        self,
        connection_spec: ConnectionSpec,
        pool_settings: PoolSettings | None = None,
        *,
        on_timeout: Callable[[], None] = lambda: None,
    ) -> None:
        self.connection_spec = connection_spec
        self._on_timeout = on_timeout
        """Called after a statement got no answer in time."""
        self._pool_settings = pool_settings or PoolSettings()
        self._pool = ConnectionPool(connection_spec, self._pool_settings)
        # `begin_sql` sets the session settings behind a pooler, and READ ONLY for read-only access, so even a single
        # statement needs a transaction.
        self._needs_transaction = connection_spec.is_pooled or connection_spec.read_only
        self._keeps_plans = connection_spec.force_generic_plan and not connection_spec.is_pooled

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, those in use after their statement; a later statement opens new ones."""
        # Replaced before the await, so that a statement started meanwhile does not use the pool being closed.
        pool, self._pool = self._pool, ConnectionPool(self.connection_spec, self._pool_settings)
        await pool.close()

    def terminate(self) -> None:
        """Close all sockets at once, without ending the sessions; for a process that is exiting or was forked."""
        pool, self._pool = self._pool, ConnectionPool(self.connection_spec, self._pool_settings)
        pool.terminate()

    def drop_connections(self) -> None:
        """Close all sockets without ending the sessions, those in use after their statement; later ones are new."""
        self._pool.drop_all()

    def fetch_raw(
        self, query: Query[Any], *arguments: object, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, list[Row]]:
        if self._needs_transaction:
            return self.run(lambda transaction: transaction.fetch_raw(query, *arguments, timeout_s=timeout_s))
        return self._with_retry(lambda connection: connection.fetch(query.sql, *arguments, timeout=timeout_s))

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in one transaction; all of it runs again after a deadlock or serialization failure."""

        async def in_transaction(connection: Connection) -> A:
            async with self._transaction(connection):
                return await work(Transaction(connection))

        return await self._with_retry(in_transaction)

    @asynccontextmanager
    async def lock_transaction(self) -> AsyncGenerator[Transaction]:
        """A transaction that only holds a lock while statements run on other connections; rolled back at the end.

        Opens a connection of its own if the pool has only one, which the other statements need. Losing the connection,
        and the lock with it, raises no error by itself.
        """
        with translated_errors(self.connection_spec.masked_url):
            async with self._dedicated_connection() as connection:
                await connection.execute(self.connection_spec.begin_sql)
                try:
                    yield Transaction(connection)
                finally:
                    await _roll_back(connection)

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

    async def _with_retry(self, work: Callable[[Connection], Awaitable[A]]) -> A:
        """Run `work` on a pooled connection; again after a deadlock or serialization failure."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self._on_connection(work)
            except DRIVER_ERRORS as error:
                if not isinstance(error, CONFLICT_ERRORS) or tries > MAX_CONFLICT_RETRIES:
                    spec = self.connection_spec
                    raise translate_error(error, where=spec.masked_url, expects_writes=not spec.read_only) from error
            # A short, linear backoff: the winner of the conflict holds its locks for one statement only.
            await asyncio.sleep(0.005 * tries)

    async def _on_connection(self, work: Callable[[Connection], Awaitable[A]]) -> A:
        pool = self._pool  # the connection goes back to this one, even if `close` replaces it meanwhile
        connection = await pool.acquire()
        started_at = time.monotonic()
        try:
            result = await work(connection)
            # A generic plan made while a table was empty may use nested loops over all rows until the next ANALYZE. If
            # the plan was not the reason, planning again takes a few milliseconds.
            if self._keeps_plans and time.monotonic() - started_at > SLOW_STATEMENT_S:
                await _try_execute(connection, "DISCARD PLANS")
            return result  # noqa: TRY300
        except TimeoutError:
            # The network may have dropped this connection without closing it, and then probably all others too.
            connection.terminate()
            pool.drop_all()
            self._on_timeout()
            raise
        finally:
            pool.release(connection)

    @asynccontextmanager
    async def _transaction(self, connection: Connection) -> AsyncGenerator[None]:
        try:
            await connection.execute(self.connection_spec.begin_sql)
            yield
        except (asyncio.CancelledError, TimeoutError):
            connection.terminate()  # ROLLBACK would wait for the server, which may not be responding
            raise
        except BaseException:
            await _roll_back(connection)
            raise
        await connection.execute("COMMIT")


async def _roll_back(connection: Connection) -> None:
    if not connection.is_closed():
        await _try_execute(connection, "ROLLBACK")


async def _try_execute(connection: Connection, sql: str) -> bool:
    """Run a statement and return whether it succeeded; drops the connection instead of raising a driver error."""
    try:
        await connection.execute(sql, timeout=CHECK_TIMEOUT_S)
    except DRIVER_ERRORS:
        connection.terminate()
        return False
    return True


class Transaction(Executor):
    """Statements on one connection inside one transaction."""

    def __init__(self, connection: Connection, *, timeout_s: float | None = None) -> None:
        self.connection = connection
        self._timeout_s = timeout_s
        """Timeout of each statement; None: that of the connection."""

    async def fetch_raw(self, query: Query[Any], *arguments: object, timeout_s: float | None = None) -> list[Row]:
        return await self.connection.fetch(query.sql, *arguments, timeout=timeout_s or self._timeout_s)

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` as a part of this transaction."""
        return await work(self)

    async def run_script(self, sql: str) -> None:
        """Run several statements without arguments, such as a migration."""
        await self.connection.execute(sql)


class ConnectionPool:
    """Connections that are opened on demand and reused last in, first out, so that surplus ones become idle.

    Sessions keep no state, so nothing is reset on release. A connection idle for 30 s is checked before use.
    `asyncpg.Pool` is not used because a cancelled caller would wait for the server, and each use costs 40 µs more.
    """

    def __init__(self, connection_spec: ConnectionSpec, settings: PoolSettings) -> None:
        self._connection_spec = connection_spec
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_size)
        self._idle: deque[tuple[Connection, float]] = deque()
        """Idle connections, each with the time it became idle; the most recently used is on the right."""
        self._in_use: set[Connection] = set()
        """Connections to keep when they are released."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def acquire(self) -> Connection:
        """Return a connection to use until `release`; raises DatabaseUnreachable or TimeoutError if none is found.

        Waiting for a free one, checking it and opening a new one take at most `acquire_timeout_s` together.
        """
        if not self._slots.locked() and self._idle and self._is_fresh(self._idle[-1]):
            await self._slots.acquire()  # does not wait, so it needs no timer
            connection, _ = self._idle.pop()
        else:
            connection = await self._wait_and_open()
        self._in_use.add(connection)
        return connection

    def release(self, connection: Connection) -> None:
        """Return a connection in any state to the pool; it is dropped if it is still in a transaction."""
        self._slots.release()  # a waiter that this wakes runs only after this call, so it finds the connection
        is_kept = connection in self._in_use
        self._in_use.discard(connection)
        if connection.is_closed():  # checked first: the driver raises on other calls to a closed connection
            return
        if self._is_closed or not is_kept or connection.is_in_transaction():
            connection.terminate()
            return
        self._idle.append((connection, time.monotonic()))
        if self._idle_timer is None:
            self._start_idle_timer()

    def drop_all(self) -> None:
        """Close the sockets of idle connections now, and of those in use when they are released."""
        self._in_use.clear()
        while self._idle:
            connection, _ = self._idle.pop()
            connection.terminate()

    async def close(self) -> None:
        """Close idle connections; one in use is closed when it is released."""
        for connection in self._take_all_idle():
            try:
                await connection.close(timeout=CHECK_TIMEOUT_S)
            except DRIVER_ERRORS:
                connection.terminate()

    def terminate(self) -> None:
        """Close idle sockets at once, without ending the sessions; for a process that is exiting or was forked."""
        for connection in self._take_all_idle():
            connection.terminate()

    def _take_all_idle(self) -> list[Connection]:
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        connections = [connection for connection, _ in self._idle]
        self._idle.clear()
        return connections

    async def _wait_and_open(self) -> Connection:
        """Wait for a slot, then take an idle connection that works or open one, within the timeout."""
        settings, has_slot = self._settings, False
        try:
            async with asyncio.timeout(settings.acquire_timeout_s):
                await self._slots.acquire()
                has_slot = True
                return await self._pop_idle() or await self._connection_spec.connect()
        except BaseException as error:
            if has_slot:
                self._slots.release()
            elif isinstance(error, TimeoutError):
                text = f"all {settings.max_size} connections are in use; none became free in"
                hint = f"raise {settings.setting_name} or broker.pool_timeout"
                raise DatabaseUnreachable(f"{text} {settings.acquire_timeout_s:g} s", hint=hint) from None
            raise

    async def _pop_idle(self) -> Connection | None:
        """Return an idle connection that works; None if there is none."""
        while self._idle:
            connection, idle_since = self._idle.pop()
            if connection.is_closed():
                continue
            try:
                if self._is_fresh((connection, idle_since)) or await _try_execute(connection, "SELECT 1"):
                    return connection
            except BaseException:  # cancelled during the check: no one else knows this connection any more
                connection.terminate()
                raise
            self.drop_all()  # the server or the network closed it, and then probably the others too
        return None

    def _is_fresh(self, idle: tuple[Connection, float]) -> bool:
        """Whether to use an idle connection without a check."""
        connection, idle_since = idle
        is_recent = time.monotonic() - idle_since < CHECK_AFTER_IDLE_S or not self._settings.check_idle
        return is_recent and not connection.is_closed()

    def _start_idle_timer(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(self._settings.idle_s, self._drop_idle)

    def _drop_idle(self) -> None:
        self._idle_timer = None
        oldest_kept = time.monotonic() - self._settings.idle_s
        # Connections are reused from the right, so those idle for longest are on the left.
        while len(self._idle) > self._settings.min_size and self._idle[0][1] <= oldest_kept:
            connection, _ = self._idle.popleft()
            connection.terminate()
        if self._idle:
            self._start_idle_timer()


# Holders of advisory locks


logger = logging.getLogger("horsies.locks")

CLAIM_LOCK: Final = "claim"
"""Lock of claims under a cap of the whole cluster; those of queues are `claim/<queue>`."""
SWEEP_LOCK: Final = "sweep"
"""The leader lock."""
RETENTION_LOCK: Final = "retention"
"""Lock of a full retention pass."""
HEARTBEAT_RETENTION_LOCK: Final = "retention of heartbeats"
"""Lock of the reaper's heartbeat cleanup."""
SCHEDULE_SYNC_LOCK: Final = "schedules"
"""Lock of a sync of schedule definitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that holds one of our locks."""

    purpose: str
    pid: int | None
    """None for a prepared transaction."""
    role: str | None
    application_name: str | None
    age: timedelta | None
    """Age of its transaction; None if our role may not see it."""
    is_ours: bool
    """Whether its role may change our tables; any other role has no use for the lock."""

    def is_suspicious(self, limit: timedelta) -> bool:
        """Whether it is a stranger, or has held the lock for longer than `limit`."""
        return not self.is_ours or (self.age is not None and self.age > limit)

    def __str__(self) -> str:
        if self.pid is None:
            return f"lock {self.purpose!r} is held by a prepared transaction (see pg_prepared_xacts)"
        age = "an unknown time, hidden from this role" if self.age is None else f"{self.age.total_seconds():.1f} s"
        application = self.application_name or "unnamed"
        stranger = "" if self.is_ours else ", which may not change our tables"
        return (
            f"lock {self.purpose!r} is held for {age} by pid {self.pid}: "
            f"application {application}, role {self.role or 'unknown'}{stranger}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockQueries:
    holders: Query[LockHolder]
    claim_lock_purposes: Query[str]


LOCKS = load_queries(LockQueries, "horsies.store", "locks")


async def lock_holders(executor: Executor, purposes: Sequence[str]) -> list[LockHolder]:
    """Other sessions that hold these locks."""
    return await executor.fetch(LOCKS.holders, list(purposes))


async def log_suspicious_holders(executor: Executor, purpose: str, *, limit: timedelta) -> None:
    """Log who keeps us from taking a lock, unless it is one of our processes that took it a moment ago."""
    for holder in await lock_holders(executor, [purpose]):
        if holder.is_suspicious(limit):
            logger.warning("%s", holder, extra={"hint": "run: horsies doctor"})


async def all_lock_holders(executor: Executor) -> list[LockHolder]:
    """Other sessions that hold a lock on which claims, sweeps or cleanup depend.

    The locks of NOTIFY coalescing are left out: a send that does not get one notifies a moment later.
    """
    claims = await executor.fetch(LOCKS.claim_lock_purposes)
    ours = (CLAIM_LOCK, SWEEP_LOCK, RETENTION_LOCK, HEARTBEAT_RETENTION_LOCK, SCHEDULE_SYNC_LOCK)
    return await lock_holders(executor, [*ours, *claims])
