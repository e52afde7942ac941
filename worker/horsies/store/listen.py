"""Channels, and a listener that comes back by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import asyncpg

from horsies.errors import HorsiesError
from horsies.store.connection import (
    CONNECT_TIMEOUT_S,
    LOST_CONNECTION,
    Connection,
    ConnectionSpec,
    is_database_error,
    translate_error,
)
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries

TASK_NEW_CHANNEL: Final = "horsies_task_new"
TASK_DONE_CHANNEL: Final = "horsies_task_done"
WORKFLOW_DONE_CHANNEL: Final = "horsies_workflow_done"
WORKFLOW_DUE_CHANNEL: Final = "horsies_workflow_due"
EVENTS_CHANNEL: Final = "horsies_events"
WORKER_PING_CHANNEL: Final = "horsies_worker_ping"

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0

logger = logging.getLogger("horsies.notify")


class Listener:
    """Hears channels on one connection of its own, and says whenever it begins, ceases or fails to hear.

    Whoever relies on it must look for themselves when it begins: what was said before went unheard.
    """

    def __init__(
        self,
        connection_spec: ConnectionSpec,
        channels: Mapping[str, Callable[[str], None]],
        *,
        on_change: Callable[[bool], None],
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self._link = connection_spec
        self._pauses_s = first_pause_s, longest_pause_s
        self._channels = channels
        self._on_change = on_change
        self._ended = asyncio.Event()
        self.failure: str | None = None
        """Why it last ceased or failed to hear, as far as it was told."""

    async def run(self) -> None:
        """Listen until cancelled."""
        first_pause_s, longest_pause_s = self._pauses_s
        pause_s = first_pause_s
        while True:
            try:
                connection = await self._link.connect()
            except HorsiesError as error:
                logger.debug("cannot listen: %s", error.message)
                self.failure = error.message
                self._on_change(False)  # noqa: FBT003  # heard or not is the whole message
            else:
                if await self._listen(connection):
                    pause_s = first_pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_pause_s)

    def reconnect(self) -> None:
        """Give up a connection on which nothing arrives, however alive it looks."""
        self._ended.set()

    async def _listen(self, connection: Connection) -> bool:
        """Pass on what is said until the connection ends; whether anything could be heard on it."""
        self._ended, is_hearing = asyncio.Event(), False
        ended = self._ended
        connection.add_termination_listener(lambda _: ended.set())
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                for channel in self._channels:
                    await connection.add_listener(channel, self._pass_on)
            is_hearing, self.failure = True, None
            self._on_change(True)  # noqa: FBT003  # heard or not is the whole message
            await ended.wait()
            self.failure = "the connection was closed"
        except (asyncpg.PostgresError, *LOST_CONNECTION) as error:
            logger.debug("stopped listening: %s", error)
            self.failure = str(error) or type(error).__name__
        finally:
            self._on_change(False)  # noqa: FBT003
            connection.terminate()
        return is_hearing

    def _pass_on(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        self._channels[channel](str(payload))


# Whether notifications arrive: said by one connection, heard by another, as between a worker and those who wait.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSentRow:
    said: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyTriggerRow:
    is_enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeQueries:
    send_probe: Query[ProbeSentRow]
    is_notify_trigger_enabled: Query[NotifyTriggerRow]


PROBE = load_queries(ProbeQueries, "horsies.store", "probe")


async def send_probe(database: Database, channel: str) -> None:
    """Send an empty notification."""
    await database.fetch(PROBE.send_probe, channel)


async def is_notify_trigger_enabled(database: Database) -> bool:
    """Whether the trigger that tells of new work is there and enabled."""
    (row,) = await database.fetch(PROBE.is_notify_trigger_enabled)
    return row.is_enabled


async def is_notify_delivered(database: Database, listener_spec: ConnectionSpec, *, within_s: float) -> bool:
    """Whether what is said in `database` reaches a listener at `listening` in time."""
    channel = f"horsies_probe_{uuid4().hex}"
    connection = await listener_spec.connect()
    try:
        heard = await _listen(connection, channel, listener_spec)
        await send_probe(database, channel)
        await asyncio.wait_for(heard.wait(), within_s)
    except TimeoutError:
        return False
    finally:
        connection.terminate()
    return True


async def _listen(connection: Connection, channel: str, link: ConnectionSpec) -> asyncio.Event:
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    try:
        await connection.add_listener(channel, hear)
    except Exception as error:
        if is_database_error(error):
            raise translate_error(error, where=link.masked_url) from error
        raise
    return heard
