"""Heals stuck runs: runs with due steps but no outbox entry, left behind by processes that died.

Advancing a run carries out everything that is due, so that is all healing does. It is idempotent. Tasks that no node
waits for (orphans) are cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from horsies.codec.results import error_document
from horsies.errors import is_transient
from horsies.model.events import EventKind, EventRecord
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.model.workflow.progress import next_steps
from horsies.store.connection import LockTimeout
from horsies.store.database import Database, Transaction
from horsies.store.operators import EventStore
from horsies.store.workflows import RunNodeRow, RunRow, StuckRun, WorkflowStore
from horsies.workflows.advance import group_by_run, run_state
from horsies.workflows.control import advance_tree
from horsies.workflows.outbox import OutboxProcessor, defer_run

ROWS_PER_CASE: Final = 200
"""Rows of each case that one pass reads."""
LOCK_TIMEOUT_MS: Final = 500
"""Wait for the lock of a run; longer than a normal step holds it."""
SHORT_LOCK_TIMEOUT_MS: Final = 1
"""The same after a first timeout in this pass: the transaction that holds one run may hold hundreds."""

logger = logging.getLogger("horsies.workflow")


@dataclass(slots=True, kw_only=True)
class HealingResult:
    """The result of one pass; what it did not reach is left for the next."""

    healed: list[StuckRun] = field(default_factory=list[StuckRun])
    """Runs that were advanced, and orphans that were cancelled."""
    locked: list[UUID] = field(default_factory=list["UUID"])
    """Runs locked by another transaction, left unchanged."""


async def heal(database: Database, definitions: WorkflowDefinitions, *, limit: int = ROWS_PER_CASE) -> list[StuckRun]:
    """Heal stuck runs, each in its own transaction, then process the outbox.

    Waits until the sub-workflows are built, up to the build timeout.
    """
    await WorkflowStore(database).release_quarantined()
    result = await heal_stuck(database, limit=limit)
    outbox = OutboxProcessor(database, definitions)
    try:
        await outbox.process()
    finally:
        outbox.abandon()
    return result.healed


async def heal_stuck(
    database: Database, *, limit: int = ROWS_PER_CASE, must_end: Callable[[], bool] = lambda: False
) -> HealingResult:
    """Heal stuck runs without processing the outbox; workers do that.

    Stops early once `must_end()`, but heals at least one run, so that every pass makes progress.
    """
    store = WorkflowStore(database)
    result = HealingResult()
    for number, stuck in enumerate(await _stuck_runs(store, limit)):
        if number and must_end():
            break
        await _heal_one(database, stuck, result)
    result.healed += await _cancel_orphans(store, limit, must_end)
    for healed in result.healed:
        await EventStore(database).record(
            EventRecord(
                kind=EventKind.WORKFLOW_HEALED,
                workflow_id=healed.workflow_id,
                task_id=healed.task_id,
                evidence={"case": healed.case},
            )
        )
    return result


async def preview_healing(database: Database, *, limit: int = ROWS_PER_CASE) -> list[StuckRun]:
    """What `heal_stuck` would do now; takes no locks and writes nothing."""
    store = WorkflowStore(database)
    stuck = await _stuck_runs(store, limit)
    ids = [run.workflow_id for run in stuck if run.workflow_id]
    nodes = group_by_run(await store.run_nodes(ids))
    due = {run.id for run in await store.read_runs(ids) if _has_due_steps(run, nodes.get(run.id, {}))}
    return [run for run in stuck if run.workflow_id in due] + await store.orphaned_tasks(limit)


def _has_due_steps(run: RunRow, nodes: Mapping[int, RunNodeRow]) -> bool:
    try:
        # Compute all steps: damaged data may raise only at the last one.
        return bool(list(next_steps(run_state(run, nodes, {}))))
    except Exception:
        logger.exception("checking a run failed", extra={"run": str(run.id)})
        return False


async def _stuck_runs(store: WorkflowStore, limit: int) -> list[StuckRun]:
    """Each stuck run once, with the first case that found it."""
    found: dict[UUID | None, StuckRun] = {}
    for run in await store.stuck_runs(limit):
        found.setdefault(run.workflow_id, run)
    return list(found.values())


async def _heal_one(database: Database, stuck: StuckRun, result: HealingResult) -> None:
    """Advance a run if something is due. If that fails, leave it to the outbox with its retries and quarantine.

    A run locked by another transaction is skipped: waiting would delay the rest of the pass.
    """
    workflow_id = stuck.workflow_id
    assert workflow_id is not None  # noqa: S101  # only orphans have none
    lock_timeout_ms = SHORT_LOCK_TIMEOUT_MS if result.locked else LOCK_TIMEOUT_MS

    async def advance_run(transaction: Transaction) -> bool:
        await WorkflowStore(transaction).set_lock_timeout(timeout_ms=lock_timeout_ms)
        return await advance_tree(transaction, workflow_id)

    try:
        if await database.run(advance_run):
            result.healed.append(stuck)
    except LockTimeout:
        result.locked.append(workflow_id)
    except Exception as error:
        if is_transient(error):
            raise
        # The run has no outbox entry, and `defer_run` changes only existing ones.
        await WorkflowStore(database).request_advance(workflow_id)
        await defer_run(database, workflow_id, error)


async def _cancel_orphans(store: WorkflowStore, limit: int, must_end: Callable[[], bool]) -> Sequence[StuckRun]:
    orphans = await store.orphaned_tasks(limit)
    if not orphans or must_end():
        return []
    error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="orphaned: no workflow node waits for this task")
    return await store.cancel_orphaned_tasks(orphans, error_document(error))
