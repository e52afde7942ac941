"""Runs that nobody would advance any more, put right: whatever died, and wherever it died.

An advance does all that is due in a run, so a run in which something is due needs one, and nothing else. Healing twice
changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from horsies.codec.canonical_json import canonical
from horsies.codec.results import stored_error
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.model.workflow.progress import next_steps
from horsies.store.operators import Event, EventStore
from horsies.store.workflow_control import FlowHealingStore, hurry, is_held
from horsies.store.workflows import FlowStore
from horsies.workflows.advance import by_run, is_away, run_state
from horsies.workflows.children import Outbox, set_aside
from horsies.workflows.control import advance_tree_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from horsies.model.workflow.plan import Definitions
    from horsies.store.database import Database, Transaction
    from horsies.store.workflows import DueRun, NodeRow

A_PASS: Final = 200
"""Rows of each case that one pass looks at."""
PATIENCE_MS: Final = 500
"""With whoever holds a run; longer than a step of it takes."""
IMPATIENCE_MS: Final = 1
"""With the others of a pass that has met one: who holds one for long may hold hundreds."""
ORPHANED: Final = "4"

logger = logging.getLogger("horsies.workflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """A run that was put right, or a task that had no node, and the case that it was."""

    workflow_id: UUID | None
    case: str
    task_id: UUID | None = None


@dataclass(slots=True, kw_only=True)
class Righted:
    """What came of one pass. What it did not get to is there for the next."""

    healed: list[Healed] = field(default_factory=list[Healed])
    held: list[UUID] = field(default_factory=list["UUID"])
    """Runs that another hand held, left as they are."""


async def heal(database: Database, definitions: Definitions, *, limit: int = A_PASS) -> list[Healed]:
    """Put right what is stuck, then work off what is asked for; each run in a transaction of its own.

    Waits for definitions that take their time, for as long as they are given.
    """
    await try_quarantined(database)
    righted = await put_right(database, limit=limit)
    outbox = Outbox(database, definitions)
    try:
        await outbox.work_off()
    finally:
        outbox.abandon()
    return righted.healed


async def try_quarantined(database: Database) -> None:
    """Have what was set aside an hour ago tried again."""
    await FlowHealingStore(database).try_quarantined()


async def put_right(database: Database, *, limit: int = A_PASS, is_over: Callable[[], bool] = lambda: False) -> Righted:
    """Put right what is stuck, and nothing else; what a run then asks for is for a worker to do.

    Asks whether it `is_over` where there is more to do, but never before the first run: each pass gets on.
    """
    store = FlowHealingStore(database)
    righted = Righted()
    for number, each in enumerate(await _stuck(store, limit)):
        if number and is_over():
            break
        await _put_one_right(database, each, righted)
    righted.healed += await _cancel_orphans(store, limit, is_over)
    for each in righted.healed:
        await EventStore(database).record(_event(each))
    return righted


async def would_heal(database: Database, *, limit: int = A_PASS) -> list[Healed]:
    """What `put_right` would do now; takes no lock and writes nothing."""
    store = FlowHealingStore(database)
    stuck = await _stuck(store, limit)
    ids = [each.workflow_id for each in stuck if each.workflow_id]
    runs, nodes = await FlowStore(database).look(ids)
    rows = by_run(nodes)
    due = {run.id for run in runs if _is_due(run, rows.get(run.id, []))}
    orphans = [_orphaned(row.id, row.workflow_id) for row in await store.orphans(limit)]
    return [each for each in stuck if each.workflow_id in due] + orphans


def _is_due(run: DueRun, nodes: Sequence[NodeRow]) -> bool:
    try:
        return bool(list(next_steps(run_state(run, nodes, {}))))  # all of them: the last one may be the damaged one
    except Exception:
        logger.exception("the run %s could not be looked at", run.id)
        return False


async def _stuck(store: FlowHealingStore, limit: int) -> list[Healed]:
    """Each run once, under the first case that it is of."""
    cases: dict[UUID, str] = {}
    for row in await store.stuck(limit):
        cases.setdefault(row.workflow_id, row.stuck_in)
    return [Healed(workflow_id=workflow_id, case=case) for workflow_id, case in cases.items()]


async def _put_one_right(database: Database, stuck: Healed, righted: Righted) -> None:
    """Heal where something is due. A run that cannot be advanced is asked for, and so tried again as all of those are.

    One that another hand holds is passed by: there will be another pass, and others wait for this one.
    """
    assert stuck.workflow_id is not None  # noqa: S101  # only orphans have none
    patience_ms = IMPATIENCE_MS if righted.held else PATIENCE_MS
    try:
        if await database.run(partial(_advance_at_once, workflow_id=stuck.workflow_id, patience_ms=patience_ms)):
            righted.healed.append(stuck)
    except Exception as error:
        if is_held(error):
            righted.held.append(stuck.workflow_id)
            return
        if is_away(error):
            raise
        logger.exception("the run %s could not be healed", stuck.workflow_id)
        await FlowHealingStore(database).ask(stuck.workflow_id)
        await set_aside(database, stuck.workflow_id, error)


async def _advance_at_once(transaction: Transaction, workflow_id: UUID, patience_ms: int) -> bool:
    await hurry(transaction, patience_ms=patience_ms)
    return await advance_tree_within(transaction, workflow_id)


async def _cancel_orphans(store: FlowHealingStore, limit: int, is_over: Callable[[], bool]) -> Sequence[Healed]:
    orphans = await store.orphans(limit)
    if not orphans or is_over():
        return []
    error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="orphaned: no node of a workflow waits for it")
    document = canonical({"err": stored_error(error)})
    cancelled = await store.cancel_orphans([row.id for row in orphans], document)
    return [_orphaned(row.id, row.workflow_id) for row in cancelled]


def _orphaned(task_id: UUID, workflow_id: UUID | None) -> Healed:
    return Healed(workflow_id=workflow_id, case=ORPHANED, task_id=task_id)


def _event(healed: Healed) -> Event:
    return Event(
        kind="workflow_healed",
        workflow_id=healed.workflow_id,
        task_id=healed.task_id,
        evidence={"case": healed.case},
    )
