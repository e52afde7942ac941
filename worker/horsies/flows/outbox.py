"""What is to be done for runs, worked off: whoever stored an outcome asked for it in the same breath."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from horsies.flows.advancing import LARGEST_BATCH, advance_due
from horsies.flows.away import is_away
from horsies.flows.building import LIMIT_S, Building
from horsies.flows.children import MOST_TRIES, Children
from horsies.flows.control import advance_tree
from horsies.store.events import Event, EventStore
from horsies.store.flows import FlowStore

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from horsies.model.workflow.plan import Definitions
    from horsies.store.db import Database

LOOK_AGAIN_S: Final = 0.05
"""After runs were passed by that another hand held, and while sub-workflows are being built."""

logger = logging.getLogger("horsies.workflow")


class Outbox:
    """Advances runs, many in a transaction; where one of them cannot be, the others are advanced without it."""

    def __init__(self, database: Database, definitions: Definitions, *, build_limit_s: float = LIMIT_S) -> None:
        self._database = database
        self._store = FlowStore(database)
        self._children = Children(database, Building(definitions, limit_s=build_limit_s))

    async def is_empty(self) -> bool:
        """Whether nothing is asked for; much cheaper than to find nothing to do."""
        return not await self._store.is_anything_asked()

    async def work_off(self, stop: asyncio.Event | None = None) -> bool:
        """Do what is asked for until nothing is, or `stop` is set; False where something is left."""
        while stop is None or not stop.is_set():
            done, passed_by = await self._advance()
            done += await self._children.start_waiting(patience_s=LOOK_AGAIN_S)
            if not done and not self._children.are_starting:
                return not passed_by
        return False

    def abandon(self) -> None:
        """Wait no longer for sub-workflows that are being built."""
        self._children.abandon()

    async def _advance(self) -> tuple[int, int]:
        """How many runs were advanced, and how many passed by."""
        try:
            advanced = await advance_due(self._database)
        except Exception as error:
            if is_away(error):
                raise
            logger.exception("runs could not be advanced together; now one by one")
            return await self._advance_one_by_one(), 0
        for workflow_id in advanced.to_pause:
            await self._advance_alone(workflow_id)
        return advanced.runs, advanced.passed_by

    async def _advance_one_by_one(self) -> int:
        due = await self._store.due(LARGEST_BATCH)
        for workflow_id in due:
            await self._advance_alone(workflow_id)
        return len(due)

    async def _advance_alone(self, workflow_id: UUID) -> None:
        try:
            await advance_tree(self._database, workflow_id)
        except Exception as error:
            if is_away(error):
                raise
            logger.exception("the run %s could not be advanced", workflow_id)
            await set_aside(self._database, workflow_id, error)


async def set_aside(database: Database, workflow_id: UUID, error: Exception) -> None:
    """Try what asks for this run again later, and ever more seldom."""
    why = f"{type(error).__name__}: {error}"
    failed = await FlowStore(database).note_failure(workflow_id, why, most_tries=MOST_TRIES)
    if any(row.is_quarantined for row in failed):
        event = Event(kind="outbox_quarantined", workflow_id=workflow_id, evidence={"error": why})
        await EventStore(database).record(event)
