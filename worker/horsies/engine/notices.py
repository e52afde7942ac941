"""What others tell this worker by notifications: new work, runs that are due, and orders."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from horsies.engine.hearing import PROBE_AFTER_S, Hearing
from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.store.fleet import FleetStore
from horsies.store.notify import TASK_NEW, WORKER_PING, WORKFLOW_DUE

if TYPE_CHECKING:
    from horsies.engine.parts import Parts
    from horsies.store.link import Link


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
