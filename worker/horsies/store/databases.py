"""Making and dropping whole databases on a server, for those that are thrown away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.store.link import quoted

if TYPE_CHECKING:
    from horsies.store.link import Link


async def create_database(server: Link, name: str, *, template: str) -> None:
    """Make a database as a copy of `template`, which nobody may be using meanwhile."""
    await _run(server, f"CREATE DATABASE {quoted(name)} TEMPLATE {quoted(template)}")


async def drop_database(server: Link, name: str) -> None:
    """Remove a database, whoever is still connected to it."""
    await _run(server, f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")


async def _run(server: Link, sql: str) -> None:
    # On a connection of its own: these statements refuse to run inside a transaction.
    connection = await server.connect()
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
