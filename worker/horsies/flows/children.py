"""Runs of sub-workflows: built where their definition is known, and put behind the node that asked."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from horsies.codec.ids import IDS
from horsies.flows.away import is_away
from horsies.flows.building import BuildFailed, Building, said
from horsies.flows.control import advance_tree
from horsies.flows.starting import store_run
from horsies.model.codes import OperationalErrorCode
from horsies.model.task_error import TaskError
from horsies.store.events import Event, EventStore
from horsies.store.flows import FlowStore, FlowWrites, Parentage

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.model.workflow.plan import WorkflowPlan
    from horsies.store.db import Database, Transaction
    from horsies.store.flows import WaitingChild

MOST_TRIES: Final = 25
PAUSE_S: Final = 25.0
"""Between two tries of processes that do not know a definition; 25 of them take the ten minutes that it is given."""
LARGEST_BATCH: Final = 50
DEEPEST: Final = 50
"""How many runs may stand above one."""

logger = logging.getLogger("horsies.workflow")


class _Overtaken(Exception):
    """Somebody else has started this child meanwhile."""


class Children:
    """Starts sub-workflows, side by side. Definitions are user code: they run outside transactions, for so long."""

    def __init__(self, database: Database, building: Building) -> None:
        self._database = database
        self._building = building
        self._store = FlowStore(database)
        self._unknown: set[str] = set()
        self._starting: dict[UUID, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()  # builds go side by side; to store them, one connection is enough

    @property
    def are_starting(self) -> bool:
        """Whether some were begun with and not yet done with."""
        return bool(self._starting)

    async def start_waiting(self, *, patience_s: float) -> int:
        """Begin with what waits, a batch of it; returns for how many something was done before patience ran out.

        One that takes longer is done with in a later call, or given up by `abandon`.
        """
        await self._begin()
        if not self._starting:
            return 0
        done, _ = await asyncio.wait(self._starting.values(), timeout=patience_s)
        self._starting = {node_id: task for node_id, task in self._starting.items() if task not in done}
        failures = [error for task in done if (error := task.exception()) is not None]
        if failures:
            raise failures[0]
        return len(done)

    def abandon(self) -> None:
        """Let go of what was begun with: it is asked for still."""
        for task in self._starting.values():
            task.cancel()
        self._starting.clear()

    async def _begin(self) -> None:
        limit = LARGEST_BATCH + len(self._starting)
        for child in await self._store.waiting_children(unknown=self._unknown, limit=limit):
            if child.id not in self._starting and len(self._starting) < LARGEST_BATCH:
                self._starting[child.id] = asyncio.create_task(self._start(child))

    async def _start(self, child: WaitingChild) -> None:
        """Start it or fail its node; whatever cannot be done for this one is no matter of the others."""
        try:
            async with self._writing:
                endless = await self._endless(child)
            built = endless or await self._built(child)
            async with self._writing:
                await self._store_or_refuse(child, built)
        except Exception as error:
            if is_away(error):
                raise
            logger.exception("nothing could be done for the sub-workflow of node %s", child.id)
            await self._set_aside(child, said(error))

    async def _built(self, child: WaitingChild) -> WorkflowPlan | BuildFailed | None:
        try:
            return await self._building.plan_of(child)
        except BuildFailed as failed:
            return failed

    async def _endless(self, child: WaitingChild) -> BuildFailed | None:
        """Definitions may contain themselves, as long as each is built from something else than those above it."""
        if not child.depth:
            return None
        above = await self._store.above(child)
        way = " → ".join([*(each.definition_key for each in reversed(above)), child.definition_key])
        if any(each.is_built_from_the_same for each in above):
            return BuildFailed(f"it contains itself without end: {way}")
        return BuildFailed(f"more than {DEEPEST} runs stand above it: {way}") if child.depth >= DEEPEST else None

    async def _store_or_refuse(self, child: WaitingChild, built: WorkflowPlan | BuildFailed | None) -> None:
        if built is None:
            await self._leave_to_others(child)
        elif isinstance(built, BuildFailed):
            await self._refuse(child, OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, str(built), built.__cause__)
        else:
            try:
                await self._store_behind(child, built)
            except Exception as error:
                if is_away(error):
                    raise
                await self._refuse(child, OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, said(error), error)

    async def _store_behind(self, child: WaitingChild, plan: WorkflowPlan) -> None:
        workflow_id = IDS.next()
        parent = Parentage(
            workflow_id=child.workflow_id,
            task_index=child.task_index,
            root_id=child.root_workflow_id,
            depth=child.depth + 1,
        )

        async def work(transaction: Transaction) -> None:
            writes = FlowWrites(transaction)
            if await writes.may_start_child(child):
                await store_run(writes, plan, workflow_id, parent)
                if not await writes.link_child(child, workflow_id):
                    raise _Overtaken

        try:
            await self._database.run(work)
        except _Overtaken:
            return

    async def _leave_to_others(self, child: WaitingChild) -> None:
        self._unknown.add(child.definition_key)
        why = f"the definition {child.definition_key!r} is not known here"
        if child.tries + 1 < MOST_TRIES or not child.has_waited_long:
            await self._store.note_unknown(child, why, pause_s=PAUSE_S)
        else:
            why = f"no worker knows the definition {child.definition_key!r}"
            await self._refuse(child, OperationalErrorCode.SUBWORKFLOW_LOAD_FAILED, why)

    async def _refuse(
        self, child: WaitingChild, code: OperationalErrorCode, why: str, cause: BaseException | None = None
    ) -> None:
        """The node fails for it, and its run goes on as after any failure."""
        message = f"the sub-workflow could not be started: {why}"
        failure = TaskError(error_code=code, message=message, exception=cause)
        await advance_tree(self._database, child.workflow_id, {child.id: failure})
        # Of a node that had ended before, nothing was due, and what asked is still there.
        await self._store.forget_unwanted(child)

    async def _set_aside(self, child: WaitingChild, why: str) -> None:
        await self._store.set_child_aside(child, why)
        event = Event(kind="outbox_quarantined", workflow_id=child.workflow_id, evidence={"error": why})
        await EventStore(self._database).record(event)
