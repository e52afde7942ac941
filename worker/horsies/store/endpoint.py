"""Resolve settings to a database (a URL or the embedded server) and open it; also create, drop and savepoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import asyncpg

# Imported at module level so that its atexit handler runs after the program's own handlers, which may still send tasks.
from horsies.embedded import EmbeddedServer, ServerHandle
from horsies.errors import BrokerError, BrokerErrorCode, DatabaseUnreachable
from horsies.store.connection import (
    DRIVER_ERRORS,
    Connection,
    ConnectionSpec,
    Keepalive,
    quote_identifier,
    translated_errors,
)
from horsies.store.database import CHECK_TIMEOUT_S, Database, PoolSettings, Transaction
from horsies.store.migrate import Migration, migrate, schema_state

if TYPE_CHECKING:
    from horsies.model.settings import PostgresConfig


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A resolved database. If it is the embedded server, it keeps running at least until `release`."""

    connection_spec: ConnectionSpec
    server_handle: ServerHandle | None

    def release(self) -> None:
        if self.server_handle is not None:
            self.server_handle.release()


def resolve_database(settings: PostgresConfig, *, read_only: bool = False) -> Endpoint:
    """Resolve the configured database; starts or joins the embedded server if it is that one. Blocks.

    A reader does not create a cluster: raises DatabaseUnreachable if there is none yet.
    """
    url = settings.database_url
    server = EmbeddedServer.at(url) if url.is_embedded else None
    if server is not None and read_only and not server.status().data_exists:
        raise DatabaseUnreachable(
            f"there is no database yet in {server.folder}",
            retryable=False,
            hint="start one: horsies db start, or horsies worker; or set broker.database_url",
        )
    server_handle = server.use() if server is not None else None
    return Endpoint(_make_spec(settings, server_handle, read_only=read_only), server_handle)


@asynccontextmanager
async def resolved_database(settings: PostgresConfig, *, read_only: bool = False) -> AsyncGenerator[ConnectionSpec]:
    """Resolve the configured database; an embedded server keeps running until the block ends."""
    # In a thread: starting the embedded server, and stopping it as its last user, takes seconds.
    endpoint = await asyncio.to_thread(resolve_database, settings, read_only=read_only)
    try:
        yield endpoint.connection_spec
    finally:
        await asyncio.to_thread(endpoint.release)


@asynccontextmanager
async def open_database(
    settings: PostgresConfig, *, read_only: bool = False, direct: bool = False
) -> AsyncGenerator[Database]:
    """Open the configured database; `direct` bypasses a pooler."""
    async with (
        resolved_database(settings, read_only=read_only) as spec,
        Database(spec.direct if direct else spec) as database,
    ):
        yield database


@asynccontextmanager
async def open_for_migration(settings: PostgresConfig) -> AsyncGenerator[Database]:
    """Open the database for migrations."""
    async with resolved_database(settings) as spec, migration_database(spec) as database:
        yield database


def migration_database(spec: ConnectionSpec) -> Database:
    """One direct connection without a statement timeout: a migration may have to build an index on a large table."""
    return Database(replace(spec.direct, statement_timeout_s=None), PoolSettings(max_size=1))


async def migrate_or_check(spec: ConnectionSpec, settings: PostgresConfig) -> tuple[Migration, ...]:
    """Prepare the schema for a service; returns the migrations applied.

    It is migrated if it is new, in the embedded server, or if `auto_migrate` is set; otherwise it must be current.
    """
    async with migration_database(spec) as database:
        state = await schema_state(database)
        if settings.auto_migrate or settings.database_url.is_embedded or not state.applied:
            return await migrate(database)
        state.check_current()
        return ()


def _make_spec(settings: PostgresConfig, server_handle: ServerHandle | None, *, read_only: bool) -> ConnectionSpec:
    keepalive = Keepalive(
        idle_s=settings.tcp_keepalives_idle,
        interval_s=settings.tcp_keepalives_interval,
        count=settings.tcp_keepalives_count,
        user_timeout_ms=settings.tcp_user_timeout_ms,
    )
    session_url = settings.session_database_url
    return ConnectionSpec(
        url=server_handle.url if server_handle else settings.database_url.reveal(),
        masked_url=server_handle.url if server_handle else settings.database_url.masked,
        schema=settings.schema,
        is_pooled=settings.pgbouncer_transaction_mode,
        read_only=read_only,
        keepalive=keepalive if settings.tcp_keepalives else None,
        echo=settings.echo,
        direct_url=session_url.reveal() if session_url else None,
        masked_direct_url=session_url.masked if session_url else None,
    )


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
    with translated_errors(connection_spec.masked_url):
        try:
            async with _nested_transaction(connection), _search_path(connection, connection_spec.schema):
                yield Transaction(connection, timeout_s=timeout_s)
        except asyncpg.InterfaceError as error:
            if _is_closed(connection):
                raise
            # On an open connection it means misuse, for example two statements at once, not an outage.
            message = f"the given connection cannot be used: {error}"
            raise BrokerError(message, code=BrokerErrorCode.ENQUEUE_FAILED) from error


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
        with suppress(*DRIVER_ERRORS):
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
