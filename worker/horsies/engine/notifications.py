"""What others tell this worker by notifications: new work, runs that are due, and orders."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.model import events
from horsies.store.connection import ConnectionSpec
from horsies.store.listen import (
    TASK_NEW_CHANNEL,
    WORKER_PING_CHANNEL,
    WORKFLOW_DUE_CHANNEL,
    Listener,
    is_notify_trigger_enabled,
    send_probe,
)
from horsies.store.workers import WorkerStore

if TYPE_CHECKING:
    from horsies.engine.worker import Parts


# Whether notifications reach this worker: its listener, which proves itself after a silence.

PROBE_AFTER_S: Final = 60.0
PROBE_TIMEOUT_S: Final = 5.0

_DISCONNECTED = "the listener lost its connection; due work is found by the poll"
_SILENT = "the listener hears nothing, not even itself; due work is found by the poll"
_TRIGGER_MISSING = "the trigger horsies_tasks_announce is missing or disabled; due work is found by the poll"


class ProbedListener:
    """A listener with its doubts. What is wrong is said in `parts.degraded`, and told when it begins and ends."""

    def __init__(
        self,
        parts: Parts,
        link: ConnectionSpec,
        channels: Mapping[str, Callable[[str], None]],
        *,
        probe_after_s: float = PROBE_AFTER_S,
    ) -> None:
        self._parts = parts
        self._probe_after_s = probe_after_s
        self._probe_channel = f"horsies_probe_{uuid4().hex}"
        heard = {name: self._marking_heard(hear) for name, hear in channels.items()}
        self._listener = Listener(
            link, {**heard, self._probe_channel: self._mark_heard}, on_change=self._on_connection_change
        )
        self._heard_at = time.monotonic()
        self._heard = asyncio.Event()
        self.listening = asyncio.Event()
        """Set when it listens for the first time."""
        self._listener_fault: str | None = None
        self._trigger_fault: str | None = None

    async def listen(self) -> None:
        """Listen until cancelled."""
        await self._listener.run()

    async def probe_periodically(self) -> None:
        """After each interval see that new work is announced, and after a silent one that we would hear it."""
        while True:
            await asyncio.sleep(self._probe_after_s)
            with suppress(HorsiesError):  # a database that is away proves nothing; others tell of it
                await self._check_trigger()
                if time.monotonic() - self._heard_at >= self._probe_after_s:
                    await self._probe()

    async def _check_trigger(self) -> None:
        is_announced = await is_notify_trigger_enabled(self._parts.claims.database)
        self._trigger_fault = None if is_announced else _TRIGGER_MISSING
        self._publish_degraded()

    async def _probe(self) -> None:
        self._heard.clear()
        await send_probe(self._parts.claims.database, self._probe_channel)
        try:
            async with asyncio.timeout(min(PROBE_TIMEOUT_S, self._probe_after_s)):
                await self._heard.wait()
        except TimeoutError:
            self._listener_fault = _SILENT
            self._publish_degraded()
            self._listener.reconnect()

    def _marking_heard(self, hear: Callable[[str], None]) -> Callable[[str], None]:
        def note_and_hear(payload: str) -> None:
            self._mark_heard(payload)
            hear(payload)

        return note_and_hear

    def _mark_heard(self, _payload: str) -> None:
        self._heard_at = time.monotonic()
        self._heard.set()

    def _on_connection_change(self, hearing: bool) -> None:  # noqa: FBT001  # the listener's one message
        if hearing:
            self.listening.set()
            self._listener_fault = None
            self._parts.wake_to_claim()  # what was said before went unheard
        else:
            self._listener_fault = self._listener_fault or _DISCONNECTED
        self._publish_degraded()

    def _publish_degraded(self) -> None:
        parts, why = self._parts, self._listener_fault or self._trigger_fault
        if parts.is_stopping or why == parts.degraded_reason:
            return
        parts.degraded_reason = why
        worker_id = str(parts.identity.worker_id)
        if why is None:
            parts.reporter.emit(events.ListenerRestored(worker_id=worker_id))
        else:
            parts.reporter.emit(events.ListenerDegraded(worker_id=worker_id, why=why))


class Notifications:
    """Hears them for as long as the worker is there, also while it drains: it can be asked and told until the end."""

    name = "notices"

    def __init__(self, parts: Parts, link: ConnectionSpec, *, probe_after_s: float = PROBE_AFTER_S) -> None:
        self._parts = parts
        self._fleet = WorkerStore(parts.claims.database)  # beats have their connection to themselves
        self._pongs: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        channels = {
            TASK_NEW_CHANNEL: self._on_task_new,
            WORKFLOW_DUE_CHANNEL: self._on_workflow_due,
            WORKER_PING_CHANNEL: self._on_worker_command,
        }
        self._listener = ProbedListener(parts, link, channels, probe_after_s=probe_after_s)
        self.listening = self._listener.listening

    async def run(self, stop: asyncio.Event) -> None:
        """Hear and answer until stop is set."""
        await run_until(stop, self._listener.listen(), self._listener.probe_periodically(), self._send_pongs())

    def _on_task_new(self, queue_name: str) -> None:
        if queue_name in (self._parts.worker.queues or ()):
            self._parts.on_task_notification()

    def _on_workflow_due(self, _workflow_id: str) -> None:
        self._parts.workflows_due.set()

    def _on_worker_command(self, payload: str) -> None:
        """A ping is answered, a kill makes us look at our rows, which say what to end; anything else is nothing."""
        try:
            order = cast("dict[str, Any]", json.loads(payload))
            kind, target = order["kind"], order.get("target_worker_id")
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        identity = self._parts.identity
        if target is not None and target not in {str(identity.worker_id), *map(str, identity.former_ids)}:
            return
        if kind == "ping":
            self._answer_ping(order)
        elif kind == "kill":
            self._parts.check_rows_now.set()

    def _answer_ping(self, order: dict[str, Any]) -> None:
        identity = self._parts.identity
        answer = {
            "correlation_id": order.get("correlation_id"),
            "worker_id": str(identity.worker_id),
            "hostname": identity.hostname,
            "pid": identity.pid,
        }
        self._pongs.put_nowait((str(order.get("reply_channel")), json.dumps(answer)))

    async def _send_pongs(self) -> None:
        while True:
            channel, answer = await self._pongs.get()
            with suppress(HorsiesError):  # whoever asked will ask again
                await self._fleet.send_pong(channel, answer)
