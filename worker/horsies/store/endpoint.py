"""From settings to a database: the address that was configured, or the embedded server where none was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import asyncpg

# Not where it is used: its farewell at exit must come after those of the program, whose handlers may still send.
from horsies.embedded import EmbeddedServer, ServerHandle
from horsies.errors import BrokerError, BrokerErrorCode, HorsiesError
from horsies.store.connection import (
    LOST_CONNECTION,
    Connection,
    ConnectionSpec,
    Keepalive,
    is_database_error,
    quoted,
    translate_error,
)
from horsies.store.database import CHECK_TIMEOUT_S, Database, PoolSettings, Transaction

if TYPE_CHECKING:
    from horsies.model.settings import PostgresConfig


MIGRATION_TIMEOUT_S = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSpecs:
    """The two ways to one database: for statements, and, past a pooler, for LISTEN, migrations and held locks."""

    main: ConnectionSpec
    direct: ConnectionSpec
    embedded_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A database within reach: an embedded server runs at least until `release`."""

    connection_specs: ConnectionSpecs
    lease: ServerHandle | None

    def release(self) -> None:
        if self.lease is not None:
            self.lease.release()


def resolve_database(settings: PostgresConfig, *, read_only: bool = False) -> Endpoint:
    """Find out how to reach the configured database; where it is the embedded one, start or join it. Blocks."""
    url = settings.database_url
    lease = EmbeddedServer(url.embedded_folder).use() if url.is_embedded else None
    return Endpoint(_make_specs(settings, lease, read_only=read_only), lease)


@asynccontextmanager
async def resolved_database(settings: PostgresConfig, *, read_only: bool = False) -> AsyncGenerator[ConnectionSpecs]:
    """Yield how to reach the configured database; an embedded server runs until the block is left."""
    reached = await asyncio.to_thread(resolve_database, settings, read_only=read_only)
    try:
        yield reached.connection_specs
    finally:
        await asyncio.to_thread(reached.release)


@asynccontextmanager
async def open_database(
    settings: PostgresConfig,
    *,
    read_only: bool = False,
    direct: bool = False,
    pool_settings: PoolSettings | None = None,
) -> AsyncGenerator[Database]:
    """Yield the configured database; `direct` goes past a pooler."""
    async with (
        resolved_database(settings, read_only=read_only) as links,
        Database(links.direct if direct else links.main, pool_settings) as database,
    ):
        yield database


@asynccontextmanager
async def open_for_migration(settings: PostgresConfig) -> AsyncGenerator[Database]:
    """Yield the database as migrations need it: past a pooler, one connection, and no limit on a statement's time."""
    async with resolved_database(settings) as links:
        link = replace(links.direct, statement_timeout_s=MIGRATION_TIMEOUT_S)
        async with Database(link, PoolSettings(max_size=1)) as database:
            yield database


def _make_specs(settings: PostgresConfig, lease: ServerHandle | None, *, read_only: bool) -> ConnectionSpecs:
    base = ConnectionSpec(
        url=lease.url if lease else settings.database_url.reveal(),
        masked_url=lease.url if lease else settings.database_url.masked,
        schema=settings.schema,
        is_pooled=settings.pgbouncer_transaction_mode,
        read_only=read_only,
        keepalive=_keepalive(settings),
        echo=settings.echo,
    )
    direct = replace(base, is_pooled=False)
    if settings.session_database_url is not None:
        session = settings.session_database_url
        direct = replace(direct, url=session.reveal(), masked_url=session.masked)
    usual = replace(base, direct=direct) if base.is_pooled else base
    return ConnectionSpecs(main=usual, direct=direct, embedded_folder=lease.folder if lease else None)


def _keepalive(settings: PostgresConfig) -> Keepalive | None:
    if not settings.tcp_keepalives:
        return None
    return Keepalive(
        idle_s=settings.tcp_keepalives_idle,
        interval_s=settings.tcp_keepalives_interval,
        count=settings.tcp_keepalives_count,
        user_timeout_ms=settings.tcp_user_timeout_ms,
    )


# Making and dropping whole databases on a server, for those that are thrown away.


async def create_database(server: ConnectionSpec, name: str, *, template: str) -> None:
    """Make a database as a copy of `template`, which nobody may be using meanwhile."""
    await _run(server, f"CREATE DATABASE {quoted(name)} TEMPLATE {quoted(template)}")


async def drop_database(server: ConnectionSpec, name: str) -> None:
    """Remove a database, whoever is still connected to it."""
    await _run(server, f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")


async def _run(server: ConnectionSpec, sql: str) -> None:
    # On a connection of its own: these statements refuse to run inside a transaction.
    connection = await server.connect()
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


# Statements on a connection that belongs to the caller, inside the caller's own transaction.


@asynccontextmanager
async def savepoint(
    caller_connection: object, connection_spec: ConnectionSpec, *, timeout_s: float
) -> AsyncGenerator[Transaction]:
    """Yield a transaction under a savepoint: what fails in it is undone alone, and the caller's goes on.

    Where the caller has no transaction, it is one of its own.
    """
    borrowed = cast("Connection", caller_connection)
    try:
        async with _nested_transaction(borrowed), _search_path(borrowed, connection_spec.schema):
            yield Transaction(borrowed, timeout_s=timeout_s)
    except Exception as error:
        if is_database_error(error):
            raise _explain(error, borrowed, connection_spec) from error
        raise


@asynccontextmanager
async def _nested_transaction(connection: Connection) -> AsyncGenerator[None]:
    if connection.is_closed():
        # Perhaps the server did that; sent again on another connection it may well be stored.
        raise BrokerError(
            "the given connection is closed",
            code=BrokerErrorCode.ENQUEUE_FAILED,
            retryable=True,
            hint="give an open one",
        )
    if not connection.is_in_transaction():
        async with connection.transaction():
            yield
        return
    # By hand: the driver refuses its own savepoints in a transaction that it did not begin.
    await connection.execute("SAVEPOINT horsies_send")
    try:
        yield
    except BaseException:
        await _undo(connection)
        raise
    await connection.execute("RELEASE SAVEPOINT horsies_send")


async def _undo(connection: Connection) -> None:
    # Where this fails too, what happened first is what the caller has to hear of.
    with suppress(asyncpg.PostgresError, *LOST_CONNECTION):
        undo = "ROLLBACK TO SAVEPOINT horsies_send; RELEASE SAVEPOINT horsies_send"
        await connection.execute(undo, timeout=CHECK_TIMEOUT_S)


@asynccontextmanager
async def _search_path(connection: Any, schema: str) -> AsyncGenerator[None]:
    """Our schema first for these statements, the caller's own order of schemas afterwards."""
    theirs = await connection.fetchrow("SELECT current_schema()::text AS first, current_setting('search_path') AS path")
    if theirs["first"] == schema:
        yield
        return
    await connection.execute("SELECT set_config('search_path', $1, true)", quoted(schema))
    yield
    # Not needed after a failure: the savepoint undoes the setting too.
    await connection.execute("SELECT set_config('search_path', $1, true)", theirs["path"])


def _explain(error: Exception, connection: Connection, link: ConnectionSpec) -> HorsiesError:
    if isinstance(error, asyncpg.InterfaceError) and not _is_closed(connection):
        return BrokerError(f"the given connection cannot be used: {error}", code=BrokerErrorCode.ENQUEUE_FAILED)
    return translate_error(error, where=link.masked_url)


def _is_closed(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # given back to a pool, which may use it for others by now
        return False
