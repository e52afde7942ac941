"""Whether notifications arrive: said by one connection, heard by another, as between a worker and those who wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from horsies.store.failures import explain, is_failure_of_database
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from horsies.store.db import Database
    from horsies.store.link import Connection, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    said: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    is_announced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeQueries:
    notify: Query[Said]
    announced: Query[Announced]


PROBE = load(ProbeQueries, "horsies.store", "probe")


async def say(database: Database, channel: str) -> None:
    """Send an empty notification."""
    await database.fetch(PROBE.notify, channel)


async def is_new_work_announced(database: Database) -> bool:
    """Whether the trigger that tells of new work is there and enabled."""
    (row,) = await database.fetch(PROBE.announced)
    return row.is_announced


async def is_heard(database: Database, listening: Link, *, within_s: float) -> bool:
    """Whether what is said in `database` reaches a listener at `listening` in time."""
    channel = f"horsies_probe_{uuid4().hex}"
    connection = await listening.connect()
    try:
        heard = await _listen(connection, channel, listening)
        await say(database, channel)
        await asyncio.wait_for(heard.wait(), within_s)
    except TimeoutError:
        return False
    finally:
        connection.terminate()
    return True


async def _listen(connection: Connection, channel: str, link: Link) -> asyncio.Event:
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    try:
        await connection.add_listener(channel, hear)
    except Exception as error:
        if is_failure_of_database(error):
            raise explain(error, where=link.masked_url) from error
        raise
    return heard
