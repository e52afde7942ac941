"""Notification channels, a listener that reconnects, pings, and probes that check that notifications arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from horsies.errors import DatabaseUnreachable, HorsiesError
from horsies.store.connection import (
    CONNECT_TIMEOUT_S,
    DRIVER_ERRORS,
    Connection,
    ConnectionSpec,
    translated_errors,
)
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries

TASK_NEW_CHANNEL: Final = "horsies_task_new"
TASK_DONE_CHANNEL: Final = "horsies_task_done"
WORKFLOW_DONE_CHANNEL: Final = "horsies_workflow_done"
WORKFLOW_DUE_CHANNEL: Final = "horsies_workflow_due"
EVENTS_CHANNEL: Final = "horsies_events"
WORKER_PING_CHANNEL: Final = "horsies_worker_ping"

INITIAL_BACKOFF_S = 0.2
MAX_BACKOFF_S = 5.0

logger = logging.getLogger("horsies.notify")


class Listener:
    """Listens on channels with its own connection, and reconnects with backoff.

    `on_change` is called with True when it starts listening and with False when it stops or fails to connect. Poll once
    after each True: notifications sent before it are lost.
    """

    def __init__(
        self,
        connection_spec: ConnectionSpec,
        channels: Mapping[str, Callable[[str], None]],
        *,
        on_change: Callable[[bool], None],
        initial_backoff_s: float = INITIAL_BACKOFF_S,
        max_backoff_s: float = MAX_BACKOFF_S,
    ) -> None:
        self._connection_spec = connection_spec
        self._backoff_s = initial_backoff_s, max_backoff_s
        self._channels = channels
        self._on_change = on_change
        self._ended = asyncio.Event()
        self.failure: str | None = None
        """Why it last stopped or failed to listen; None while listening."""

    async def run(self) -> None:
        """Listen until cancelled."""
        initial_backoff_s, max_backoff_s = self._backoff_s
        backoff_s = initial_backoff_s
        while True:
            try:
                connection = await self._connection_spec.connect()
            except HorsiesError as error:
                logger.debug("cannot listen: %s", error.message)
                self.failure = error.message
                self._on_change(False)  # noqa: FBT003
            else:
                if await self._listen(connection):
                    backoff_s = initial_backoff_s
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, max_backoff_s)

    def reconnect(self) -> None:
        """Drop the connection and open a new one, for a connection that looks alive but delivers nothing."""
        self._ended.set()

    async def _listen(self, connection: Connection) -> bool:
        """Dispatch notifications until the connection ends; returns whether LISTEN succeeded."""
        self._ended, is_listening = asyncio.Event(), False
        # The callback keeps the event of its own connection; the next connection gets a new one.
        ended = self._ended
        connection.add_termination_listener(lambda _: ended.set())
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                for channel in self._channels:
                    await connection.add_listener(channel, self._dispatch)
            is_listening, self.failure = True, None
            self._on_change(True)  # noqa: FBT003
            await ended.wait()
            self.failure = "connection closed"
        except DRIVER_ERRORS as error:
            logger.debug("stopped listening: %s", error)
            self.failure = str(error) or type(error).__name__
        finally:
            self._on_change(False)  # noqa: FBT003
            # Not close(): it would wait for a server that may no longer respond.
            connection.terminate()
        return is_listening

    def _dispatch(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        self._channels[channel](str(payload))


# One channel for a short time: replies to pings, and probes


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyQueries:
    notify: Query[None]
    is_notify_trigger_enabled: Query[bool]


NOTIFY = load_queries(NotifyQueries, "horsies.store", "notify")


class Subscription:
    """Notifications on one channel, received on a connection of their own."""

    def __init__(self, connection: Connection, where: str) -> None:
        self.connection = connection
        self._where = where
        self._payloads: asyncio.Queue[str | None] = asyncio.Queue()

    async def next_payload(self) -> str:
        """Wait for the next notification; raises DatabaseUnreachable if the connection is lost."""
        payload = await self._payloads.get()
        if payload is None:
            raise DatabaseUnreachable(f"connection to {self._where} lost while waiting for notifications")
        return payload

    def on_notification(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._payloads.put_nowait(str(payload))

    def on_disconnect(self, _connection: object) -> None:
        self._payloads.put_nowait(None)


@asynccontextmanager
async def subscribe(connection_spec: ConnectionSpec, channel: str) -> AsyncGenerator[Subscription]:
    """Listen on a channel; notifications sent before are not delivered. LISTEN needs a connection past any pooler."""
    connection = await connection_spec.connect()
    subscription = Subscription(connection, connection_spec.masked_url)
    try:
        connection.add_termination_listener(subscription.on_disconnect)
        with translated_errors(connection_spec.masked_url):
            await connection.add_listener(channel, subscription.on_notification)
        yield subscription
    finally:
        # Removed first: our own terminate() is not a lost connection.
        connection.remove_termination_listener(subscription.on_disconnect)
        connection.terminate()


@asynccontextmanager
async def open_ping(
    connection_spec: ConnectionSpec, *, reply_channel: str, message: str
) -> AsyncGenerator[Subscription]:
    """Ping all workers and listen for their replies."""
    async with subscribe(connection_spec, reply_channel) as replies:
        with translated_errors(connection_spec.masked_url):
            await replies.connection.execute(NOTIFY.notify.sql, WORKER_PING_CHANNEL, message)
        yield replies


async def notify(database: Database, channel: str, payload: str = "") -> None:
    await database.execute(NOTIFY.notify, channel, payload)


async def is_notify_trigger_enabled(database: Database) -> bool:
    """Whether the trigger that notifies workers of new tasks exists and is enabled."""
    return await database.fetch_single(NOTIFY.is_notify_trigger_enabled)


async def is_notify_delivered(database: Database, listener_spec: ConnectionSpec, *, within_s: float) -> bool:
    """Whether a notification sent through `database` reaches a listener at `listener_spec` in time."""
    channel = f"horsies_probe_{uuid4().hex}"
    async with subscribe(listener_spec, channel) as probe:
        await notify(database, channel)
        try:
            await asyncio.wait_for(probe.next_payload(), within_s)
        except TimeoutError:
            return False
    return True
