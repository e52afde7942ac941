"""Statements on a connection that belongs to the caller, inside the caller's own transaction."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from horsies.store.db import Transaction
from horsies.store.failures import explain, is_failure_of_database
from horsies.store.link import quoted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from horsies.store.link import Connection, Link


@asynccontextmanager
async def savepoint(connection: object, link: Link, *, timeout_s: float) -> AsyncGenerator[Transaction]:
    """Yield a transaction under a savepoint: what fails in it is undone alone, and the caller's goes on."""
    borrowed = cast("Connection", connection)
    try:
        async with borrowed.transaction(), _search_path(borrowed, link.schema):
            yield Transaction(borrowed, timeout_s=timeout_s)
    except Exception as error:
        if is_failure_of_database(error):
            raise explain(error, where=link.masked_url) from error
        raise


@asynccontextmanager
async def _search_path(connection: Any, schema: str) -> AsyncGenerator[None]:
    """Our schema first for these statements, the caller's own order of schemas afterwards."""
    if schema == "public":
        yield
        return
    theirs = await connection.fetchval("SELECT current_setting('search_path')")
    await connection.execute("SELECT set_config('search_path', $1, true)", quoted(schema))
    yield
    # Not needed after a failure: the savepoint undoes the setting too.
    await connection.execute("SELECT set_config('search_path', $1, true)", theirs)
