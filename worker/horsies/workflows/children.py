"""Runs of sub-workflows: built where their definition is known, and put behind the node that asked."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Final
from uuid import UUID

from horsies.codec.ids import ID_GENERATOR
from horsies.model.task_result import OperationalErrorCode, TaskError
from horsies.model.workflow.plan import (
    NodePlan,
    OnError,
    WorkflowDefinitions,
    WorkflowPlan,
    WorkflowStatus,
    WorkflowTaskStatus,
)
from horsies.model.workflow.progress import Enqueue, NodeState, RunState, StartSubWorkflow, next_steps
from horsies.store.database import Database, Transaction
from horsies.store.operators import EventStore, StoredEvent
from horsies.store.workflows import ParentRef, PendingSubWorkflow, PlannedNode, WorkflowStore, WorkflowWriter
from horsies.sync import DaemonThreadExecutor
from horsies.workflows.advance import ADVANCE_BATCH, advance_due, is_transient
from horsies.workflows.control import advance_tree

# Plans of sub-workflows are made by their definitions: code of users, which may raise anything and never come back.

BUILD_TIMEOUT_S: Final = 10.0


class BuildFailed(Exception):
    """No plan came of it; says what its author should read."""


class PlanBuilder:
    """Builds each plan in a thread of its own, which nobody joins: one that hangs holds up no other, nor an exit."""

    def __init__(self, definitions: WorkflowDefinitions, *, limit_s: float = BUILD_TIMEOUT_S) -> None:
        self._definitions = definitions
        self._limit_s = limit_s
        self._threads = DaemonThreadExecutor()

    async def plan_of(self, child: PendingSubWorkflow) -> WorkflowPlan | None:
        """The plan; None where the definition is not known here. `BuildFailed` whatever else happens."""
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.wrap_future(self._threads.submit(self._build, child))
        except TimeoutError:
            raise BuildFailed(f"building it took longer than {self._limit_s:g} s") from None

    def _build(self, child: PendingSubWorkflow) -> WorkflowPlan | None:
        try:
            return self._definitions.build(child.definition_key, json.loads(child.kwargs), json.loads(child.context))
        except BaseException as error:
            # An exit or a cancellation that a definition raises is its own affair, and must not become this loop's.
            raise BuildFailed(describe_error(error)) from error


def describe_error(error: BaseException) -> str:
    """The kind of an error, and its text where it has one."""
    kind, text = type(error).__qualname__, str(error)
    return f"{kind}: {text}" if text else kind


# A run comes into being: all of it, or nothing.


async def start(database: Database, plan: WorkflowPlan, workflow_id: UUID) -> bool:
    """Store a run and enqueue what may start, in one transaction; False where there is a run with this id already."""

    async def store(transaction: Transaction) -> bool:
        return await store_run(WorkflowWriter(transaction), plan, workflow_id)

    return await database.run(store)


async def store_run(
    writes: WorkflowWriter, plan: WorkflowPlan, workflow_id: UUID, parent: ParentRef | None = None
) -> bool:
    """The same inside a transaction, for a sub-workflow too."""
    return await writes.insert_run(plan, workflow_id, _planned_nodes(plan), parent)


def _planned_nodes(plan: WorkflowPlan) -> list[PlannedNode]:
    first = RunState(
        status=WorkflowStatus.RUNNING,
        nodes=[_initial_state(node) for node in plan.nodes],
        on_error=OnError.FAIL,
        success_rule=plan.success_rule,
    )
    steps = list(next_steps(first))
    enqueued = {step.index for step in steps if isinstance(step, Enqueue)}
    ready = {step.index for step in steps if isinstance(step, StartSubWorkflow)}
    return [
        _planned_node(node, is_enqueued=node.index in enqueued, is_ready=node.index in ready) for node in plan.nodes
    ]


def _initial_state(node: NodePlan) -> NodeState:
    return NodeState(
        status=WorkflowTaskStatus.PENDING,
        dependencies=node.dependencies,
        join=node.join,
        min_success=node.min_success,
        is_subworkflow=node.is_subworkflow,
    )


def _planned_node(plan: NodePlan, *, is_enqueued: bool, is_ready: bool) -> PlannedNode:
    if is_enqueued:
        return PlannedNode(
            id=ID_GENERATOR.next_uuid(), plan=plan, status=WorkflowTaskStatus.ENQUEUED, task_id=ID_GENERATOR.next_uuid()
        )
    status = WorkflowTaskStatus.READY if is_ready else WorkflowTaskStatus.PENDING
    return PlannedNode(id=ID_GENERATOR.next_uuid(), plan=plan, status=status)


MAX_TRIES: Final = 25
UNKNOWN_DEFINITION_PAUSE_S: Final = 25.0
"""Between two tries of processes that do not know a definition; 25 of them take the ten minutes that it is given."""
LARGEST_START_BATCH: Final = 50
MAX_DEPTH: Final = 50
"""How many runs may stand above one."""

logger = logging.getLogger("horsies.workflow")


class _AlreadyStarted(Exception):
    """Somebody else has started this child meanwhile."""


class SubWorkflowStarter:
    """Starts sub-workflows, side by side. Definitions are user code: they run outside transactions, for so long."""

    def __init__(self, database: Database, building: PlanBuilder) -> None:
        self._database = database
        self._building = building
        self._store = WorkflowStore(database)
        self._unknown: set[str] = set()
        self._starting: dict[UUID, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()  # builds go side by side; to store them, one connection is enough

    @property
    def has_starting(self) -> bool:
        """Whether some were begun with and not yet done with."""
        return bool(self._starting)

    async def start_waiting(self, *, wait_s: float) -> int:
        """Begin with what waits, a batch of it; returns for how many something was done before patience ran out.

        One that takes longer is done with in a later call, or given up by `abandon`.
        """
        await self._start_batch()
        if not self._starting:
            return 0
        done, _ = await asyncio.wait(self._starting.values(), timeout=wait_s)
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

    async def _start_batch(self) -> None:
        limit = LARGEST_START_BATCH + len(self._starting)
        for child in await self._store.pending_sub_workflows(unknown=self._unknown, limit=limit):
            if child.id not in self._starting and len(self._starting) < LARGEST_START_BATCH:
                self._starting[child.id] = asyncio.create_task(self._start(child))

    async def _start(self, child: PendingSubWorkflow) -> None:
        """Start it or fail its node; whatever cannot be done for this one is no matter of the others."""
        try:
            async with self._writing:
                endless = await self._recursion_error(child)
            built = endless or await self._build(child)
            async with self._writing:
                await self._store_or_refuse(child, built)
        except Exception as error:
            if is_transient(error):
                raise
            logger.exception("nothing could be done for the sub-workflow of node %s", child.id)
            await self._quarantine(child, describe_error(error))

    async def _build(self, child: PendingSubWorkflow) -> WorkflowPlan | BuildFailed | None:
        try:
            return await self._building.plan_of(child)
        except BuildFailed as failed:
            return failed

    async def _recursion_error(self, child: PendingSubWorkflow) -> BuildFailed | None:
        """Definitions may contain themselves, as long as each is built from something else than those above it."""
        if not child.depth:
            return None
        above = await self._store.ancestors(child)
        way = " → ".join([*(each.definition_key for each in reversed(above)), child.definition_key])
        if any(each.has_same_inputs for each in above):
            return BuildFailed(f"it contains itself without end: {way}")
        return BuildFailed(f"more than {MAX_DEPTH} runs stand above it: {way}") if child.depth >= MAX_DEPTH else None

    async def _store_or_refuse(self, child: PendingSubWorkflow, built: WorkflowPlan | BuildFailed | None) -> None:
        if built is None:
            await self._defer_unknown(child)
        elif isinstance(built, BuildFailed):
            await self._fail_node(child, OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, str(built), built.__cause__)
        else:
            try:
                await self._store_run(child, built)
            except Exception as error:
                if is_transient(error):
                    raise
                await self._fail_node(child, OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, describe_error(error), error)

    async def _store_run(self, child: PendingSubWorkflow, plan: WorkflowPlan) -> None:
        workflow_id = ID_GENERATOR.next_uuid()
        parent = ParentRef(
            workflow_id=child.workflow_id,
            task_index=child.task_index,
            root_id=child.root_workflow_id,
            depth=child.depth + 1,
        )

        async def work(transaction: Transaction) -> None:
            writes = WorkflowWriter(transaction)
            if await writes.lock_sub_workflow_start(child):
                await store_run(writes, plan, workflow_id, parent)
                if not await writes.link_sub_workflow(child, workflow_id):
                    raise _AlreadyStarted

        try:
            await self._database.run(work)
        except _AlreadyStarted:
            return

    async def _defer_unknown(self, child: PendingSubWorkflow) -> None:
        self._unknown.add(child.definition_key)
        why = f"the definition {child.definition_key!r} is not known here"
        if child.tries + 1 < MAX_TRIES or not child.has_waited_long:
            await self._store.defer_unknown_definition(child, why, delay_s=UNKNOWN_DEFINITION_PAUSE_S)
        else:
            why = f"no worker knows the definition {child.definition_key!r}"
            await self._fail_node(child, OperationalErrorCode.SUBWORKFLOW_LOAD_FAILED, why)

    async def _fail_node(
        self, child: PendingSubWorkflow, code: OperationalErrorCode, why: str, cause: BaseException | None = None
    ) -> None:
        """The node fails for it, and its run goes on as after any failure."""
        message = f"the sub-workflow could not be started: {why}"
        failure = TaskError(error_code=code, message=message, exception=cause)
        await advance_tree(self._database, child.workflow_id, {child.id: failure})
        # Of a node that had ended before, nothing was due, and what asked is still there.
        await self._store.delete_unwanted_start(child)

    async def _quarantine(self, child: PendingSubWorkflow, why: str) -> None:
        await self._store.quarantine_sub_workflow(child, why)
        event = StoredEvent(kind="outbox_quarantined", workflow_id=child.workflow_id, evidence={"error": why})
        await EventStore(self._database).record(event)


# What is to be done for runs, worked off: whoever stored an outcome asked for it in the same breath.

RECHECK_S: Final = 0.05
"""After runs were passed by that another hand held, and while sub-workflows are being built."""


class OutboxProcessor:
    """Advances runs, many in a transaction; where one of them cannot be, the others are advanced without it."""

    def __init__(
        self, database: Database, definitions: WorkflowDefinitions, *, build_limit_s: float = BUILD_TIMEOUT_S
    ) -> None:
        self._database = database
        self._store = WorkflowStore(database)
        self._children = SubWorkflowStarter(database, PlanBuilder(definitions, limit_s=build_limit_s))

    async def is_empty(self) -> bool:
        """Whether nothing is asked for; much cheaper than to find nothing to do."""
        return not await self._store.has_outbox_entries()

    async def process(self, stop: asyncio.Event | None = None) -> bool:
        """Do what is asked for until nothing is, or `stop` is set; False where something is left."""
        while stop is None or not stop.is_set():
            done, passed_by = await self._advance()
            done += await self._children.start_waiting(wait_s=RECHECK_S)
            if not done and not self._children.has_starting:
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
            if is_transient(error):
                raise
            logger.exception("runs could not be advanced together; now one by one")
            return await self._advance_one_by_one(), 0
        for workflow_id in advanced.to_pause:
            await self._advance_alone(workflow_id)
        return advanced.runs, advanced.locked

    async def _advance_one_by_one(self) -> int:
        due = await self._store.due_runs(ADVANCE_BATCH)
        for workflow_id in due:
            await self._advance_alone(workflow_id)
        return len(due)

    async def _advance_alone(self, workflow_id: UUID) -> None:
        try:
            await advance_tree(self._database, workflow_id)
        except Exception as error:
            if is_transient(error):
                raise
            logger.exception("the run %s could not be advanced", workflow_id)
            await defer_run(self._database, workflow_id, error)


async def defer_run(database: Database, workflow_id: UUID, error: Exception) -> None:
    """Try what asks for this run again later, and ever more seldom."""
    why = f"{type(error).__name__}: {error}"
    failed = await WorkflowStore(database).record_advance_failure(workflow_id, why, max_tries=MAX_TRIES)
    if any(row.is_quarantined for row in failed):
        event = StoredEvent(kind="outbox_quarantined", workflow_id=workflow_id, evidence={"error": why})
        await EventStore(database).record(event)
