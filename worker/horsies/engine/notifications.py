"""Receives notifications from PostgreSQL: new tasks, workflow runs that are due, and commands to the worker."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from horsies.engine import events
from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.listen import (
    TASK_NEW_CHANNEL,
    WORKER_PING_CHANNEL,
    WORKFLOW_DUE_CHANNEL,
    Listener,
    is_notify_trigger_enabled,
    notify,
)
from horsies.store.schedules import SCHEDULES_CHANNEL

if TYPE_CHECKING:
    from horsies.engine.dispatcher import Wakeup
    from horsies.engine.heartbeat import Health, WorkerIdentity
    from horsies.engine.reporter import Reporter
    from horsies.engine.unknown_tasks import UnknownTasks

REPLY_CHANNEL: Final = re.compile(r"horsies_pong_[0-9a-f]{32}")
"""The channels that `PingRequest` chooses; a worker notifies no others."""
ECHO_DELAY_S: Final = 0.1
"""Delay of the claim after a notification that is probably that of an own release."""
PROBE_AFTER_S: Final = 60.0
PROBE_TIMEOUT_S: Final = 5.0
MAX_PONGS: Final = 64
"""Answers to pings that wait to be sent; further pings are dropped."""
MAX_PING_CHARS: Final = 1_000

logger = logging.getLogger("horsies.notify")

_DISCONNECTED = "the listener lost its connection; new tasks are found by polling"
_SILENT = "the listener receives no notifications; new tasks are found by polling"
_TRIGGER_MISSING = "the trigger horsies_tasks_announce is missing or disabled; new tasks are found by polling"


class Notifications:
    """Handles notifications until the worker has drained, so that it can be pinged and killed while stopping."""

    name = "notifications"

    def __init__(
        self,
        database: Database,
        connection_spec: ConnectionSpec,
        *,
        queues: Collection[str],
        identity: WorkerIdentity,
        wakeup: Wakeup,
        unknown_tasks: UnknownTasks,
        health: Health,
        reporter: Reporter,
        workflows_due: asyncio.Event,
        schedules_changed: asyncio.Event,
        check_rows_now: asyncio.Event,
        stop: asyncio.Event,
        probe_after_s: float = PROBE_AFTER_S,
    ) -> None:
        self._database = database
        self._queues = queues
        self._identity = identity
        self._wakeup = wakeup
        self._unknown_tasks = unknown_tasks
        self._check_rows_now = check_rows_now
        self._pongs: asyncio.Queue[tuple[str, str]] = asyncio.Queue(MAX_PONGS)
        handlers: dict[str, Callable[[str], None]] = {
            TASK_NEW_CHANNEL: self._on_task_new,
            WORKFLOW_DUE_CHANNEL: lambda _workflow_id: workflows_due.set(),
            WORKER_PING_CHANNEL: self._on_worker_command,
            SCHEDULES_CHANNEL: lambda _payload: schedules_changed.set(),
        }
        self._listener = ProbedListener(
            database,
            connection_spec,
            handlers,
            health=health,
            reporter=reporter,
            identity=identity,
            wakeup=wakeup,
            stop=stop,
            probe_after_s=probe_after_s,
        )
        self.listening = self._listener.listening

    async def run(self, stop: asyncio.Event) -> None:
        """Receive notifications and answer pings until `stop` is set."""
        await run_until(stop, self._listener.listen(), self._listener.probe_periodically(), self._send_pongs())

    def _on_task_new(self, queue_name: str) -> None:
        if queue_name not in self._queues:
            return
        if self._unknown_tasks.is_own_notification(queue_name):
            # Not ignored: the echo may be lost, and this may be the notification of a new task.
            self._wakeup.wake_to_claim_in(ECHO_DELAY_S)
        else:
            self._wakeup.on_task_notification()

    def _on_worker_command(self, payload: str) -> None:
        """Answer a ping; on a kill command check our rows, which hold the kill requests. Ignore anything else.

        Any role that may connect can notify, so a message is untrusted.
        """
        try:
            command = cast("dict[str, Any]", json.loads(payload))
            kind, target = command["kind"], command.get("target_worker_id")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            logger.debug("malformed message on %s: %s", WORKER_PING_CHANNEL, type(error).__name__)
            return
        identity = self._identity
        if target is not None and target not in (str(identity.worker_id), *map(str, identity.former_ids)):
            return
        if kind == "ping" and len(payload) <= MAX_PING_CHARS:
            self._answer_ping(command)
        elif kind == "kill":
            self._check_rows_now.set()

    def _answer_ping(self, command: dict[str, Any]) -> None:
        identity, channel = self._identity, command.get("reply_channel")
        if not isinstance(channel, str) or not REPLY_CHANNEL.fullmatch(channel):
            logger.debug("ping with a reply channel that is not ours")
            return
        pong = {
            "correlation_id": command.get("correlation_id"),
            "worker_id": str(identity.worker_id),
            "hostname": identity.hostname,
            "pid": identity.pid,
        }
        with suppress(asyncio.QueueFull):  # a flood; a real sender tries again
            self._pongs.put_nowait((channel, json.dumps(pong)))

    async def _send_pongs(self) -> None:
        while True:
            channel, pong = await self._pongs.get()
            with suppress(HorsiesError):  # the sender of the ping tries again
                await notify(self._database, channel, pong)


class ProbedListener:
    """A listener that checks by itself whether notifications arrive.

    `Health.listener_problem` says what is wrong; changes of it are emitted as ListenerDegraded and ListenerRestored.
    """

    def __init__(
        self,
        database: Database,
        connection_spec: ConnectionSpec,
        handlers: Mapping[str, Callable[[str], None]],
        *,
        health: Health,
        reporter: Reporter,
        identity: WorkerIdentity,
        wakeup: Wakeup,
        stop: asyncio.Event,
        probe_after_s: float = PROBE_AFTER_S,
    ) -> None:
        self._database = database
        self._health = health
        self._reporter = reporter
        self._identity = identity
        self._wakeup = wakeup
        self._stop = stop
        """Set when the worker stops: changes are not reported any more."""
        self._probe_after_s = probe_after_s
        self._probe_channel = f"horsies_probe_{uuid4().hex}"
        channels = {name: self._recording(handler) for name, handler in handlers.items()}
        channels[self._probe_channel] = self._record_received
        self._listener = Listener(connection_spec, channels, on_change=self._on_connection_change)
        self._received_at = time.monotonic()
        self._received = asyncio.Event()
        self.listening = asyncio.Event()
        """Set when the listener is connected for the first time."""
        self._listener_fault: str | None = None
        self._trigger_fault: str | None = None

    async def listen(self) -> None:
        """Listen until cancelled."""
        await self._listener.run()

    async def probe_periodically(self) -> None:
        """At each interval check the trigger; if nothing was received meanwhile, send a notification to ourselves."""
        while True:
            await asyncio.sleep(self._probe_after_s)
            with suppress(HorsiesError):  # an unavailable database is reported by other services
                is_enabled = await is_notify_trigger_enabled(self._database)
                self._trigger_fault = None if is_enabled else _TRIGGER_MISSING
                self._publish_degraded()
                if time.monotonic() - self._received_at >= self._probe_after_s:
                    await self._probe()

    async def _probe(self) -> None:
        self._received.clear()
        await notify(self._database, self._probe_channel)
        try:
            async with asyncio.timeout(min(PROBE_TIMEOUT_S, self._probe_after_s)):
                await self._received.wait()
        except TimeoutError:
            self._listener_fault = _SILENT
            self._publish_degraded()
            self._listener.reconnect()

    def _recording(self, handler: Callable[[str], None]) -> Callable[[str], None]:
        def record_and_handle(payload: str) -> None:
            self._record_received(payload)
            handler(payload)

        return record_and_handle

    def _record_received(self, _payload: str) -> None:
        self._received_at = time.monotonic()
        self._received.set()

    def _on_connection_change(self, is_connected: bool) -> None:  # noqa: FBT001  # signature of Listener.on_change
        if is_connected:
            self.listening.set()
            self._listener_fault = None
            self._wakeup.wake_to_claim()  # earlier notifications were missed
        else:
            self._listener_fault = self._listener_fault or _DISCONNECTED
        self._publish_degraded()

    def _publish_degraded(self) -> None:
        reason = self._listener_fault or self._trigger_fault
        if self._stop.is_set() or reason == self._health.listener_problem:
            return
        self._health.listener_problem = reason
        worker_id = str(self._identity.worker_id)
        if reason is None:
            self._reporter.emit(events.ListenerRestored(worker_id=worker_id))
        else:
            self._reporter.emit(events.ListenerDegraded(worker_id=worker_id, why=reason))
