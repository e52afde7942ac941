"""Whether notifications reach this worker: its listener, which proves itself after a silence."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from horsies.errors import HorsiesError
from horsies.model import events
from horsies.store.notify import Listener
from horsies.store.probe import is_new_work_announced, say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horsies.engine.parts import Parts
    from horsies.store.link import Link

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
