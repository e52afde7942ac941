"""Runs of sub-workflows: built where their definition is known, and put behind the node that asked."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from horsies.codec.ids import IDS
from horsies.flows.control import advance_tree
from horsies.flows.starting import store_run
from horsies.model.codes import OperationalErrorCode
from horsies.model.task_error import TaskError
from horsies.store.flows import FlowStore, FlowWrites, Parentage

if TYPE_CHECKING:
    from horsies.model.workflow.plan import Definitions, WorkflowPlan
    from horsies.store.db import Database, Transaction
    from horsies.store.flows import WaitingChild

BUILD_LIMIT_S: Final = 10.0
MOST_TRIES: Final = 25
PAUSE_S: Final = 25.0
"""Between two tries of processes that do not know a definition; 25 of them take the ten minutes that it is given."""
LARGEST_BATCH: Final = 50


class _Overtaken(Exception):
    """Somebody else has started this child meanwhile."""


class Children:
    """Starts sub-workflows. Definitions are user code: they run outside transactions, in a thread, for so long."""

    def __init__(self, database: Database, definitions: Definitions) -> None:
        self._database = database
        self._definitions = definitions
        self._store = FlowStore(database)
        self._unknown: set[str] = set()

    async def start_waiting(self) -> int:
        """Start what waits, as far as it is known here; returns for how many something was done."""
        count = 0
        while waiting := await self._store.waiting_children(unknown=self._unknown, limit=LARGEST_BATCH):
            for child in waiting:
                await self._start(child)
            count += len(waiting)
        return count

    async def _start(self, child: WaitingChild) -> None:
        try:
            async with asyncio.timeout(BUILD_LIMIT_S):
                plan = await asyncio.to_thread(self._build, child)
        except Exception as error:  # noqa: BLE001  # whatever the definition raises
            await self._refuse(child, OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, error)
        else:
            await (self._leave_to_others(child) if plan is None else self._store_behind(child, plan))

    def _build(self, child: WaitingChild) -> WorkflowPlan | None:
        return self._definitions.build(child.definition_key, json.loads(child.kwargs), json.loads(child.context))

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
            await self._refuse(child, OperationalErrorCode.SUBWORKFLOW_LOAD_FAILED, LookupError(why))

    async def _refuse(self, child: WaitingChild, code: OperationalErrorCode, error: Exception) -> None:
        """The node fails for it, and its run goes on as after any failure."""
        message = f"the sub-workflow could not be started: {error}" if str(error) else "building it took too long"
        failure = TaskError(error_code=code, message=message, exception=error)
        await advance_tree(self._database, child.workflow_id, {child.id: failure})
