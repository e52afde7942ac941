"""A line in the log once a minute, where anything was run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from horsies.engine.service import run_until
from horsies.model import events
from horsies.model.account import TOLD_EVERY_S

if TYPE_CHECKING:
    from horsies.engine.identity import Identity
    from horsies.engine.reporting import Reporter


class Minutes:
    """Tells what was run since the last time, and which tasks still fail."""

    name = "minutes"

    def __init__(self, reporter: Reporter, identity: Identity, *, every_s: float = TOLD_EVERY_S) -> None:
        self._reporter = reporter
        self._identity = identity
        self._every_s = every_s

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._tell_for_ever())

    async def _tell_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            self._tell()

    def _tell(self) -> None:
        worker_id = str(self._identity.worker_id)
        self._reporter.tell_failing(worker_id)
        if (ran := self._reporter.account.take()) is not None:
            told = events.TasksRan(
                worker_id=worker_id, count=ran.count, failed=ran.failed, retried=ran.retried, within_s=self._every_s
            )
            self._reporter.emit(told)
