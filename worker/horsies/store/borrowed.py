"""Statements on a connection that belongs to the caller, inside the caller's own transaction."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import asyncpg

from horsies.errors import BrokerError, BrokerErrorCode
from horsies.store.db import Transaction
from horsies.store.failures import LOST_CONNECTION, explain, is_failure_of_database
from horsies.store.link import quoted
from horsies.store.pool import CHECK_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from horsies.errors import HorsiesError
    from horsies.store.link import Connection, Link


@asynccontextmanager
async def savepoint(connection: object, link: Link, *, timeout_s: float) -> AsyncGenerator[Transaction]:
    """Yield a transaction under a savepoint: what fails in it is undone alone, and the caller's goes on.

    Where the caller has no transaction, it is one of its own.
    """
    borrowed = cast("Connection", connection)
    try:
        async with _undone_alone(borrowed), _search_path(borrowed, link.schema):
            yield Transaction(borrowed, timeout_s=timeout_s)
    except Exception as error:
        if is_failure_of_database(error):
            raise _explain(error, borrowed, link) from error
        raise


@asynccontextmanager
async def _undone_alone(connection: Connection) -> AsyncGenerator[None]:
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


def _explain(error: Exception, connection: Connection, link: Link) -> HorsiesError:
    if isinstance(error, asyncpg.InterfaceError) and not _is_closed(connection):
        return BrokerError(f"the given connection cannot be used: {error}", code=BrokerErrorCode.ENQUEUE_FAILED)
    return explain(error, where=link.masked_url)


def _is_closed(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # given back to a pool, which may use it for others by now
        return False
