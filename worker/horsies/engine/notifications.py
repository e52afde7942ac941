"""What others tell this worker by notifications: new work, runs that are due, and orders."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.model import events
from horsies.store.listen import TASK_NEW, WORKER_PING, WORKFLOW_DUE, Listener, is_new_work_announced, say
from horsies.store.workers import FleetStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horsies.engine.worker import Parts
    from horsies.store.connection import Link


# Whether notifications reach this worker: its listener, which proves itself after a silence.

PROBE_AFTER_S: Final = 60.0
HEARD_WITHIN_S: Final = 5.0

_CUT = "the listener lost its connection; due work is found by the poll"
_SILENT = "the listener hears nothing, not even itself; due work is found by the poll"
_UNANNOUNCED = "the trigger horsies_tasks_announce is missing or disabled; due work is found by the poll"


class Hearing:
    """A listener with its doubts. What is wrong is said in `parts.degraded`, and told when it begins and ends."""

    def __init__(
        self,
        parts: Parts,
        link: Link,
        channels: Mapping[str, Callable[[str], None]],
        *,
        probe_after_s: float = PROBE_AFTER_S,
    ) -> None:
        self._parts = parts
        self._probe_after_s = probe_after_s
        self._probe_channel = f"horsies_probe_{uuid4().hex}"
        heard = {name: self._noting(hear) for name, hear in channels.items()}
        self._listener = Listener(link, {**heard, self._probe_channel: self._note}, on_change=self._connected)
        self._heard_at = time.monotonic()
        self._heard = asyncio.Event()
        self.has_begun = asyncio.Event()
        """Set when it listens for the first time."""
        self._deaf: str | None = None
        self._unannounced: str | None = None

    async def listen(self) -> None:
        """Listen until cancelled."""
        await self._listener.run()

    async def doubt(self) -> None:
        """After each interval see that new work is announced, and after a silent one that we would hear it."""
        while True:
            await asyncio.sleep(self._probe_after_s)
            with suppress(HorsiesError):  # a database that is away proves nothing; others tell of it
                await self._look_at_trigger()
                if time.monotonic() - self._heard_at >= self._probe_after_s:
                    await self._probe()

    async def _look_at_trigger(self) -> None:
        is_announced = await is_new_work_announced(self._parts.claims.database)
        self._unannounced = None if is_announced else _UNANNOUNCED
        self._tell()

    async def _probe(self) -> None:
        self._heard.clear()
        await say(self._parts.claims.database, self._probe_channel)
        try:
            async with asyncio.timeout(min(HEARD_WITHIN_S, self._probe_after_s)):
                await self._heard.wait()
        except TimeoutError:
            self._deaf = _SILENT
            self._tell()
            self._listener.reconnect()

    def _noting(self, hear: Callable[[str], None]) -> Callable[[str], None]:
        def note_and_hear(payload: str) -> None:
            self._note(payload)
            hear(payload)

        return note_and_hear

    def _note(self, _payload: str) -> None:
        self._heard_at = time.monotonic()
        self._heard.set()

    def _connected(self, hearing: bool) -> None:  # noqa: FBT001  # the listener's one message
        if hearing:
            self.has_begun.set()
            self._deaf = None
            self._parts.look()  # what was said before went unheard
        else:
            self._deaf = self._deaf or _CUT
        self._tell()

    def _tell(self) -> None:
        parts, why = self._parts, self._deaf or self._unannounced
        if parts.is_stopping or why == parts.degraded:
            return
        parts.degraded = why
        worker_id = str(parts.identity.worker_id)
        if why is None:
            parts.reporter.emit(events.ListenerRestored(worker_id=worker_id))
        else:
            parts.reporter.emit(events.ListenerDegraded(worker_id=worker_id, why=why))


class Notices:
    """Hears them for as long as the worker is there, also while it drains: it can be asked and told until the end."""

    name = "notices"

    def __init__(self, parts: Parts, link: Link, *, probe_after_s: float = PROBE_AFTER_S) -> None:
        self._parts = parts
        self._fleet = FleetStore(parts.claims.database)  # beats have their connection to themselves
        self._pongs: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        channels = {TASK_NEW: self._hear_new, WORKFLOW_DUE: self._hear_due, WORKER_PING: self._hear_order}
        self._hearing = Hearing(parts, link, channels, probe_after_s=probe_after_s)
        self.hears = self._hearing.has_begun

    async def run(self, stop: asyncio.Event) -> None:
        """Hear and answer until stop is set."""
        await run_until(stop, self._hearing.listen(), self._hearing.doubt(), self._send_pongs())

    def _hear_new(self, queue_name: str) -> None:
        if queue_name in (self._parts.worker.queues or ()):
            self._parts.hear_news()

    def _hear_due(self, _workflow_id: str) -> None:
        self._parts.runs_are_due.set()

    def _hear_order(self, payload: str) -> None:
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
            self._answer(order)
        elif kind == "kill":
            self._parts.look_at_rows.set()

    def _answer(self, order: dict[str, Any]) -> None:
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
                await self._fleet.pong(channel, answer)
