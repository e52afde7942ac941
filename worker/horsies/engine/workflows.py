"""Advances workflow runs after their nodes finish, here or on other workers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from horsies.errors import is_transient
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.workflows.outbox import RECHECK_S, OutboxProcessor

if TYPE_CHECKING:
    from horsies.engine.service import Backoff
    from horsies.store.database import Database

FINAL_ADVANCE_TIMEOUT_S: Final = 2.0
"""Limit for the runs that the last outcomes of a stopping worker make due; other workers advance the rest."""


class WorkflowAdvancer:
    """Processes the workflow outbox when woken: by an outcome, a notification, or the poll that found entries."""

    name = "workflows"

    def __init__(
        self,
        database: Database,
        definitions: WorkflowDefinitions,
        *,
        woken: asyncio.Event,
        backoff: Backoff,
        unknown_grace_s: float | None,
    ) -> None:
        self._woken = woken
        self._outbox = OutboxProcessor(database, definitions, unknown_grace_s=unknown_grace_s)
        self._backoff = backoff

    async def run(self, stop: asyncio.Event) -> None:
        """Advance runs until `stop` is set, then once more for the last outcomes of this worker."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._woken.set())
        try:
            is_done = False
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if is_done else RECHECK_S):
                        await self._woken.wait()
                is_done = await self._advance_with_retry(stop)
            with suppress(TimeoutError):
                async with asyncio.timeout(FINAL_ADVANCE_TIMEOUT_S):
                    await self._advance_with_retry()
        finally:
            stopping.cancel()
            self._outbox.abandon()

    async def _advance_with_retry(self, stop: asyncio.Event | None = None) -> bool:
        """Process the outbox; returns whether it is empty now."""
        self._woken.clear()
        while True:
            try:
                is_done = await self._outbox.process(stop)
            except Exception as error:
                if not is_transient(error):
                    raise
                await self._backoff.wait(error)
            else:
                self._backoff.reset()
                return is_done
