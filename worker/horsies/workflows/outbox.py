"""Processes the workflow outbox: advances runs and starts sub-workflows.

The transaction that stores an outcome also inserts an outbox entry for its run, so no outcome is missed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from uuid import UUID

from horsies.errors import is_transient
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.store.database import Database
from horsies.store.workflows import WorkflowStore
from horsies.workflows.advance import ADVANCE_BATCH, advance_due
from horsies.workflows.control import advance_tree
from horsies.workflows.start import (
    BUILD_TIMEOUT_S,
    MAX_TRIES,
    SubWorkflowBuilder,
    SubWorkflowStarter,
    record_quarantine,
)

RECHECK_S: Final = 0.05
"""Delay before the next pass while runs are locked by others or sub-workflows are being built."""

logger = logging.getLogger("horsies.workflow")


class OutboxProcessor:
    """Advances many runs per transaction; if one of them fails, advances each in its own transaction."""

    def __init__(
        self,
        database: Database,
        definitions: WorkflowDefinitions,
        *,
        build_timeout_s: float = BUILD_TIMEOUT_S,
        unknown_grace_s: float | None = 3_600,
    ) -> None:
        self._database = database
        self._store = WorkflowStore(database)
        builder = SubWorkflowBuilder(definitions, timeout_s=build_timeout_s)
        self._sub_workflows = SubWorkflowStarter(database, builder, unknown_grace_s=unknown_grace_s)

    async def process(self, stop: asyncio.Event | None = None) -> bool:
        """Process entries until none is due or `stop` is set; False if entries are left."""
        while stop is None or not stop.is_set():
            done, locked = await self._advance()
            done += await self._sub_workflows.start_pending(wait_s=RECHECK_S)
            if not done and not self._sub_workflows.has_starting:
                return not locked
        return False

    def abandon(self) -> None:
        """Stop waiting for sub-workflows that are being built."""
        self._sub_workflows.abandon()

    async def _advance(self) -> tuple[int, int]:
        """Returns how many runs were advanced, and how many were skipped because others have locked them."""
        try:
            advanced = await advance_due(self._database)
        except Exception as error:
            if is_transient(error):
                raise
            # One damaged run fails the whole batch; alone, it fails and is deferred without the others.
            due = await self._store.due_runs(ADVANCE_BATCH)
            if all([await self._advance_alone(workflow_id) for workflow_id in due]):
                logger.exception("advancing a batch of runs failed, and succeeded one by one")
            return len(due), 0
        for workflow_id in advanced.to_pause:
            await self._advance_alone(workflow_id)
        return advanced.runs, advanced.locked

    async def _advance_alone(self, workflow_id: UUID) -> bool:
        """Advance one run; False if that failed and the run is deferred."""
        try:
            await advance_tree(self._database, workflow_id)
        except Exception as error:
            if is_transient(error):
                raise
            await defer_run(self._database, workflow_id, error)
            return False
        return True


async def defer_run(database: Database, workflow_id: UUID, error: Exception) -> None:
    """Retry the run's outbox entries later, with increasing delays; quarantine them after MAX_TRIES.

    Each failure is logged in one line, the last one with its traceback.
    """
    reason = f"{type(error).__name__}: {error}"
    if await WorkflowStore(database).record_advance_failure(workflow_id, reason, max_tries=MAX_TRIES):
        fields = {"run": str(workflow_id), "tries": MAX_TRIES}
        logger.error("run quarantined", extra=fields, exc_info=error)
        await record_quarantine(database, workflow_id, reason)
    else:
        logger.warning("advancing a run failed, trying again later", extra={"run": str(workflow_id), "error": reason})
