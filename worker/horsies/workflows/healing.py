"""Runs that nobody would advance any more, put right: whatever died, and wherever it died.

An advance does all that is due in a run, so a run in which something is due needs one, and nothing else. Healing twice
changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.model.workflow.progress import next_steps
from horsies.store.database import Database, Transaction
from horsies.store.operators import EventStore, StoredEvent
from horsies.store.workflow_control import WorkflowHealingStore, is_lock_timeout, set_lock_timeout
from horsies.store.workflows import RunNodeRow, RunRow, WorkflowStore
from horsies.workflows.advance import group_by_run, is_transient, run_state
from horsies.workflows.children import OutboxProcessor, defer_run
from horsies.workflows.control import advance_tree_within

ROWS_PER_CASE: Final = 200
"""Rows of each case that one pass looks at."""
LOCK_WAIT_MS: Final = 500
"""With whoever holds a run; longer than a step of it takes."""
SHORT_LOCK_WAIT_MS: Final = 1
"""With the others of a pass that has met one: who holds one for long may hold hundreds."""
ORPHAN_CASE: Final = "4"

logger = logging.getLogger("horsies.workflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealedRun:
    """A run that was put right, or a task that had no node, and the case that it was."""

    workflow_id: UUID | None
    case: str
    task_id: UUID | None = None


@dataclass(slots=True, kw_only=True)
class HealingResult:
    """What came of one pass. What it did not get to is there for the next."""

    healed: list[HealedRun] = field(default_factory=list[HealedRun])
    locked: list[UUID] = field(default_factory=list["UUID"])
    """Runs that another hand held, left as they are."""


async def heal(database: Database, definitions: WorkflowDefinitions, *, limit: int = ROWS_PER_CASE) -> list[HealedRun]:
    """Put right what is stuck, then work off what is asked for; each run in a transaction of its own.

    Waits for definitions that take their time, for as long as they are given.
    """
    await release_quarantined(database)
    righted = await heal_stuck(database, limit=limit)
    outbox = OutboxProcessor(database, definitions)
    try:
        await outbox.process()
    finally:
        outbox.abandon()
    return righted.healed


async def release_quarantined(database: Database) -> None:
    """Have what was set aside an hour ago tried again."""
    await WorkflowHealingStore(database).release_quarantined()


async def heal_stuck(
    database: Database, *, limit: int = ROWS_PER_CASE, is_over: Callable[[], bool] = lambda: False
) -> HealingResult:
    """Put right what is stuck, and nothing else; what a run then asks for is for a worker to do.

    Asks whether it `is_over` where there is more to do, but never before the first run: each pass gets on.
    """
    store = WorkflowHealingStore(database)
    righted = HealingResult()
    for number, each in enumerate(await _stuck(store, limit)):
        if number and is_over():
            break
        await _heal_one(database, each, righted)
    righted.healed += await _cancel_orphans(store, limit, is_over)
    for each in righted.healed:
        await EventStore(database).record(_event(each))
    return righted


async def preview_healing(database: Database, *, limit: int = ROWS_PER_CASE) -> list[HealedRun]:
    """What `put_right` would do now; takes no lock and writes nothing."""
    store = WorkflowHealingStore(database)
    stuck = await _stuck(store, limit)
    ids = [each.workflow_id for each in stuck if each.workflow_id]
    runs, nodes = await WorkflowStore(database).read_runs(ids)
    rows = group_by_run(nodes)
    due = {run.id for run in runs if _is_due(run, rows.get(run.id, []))}
    orphans = [_healed_orphan(row.id, row.workflow_id) for row in await store.orphaned_tasks(limit)]
    return [each for each in stuck if each.workflow_id in due] + orphans


def _is_due(run: RunRow, nodes: Sequence[RunNodeRow]) -> bool:
    try:
        return bool(list(next_steps(run_state(run, nodes, {}))))  # all of them: the last one may be the damaged one
    except Exception:
        logger.exception("the run %s could not be looked at", run.id)
        return False


async def _stuck(store: WorkflowHealingStore, limit: int) -> list[HealedRun]:
    """Each run once, under the first case that it is of."""
    cases: dict[UUID, str] = {}
    for row in await store.stuck_runs(limit):
        cases.setdefault(row.workflow_id, row.stuck_case)
    return [HealedRun(workflow_id=workflow_id, case=case) for workflow_id, case in cases.items()]


async def _heal_one(database: Database, stuck: HealedRun, righted: HealingResult) -> None:
    """Heal where something is due. A run that cannot be advanced is asked for, and so tried again as all of those are.

    One that another hand holds is passed by: there will be another pass, and others wait for this one.
    """
    assert stuck.workflow_id is not None  # noqa: S101  # only orphans have none
    patience_ms = SHORT_LOCK_WAIT_MS if righted.locked else LOCK_WAIT_MS
    try:
        if await database.run(
            partial(_advance_with_lock_timeout, workflow_id=stuck.workflow_id, patience_ms=patience_ms)
        ):
            righted.healed.append(stuck)
    except Exception as error:
        if is_lock_timeout(error):
            righted.locked.append(stuck.workflow_id)
            return
        if is_transient(error):
            raise
        logger.exception("the run %s could not be healed", stuck.workflow_id)
        await WorkflowHealingStore(database).request_advance(stuck.workflow_id)
        await defer_run(database, stuck.workflow_id, error)


async def _advance_with_lock_timeout(transaction: Transaction, workflow_id: UUID, patience_ms: int) -> bool:
    await set_lock_timeout(transaction, timeout_ms=patience_ms)
    return await advance_tree_within(transaction, workflow_id)


async def _cancel_orphans(store: WorkflowHealingStore, limit: int, is_over: Callable[[], bool]) -> Sequence[HealedRun]:
    orphans = await store.orphaned_tasks(limit)
    if not orphans or is_over():
        return []
    error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="orphaned: no node of a workflow waits for it")
    document = canonical_json({"err": encode_task_error(error)})
    cancelled = await store.cancel_orphaned_tasks([row.id for row in orphans], document)
    return [_healed_orphan(row.id, row.workflow_id) for row in cancelled]


def _healed_orphan(task_id: UUID, workflow_id: UUID | None) -> HealedRun:
    return HealedRun(workflow_id=workflow_id, case=ORPHAN_CASE, task_id=task_id)


def _event(healed: HealedRun) -> StoredEvent:
    return StoredEvent(
        kind="workflow_healed",
        workflow_id=healed.workflow_id,
        task_id=healed.task_id,
        evidence={"case": healed.case},
    )
