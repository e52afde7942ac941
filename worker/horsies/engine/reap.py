"""The reaper of a worker: at each interval, where it is its turn, it goes through the duties of recovery."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from horsies.engine.operation import Operation
from horsies.model import events
from horsies.model.recovery.turns import Candidate, has_the_turn
from horsies.store.recovery import RecoveryStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from horsies.engine.parts import Parts
    from horsies.model.recovery.judging import Fleet


class Reaper:
    """Makes passes until it is stopped, and ends the one in hand.

    A pass that another worker has just made is left out, and one that another can judge better is left to it.
    """

    name = "reaper"

    def __init__(self, parts: Parts, duties: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
        self._parts = parts
        self._store = RecoveryStore(parts.claims.database)
        self._operations = [Operation(name, work, changed=self._changed) for name, work in duties.items()]

    async def run(self, stop: asyncio.Event) -> None:
        interval_s = self._parts.app.recovery.check_interval_ms / 1000
        passes = Operation("pass of the reaper", lambda: self._make_pass(stop), changed=self._changed)
        # Workers that were started together do not tick together.
        await _wait(stop, interval_s * random.random())  # noqa: S311
        while not stop.is_set():
            began = time.monotonic()
            await passes.tick()
            await _wait(stop, interval_s - (time.monotonic() - began))

    async def _make_pass(self, stop: asyncio.Event) -> None:
        began = time.monotonic()
        fleet = await self._store.fleet()
        if not has_the_turn(self._candidate(), fleet):
            return
        for operation in self._operations:
            if not stop.is_set():
                await operation.tick()
        self._passed(fleet, took_s=time.monotonic() - began)

    def _candidate(self) -> Candidate:
        parts = self._parts
        return Candidate(
            worker_id=parts.identity.worker_id,
            config=parts.app.recovery,
            listening_since=parts.health.listening_since,
        )

    def _passed(self, fleet: Fleet, *, took_s: float) -> None:
        self._parts.health.last_pass_at = fleet.now + timedelta(seconds=took_s)
        self._parts.tell_health.set()
        self._parts.reporter.emit(events.PassFinished(worker_id=str(self._parts.identity.worker_id)))

    def _changed(self, operation: str, error: str | None) -> None:
        parts, worker_id = self._parts, str(self._parts.identity.worker_id)
        if error is None:
            parts.health.disabled.pop(operation, None)
            parts.reporter.emit(events.OperationEnabled(worker_id=worker_id, operation=operation))
        else:
            parts.health.disabled[operation] = error
            parts.reporter.emit(events.OperationDisabled(worker_id=worker_id, operation=operation, error=error))


class Rarely:
    """Work that is due once in an interval, the first time one interval from now."""

    def __init__(self, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        self._interval_s = interval_s
        self._work = work
        self._done_at = time.monotonic()

    async def __call__(self) -> None:
        if time.monotonic() - self._done_at >= self._interval_s:
            await self._work()
            self._done_at = time.monotonic()


async def _wait(stop: asyncio.Event, limit_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), max(0.0, limit_s))
