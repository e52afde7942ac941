"""Heals stuck runs: runs with due steps but no outbox entry, left behind by processes that died.

Advancing a run carries out everything that is due, so that is all healing does. It is idempotent. Tasks that no node
waits for (orphans) are cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.model.events import EventRecord
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.model.workflow.progress import next_steps
from horsies.store.database import Database, Transaction
from horsies.store.operators import EventStore
from horsies.store.workflow_control import WorkflowHealingStore, is_lock_timeout, set_lock_timeout
from horsies.store.workflows import RunNodeRow, RunRow, WorkflowStore
from horsies.workflows.advance import group_by_run, is_transient, run_state
from horsies.workflows.control import advance_tree_within
from horsies.workflows.outbox import OutboxProcessor, defer_run

ROWS_PER_CASE: Final = 200
"""Rows of each case that one pass reads."""
LOCK_TIMEOUT_MS: Final = 500
"""Wait for the lock of a run; longer than a normal step holds it."""
SHORT_LOCK_TIMEOUT_MS: Final = 1
"""The same after a first timeout in this pass: the transaction that holds one run may hold hundreds."""
ORPHAN_CASE: Final = "4"
"""The case reported for orphaned tasks; `stuck_runs` reports the others."""

logger = logging.getLogger("horsies.workflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealedRun:
    """A run that was healed (or would be, in a preview) or a cancelled orphan, and the case that was found."""

    workflow_id: UUID | None
    case: str
    task_id: UUID | None = None


@dataclass(slots=True, kw_only=True)
class HealingResult:
    """The result of one pass; what it did not reach is left for the next."""

    healed: list[HealedRun] = field(default_factory=list[HealedRun])
    locked: list[UUID] = field(default_factory=list["UUID"])
    """Runs locked by another transaction, left unchanged."""


async def heal(database: Database, definitions: WorkflowDefinitions, *, limit: int = ROWS_PER_CASE) -> list[HealedRun]:
    """Heal stuck runs, each in its own transaction, then process the outbox.

    Waits until the sub-workflows are built, up to the build timeout.
    """
    await release_quarantined(database)
    result = await heal_stuck(database, limit=limit)
    outbox = OutboxProcessor(database, definitions)
    try:
        await outbox.process()
    finally:
        outbox.abandon()
    return result.healed


async def release_quarantined(database: Database) -> None:
    """Retry outbox entries quarantined more than an hour ago."""
    await WorkflowHealingStore(database).release_quarantined()


async def heal_stuck(
    database: Database, *, limit: int = ROWS_PER_CASE, must_end: Callable[[], bool] = lambda: False
) -> HealingResult:
    """Heal stuck runs without processing the outbox; workers do that.

    Stops early once `must_end()`, but heals at least one run, so that every pass makes progress.
    """
    store = WorkflowHealingStore(database)
    result = HealingResult()
    for number, stuck in enumerate(await _stuck_runs(store, limit)):
        if number and must_end():
            break
        await _heal_one(database, stuck, result)
    result.healed += await _cancel_orphans(store, limit, must_end)
    for healed in result.healed:
        await EventStore(database).record(
            EventRecord(
                kind="workflow_healed",
                workflow_id=healed.workflow_id,
                task_id=healed.task_id,
                evidence={"case": healed.case},
            )
        )
    return result


async def preview_healing(database: Database, *, limit: int = ROWS_PER_CASE) -> list[HealedRun]:
    """What `heal_stuck` would do now; takes no locks and writes nothing."""
    store = WorkflowHealingStore(database)
    stuck = await _stuck_runs(store, limit)
    ids = [run.workflow_id for run in stuck if run.workflow_id]
    runs, nodes = await WorkflowStore(database).read_runs(ids)
    rows = group_by_run(nodes)
    due = {run.id for run in runs if _has_due_steps(run, rows.get(run.id, []))}
    orphans = [_healed_orphan(row.id, row.workflow_id) for row in await store.orphaned_tasks(limit)]
    return [run for run in stuck if run.workflow_id in due] + orphans


def _has_due_steps(run: RunRow, nodes: Sequence[RunNodeRow]) -> bool:
    try:
        # Compute all steps: damaged data may raise only at the last one.
        return bool(list(next_steps(run_state(run, nodes, {}))))
    except Exception:
        logger.exception("checking a run failed run=%s", run.id)
        return False


async def _stuck_runs(store: WorkflowHealingStore, limit: int) -> list[HealedRun]:
    """Each stuck run once, with the first case that found it."""
    cases: dict[UUID, str] = {}
    for row in await store.stuck_runs(limit):
        cases.setdefault(row.workflow_id, row.stuck_case)
    return [HealedRun(workflow_id=workflow_id, case=case) for workflow_id, case in cases.items()]


async def _heal_one(database: Database, stuck: HealedRun, result: HealingResult) -> None:
    """Advance a run if something is due. If that fails, leave it to the outbox with its retries and quarantine.

    A run locked by another transaction is skipped: waiting would delay the rest of the pass.
    """
    workflow_id = stuck.workflow_id
    assert workflow_id is not None  # noqa: S101  # only orphans have none
    lock_timeout_ms = SHORT_LOCK_TIMEOUT_MS if result.locked else LOCK_TIMEOUT_MS

    async def advance_run(transaction: Transaction) -> bool:
        await set_lock_timeout(transaction, timeout_ms=lock_timeout_ms)
        return await advance_tree_within(transaction, workflow_id)

    try:
        if await database.run(advance_run):
            result.healed.append(stuck)
    except Exception as error:
        if is_lock_timeout(error):
            result.locked.append(workflow_id)
            return
        if is_transient(error):
            raise
        logger.exception("healing a run failed run=%s", workflow_id)
        # The run has no outbox entry, and `defer_run` changes only existing ones.
        await WorkflowHealingStore(database).request_advance(workflow_id)
        await defer_run(database, workflow_id, error)


async def _cancel_orphans(store: WorkflowHealingStore, limit: int, must_end: Callable[[], bool]) -> Sequence[HealedRun]:
    orphans = await store.orphaned_tasks(limit)
    if not orphans or must_end():
        return []
    error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="orphaned: no workflow node waits for this task")
    document = canonical_json({"err": encode_task_error(error)})
    cancelled = await store.cancel_orphaned_tasks([row.id for row in orphans], document)
    return [_healed_orphan(row.id, row.workflow_id) for row in cancelled]


def _healed_orphan(task_id: UUID, workflow_id: UUID | None) -> HealedRun:
    return HealedRun(workflow_id=workflow_id, case=ORPHAN_CASE, task_id=task_id)
