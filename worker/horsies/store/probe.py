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
class ProbeQueries:
    notify: Query[Said]


PROBE = load(ProbeQueries, "horsies.store", "probe")


async def is_heard(database: Database, listening: Link, *, within_s: float) -> bool:
    """Whether what is said in `database` reaches a listener at `listening` in time."""
    channel = f"horsies_probe_{uuid4().hex}"
    connection = await listening.connect()
    try:
        heard = await _listen(connection, channel, listening)
        await database.fetch(PROBE.notify, channel)
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
