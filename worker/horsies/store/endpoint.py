"""Resolve settings to a database (a URL or the embedded server) and open it; also create, drop and savepoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import asyncpg

# Imported at module level so that its atexit handler runs after the program's own handlers, which may still send tasks.
from horsies.embedded import EmbeddedServer, ServerHandle
from horsies.errors import BrokerError, BrokerErrorCode
from horsies.store.connection import (
    LOST_CONNECTION,
    Connection,
    ConnectionSpec,
    Keepalive,
    is_database_error,
    quote_identifier,
    translate_error,
)
from horsies.store.database import CHECK_TIMEOUT_S, Database, PoolSettings, Transaction

if TYPE_CHECKING:
    from horsies.model.settings import PostgresConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSpecs:
    """Two ways to one database: `main` for statements, `direct` (past any pooler) for LISTEN, migrations and locks."""

    main: ConnectionSpec
    direct: ConnectionSpec
    embedded_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A resolved database. If it is the embedded server, it keeps running at least until `release`."""

    connection_specs: ConnectionSpecs
    server_handle: ServerHandle | None

    def release(self) -> None:
        if self.server_handle is not None:
            self.server_handle.release()


def resolve_database(settings: PostgresConfig, *, read_only: bool = False) -> Endpoint:
    """Resolve the configured database; starts or joins the embedded server if it is that one. Blocks."""
    url = settings.database_url
    server_handle = EmbeddedServer(url.embedded_folder).use() if url.is_embedded else None
    return Endpoint(_make_specs(settings, server_handle, read_only=read_only), server_handle)


@asynccontextmanager
async def resolved_database(settings: PostgresConfig, *, read_only: bool = False) -> AsyncGenerator[ConnectionSpecs]:
    """Resolve the configured database; an embedded server keeps running until the block ends."""
    # In a thread: starting the embedded server, and stopping it as its last user, takes seconds.
    endpoint = await asyncio.to_thread(resolve_database, settings, read_only=read_only)
    try:
        yield endpoint.connection_specs
    finally:
        await asyncio.to_thread(endpoint.release)


@asynccontextmanager
async def open_database(
    settings: PostgresConfig,
    *,
    read_only: bool = False,
    direct: bool = False,
    pool_settings: PoolSettings | None = None,
) -> AsyncGenerator[Database]:
    """Open the configured database; `direct` bypasses a pooler."""
    async with (
        resolved_database(settings, read_only=read_only) as specs,
        Database(specs.direct if direct else specs.main, pool_settings) as database,
    ):
        yield database


@asynccontextmanager
async def open_for_migration(settings: PostgresConfig) -> AsyncGenerator[Database]:
    """Open the database for migrations: one direct connection without a statement timeout."""
    async with resolved_database(settings) as specs:
        # A migration may have to build an index on a large table.
        spec = replace(specs.direct, statement_timeout_s=None)
        async with Database(spec, PoolSettings(max_size=1)) as database:
            yield database


def _make_specs(settings: PostgresConfig, server_handle: ServerHandle | None, *, read_only: bool) -> ConnectionSpecs:
    keepalive = Keepalive(
        idle_s=settings.tcp_keepalives_idle,
        interval_s=settings.tcp_keepalives_interval,
        count=settings.tcp_keepalives_count,
        user_timeout_ms=settings.tcp_user_timeout_ms,
    )
    base = ConnectionSpec(
        url=server_handle.url if server_handle else settings.database_url.reveal(),
        masked_url=server_handle.url if server_handle else settings.database_url.masked,
        schema=settings.schema,
        is_pooled=settings.pgbouncer_transaction_mode,
        read_only=read_only,
        keepalive=keepalive if settings.tcp_keepalives else None,
        echo=settings.echo,
    )
    direct = replace(base, is_pooled=False)
    if settings.session_database_url is not None:
        session = settings.session_database_url
        direct = replace(direct, url=session.reveal(), masked_url=session.masked)
    main = replace(base, direct=direct) if base.is_pooled else base
    return ConnectionSpecs(main=main, direct=direct, embedded_folder=server_handle.folder if server_handle else None)


# Temporary databases


async def create_database(server: ConnectionSpec, name: str, *, template: str) -> None:
    """Create a database as a copy of `template`, which must have no open connections."""
    await _run(server, f"CREATE DATABASE {quote_identifier(name)} TEMPLATE {quote_identifier(template)}")


async def drop_database(server: ConnectionSpec, name: str) -> None:
    """Drop a database, closing its open connections."""
    await _run(server, f"DROP DATABASE IF EXISTS {quote_identifier(name)} WITH (FORCE)")


async def _run(server: ConnectionSpec, sql: str) -> None:
    # CREATE and DROP DATABASE cannot run inside a transaction, so they bypass `Database`.
    connection = await server.connect()
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


# Statements on the caller's connection


@asynccontextmanager
async def savepoint(
    caller_connection: object, connection_spec: ConnectionSpec, *, timeout_s: float
) -> AsyncGenerator[Transaction]:
    """Run statements in the caller's transaction under a savepoint: a failure undoes only them.

    If the caller is not in a transaction, begins one and commits it.
    """
    connection = cast("Connection", caller_connection)
    try:
        async with _nested_transaction(connection), _search_path(connection, connection_spec.schema):
            yield Transaction(connection, timeout_s=timeout_s)
    except Exception as error:
        # On an open connection an InterfaceError means misuse, for example two statements at once, not an outage.
        if isinstance(error, asyncpg.InterfaceError) and not _is_closed(connection):
            message = f"the given connection cannot be used: {error}"
            raise BrokerError(message, code=BrokerErrorCode.ENQUEUE_FAILED) from error
        if is_database_error(error):
            raise translate_error(error, where=connection_spec.masked_url) from error
        raise


@asynccontextmanager
async def _nested_transaction(connection: Connection) -> AsyncGenerator[None]:
    if connection.is_closed():
        # Retryable: the server may have closed it, and the same send works on another connection.
        raise BrokerError(
            "the given connection is closed",
            code=BrokerErrorCode.ENQUEUE_FAILED,
            retryable=True,
            hint="pass an open connection",
        )
    if not connection.is_in_transaction():
        async with connection.transaction():
            yield
        return
    # Not connection.transaction(): the driver rejects its own savepoints in a transaction it did not begin.
    await connection.execute("SAVEPOINT horsies_send")
    try:
        yield
    except BaseException:
        # If the rollback fails too, raise the first error, not this one.
        with suppress(asyncpg.PostgresError, *LOST_CONNECTION):
            undo = "ROLLBACK TO SAVEPOINT horsies_send; RELEASE SAVEPOINT horsies_send"
            await connection.execute(undo, timeout=CHECK_TIMEOUT_S)
        raise
    await connection.execute("RELEASE SAVEPOINT horsies_send")


@asynccontextmanager
async def _search_path(connection: Any, schema: str) -> AsyncGenerator[None]:
    """Set our schema as search_path for these statements, and restore the caller's afterwards."""
    query = "SELECT current_schema()::text AS first, current_setting('search_path') AS path"
    previous = await connection.fetchrow(query)
    if previous["first"] == schema:
        yield
        return
    await connection.execute("SELECT set_config('search_path', $1, true)", quote_identifier(schema))
    yield
    # Not needed after an error: rolling back to the savepoint restores the setting too.
    await connection.execute("SELECT set_config('search_path', $1, true)", previous["path"])


def _is_closed(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        # The caller released it to a pool: it may be open, but no longer belongs to the caller.
        return False
