"""Starts workflow runs: directly, or as sub-workflows of a node.

A run is stored completely or not at all. Sub-workflows are built by user code outside of transactions, in any worker
that knows their definition.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from uuid_utils.compat import uuid7

from horsies.errors import is_transient
from horsies.model.events import EventKind, EventRecord
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
from horsies.store.operators import EventStore
from horsies.store.workflows import PendingSubWorkflow, PlannedNode, WorkflowStore
from horsies.sync import DaemonThreadExecutor
from horsies.workflows.control import advance_tree

BUILD_TIMEOUT_S: Final = 10.0
START_BATCH: Final = 50
"""Sub-workflows being built at the same time."""
MAX_TRIES: Final = 25
UNKNOWN_DEFINITION_DELAY_S: Final = 25.0
"""Delay between tries of workers that do not know a definition; with MAX_TRIES, about ten minutes in all."""
MAX_SUB_WORKFLOW_DEPTH: Final = 50

logger = logging.getLogger("horsies.workflow")


def gives_up(grace_s: float | None, *, tries: int, waited_s: float) -> bool:
    """Whether a node fails because no worker knows its definition; None waits for ever.

    The tries show that workers were up for the grace, or for ten minutes of it: the node alone may have waited while
    there was none.
    """
    return grace_s is not None and waited_s >= grace_s and tries >= min(MAX_TRIES, grace_s / UNKNOWN_DEFINITION_DELAY_S)


async def start_run(database: Database, plan: WorkflowPlan, workflow_id: UUID) -> bool:
    """Store a run and enqueue its first tasks, in one transaction; False if a run with this id exists."""
    return await database.run(lambda transaction: store_run(WorkflowStore(transaction), plan, workflow_id))


async def store_run(
    store: WorkflowStore, plan: WorkflowPlan, workflow_id: UUID, parent: PendingSubWorkflow | None = None
) -> bool:
    """Like `start_run`, inside a transaction; `parent` is the node that starts a sub-workflow."""
    initial = RunState(
        status=WorkflowStatus.RUNNING,
        nodes={
            node.index: NodeState(
                status=WorkflowTaskStatus.PENDING,
                dependencies=node.dependencies,
                join=node.join,
                min_success=node.min_success,
                is_subworkflow=node.is_subworkflow,
            )
            for node in plan.nodes
        },
        on_error=OnError.FAIL,  # of no effect: no node has failed yet
        success_rule=plan.success_rule,
    )
    steps = list(next_steps(initial))
    enqueued = {step.index for step in steps if isinstance(step, Enqueue)}
    ready = {step.index for step in steps if isinstance(step, StartSubWorkflow)}
    nodes = [
        _planned_node(node, is_enqueued=node.index in enqueued, is_ready=node.index in ready) for node in plan.nodes
    ]
    return await store.insert_run(plan, workflow_id, nodes, parent)


def _planned_node(plan: NodePlan, *, is_enqueued: bool, is_ready: bool) -> PlannedNode:
    if is_enqueued:
        return PlannedNode(id=uuid7(), plan=plan, status=WorkflowTaskStatus.ENQUEUED, task_id=uuid7())
    status = WorkflowTaskStatus.READY if is_ready else WorkflowTaskStatus.PENDING
    return PlannedNode(id=uuid7(), plan=plan, status=status)


class SubWorkflowStarter:
    """Builds and stores pending sub-workflows, several at a time."""

    def __init__(self, database: Database, builder: SubWorkflowBuilder, *, unknown_grace_s: float | None) -> None:
        self._database = database
        self._builder = builder
        self._unknown_grace_s = unknown_grace_s
        self._store = WorkflowStore(database)
        self._unknown: set[str] = set()
        self._starting: dict[UUID, asyncio.Task[None]] = {}
        self._database_lock = asyncio.Lock()  # builds run concurrently, but use one connection between them

    @property
    def has_starting(self) -> bool:
        return bool(self._starting)

    async def start_pending(self, *, wait_s: float) -> int:
        """Begin to start a batch of pending sub-workflows; returns how many were dealt with within `wait_s`.

        The others continue in the background: a later call counts them, and `abandon` cancels them.
        """
        limit = START_BATCH + len(self._starting)  # those being started are still pending and returned too
        for pending in await self._store.pending_sub_workflows(unknown=self._unknown, limit=limit):
            if pending.id not in self._starting and len(self._starting) < START_BATCH:
                self._starting[pending.id] = asyncio.create_task(self._start(pending))
        if not self._starting:
            return 0
        done, _ = await asyncio.wait(self._starting.values(), timeout=wait_s)
        self._starting = {node_id: task for node_id, task in self._starting.items() if task not in done}
        failures = [error for task in done if (error := task.exception()) is not None]
        if failures:  # transient, so the next pass tries again: `_start` handles all others
            raise failures[0]
        return len(done)

    def abandon(self) -> None:
        """Cancel the starts in progress; their outbox entries remain."""
        for task in self._starting.values():
            task.cancel()
        self._starting.clear()

    async def _start(self, pending: PendingSubWorkflow) -> None:
        """Start one sub-workflow, or fail its node. An unexpected error quarantines this one and spares the others."""
        try:
            async with self._database_lock:
                recursion_error = await self._recursion_error(pending)
            plan = recursion_error or await self._builder.build(pending)
            async with self._database_lock:
                await self._store_plan(pending, plan)
        except Exception as error:
            if is_transient(error):
                raise
            logger.exception("starting a sub-workflow failed", extra={"node": str(pending.id)})
            reason = describe_error(error)
            await self._store.quarantine_sub_workflow(pending, reason)
            await record_quarantine(self._database, pending.workflow_id, reason)

    async def _recursion_error(self, pending: PendingSubWorkflow) -> BuildFailed | None:
        """Detect endless recursion: a definition may contain itself, but only with different inputs."""
        if not pending.depth:
            return None
        ancestors = await self._store.ancestors(pending)
        path = " → ".join([*(ancestor.definition_key for ancestor in reversed(ancestors)), pending.definition_key])
        if any(ancestor.has_same_inputs for ancestor in ancestors):
            return BuildFailed(f"endless recursion: {path}")
        if pending.depth >= MAX_SUB_WORKFLOW_DEPTH:
            return BuildFailed(f"nested more than {MAX_SUB_WORKFLOW_DEPTH} levels deep: {path}")
        return None

    async def _store_plan(self, pending: PendingSubWorkflow, plan: WorkflowPlan | BuildFailed | None) -> None:
        """Store the run; fail the node if the build failed; defer it if this worker does not know the definition."""
        if plan is None:
            await self._defer_unknown(pending)
        elif isinstance(plan, BuildFailed):
            await self._fail_node(pending, OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, plan.message, plan.cause)
        else:
            try:
                await self._store_run(pending, plan)
            except Exception as error:
                if is_transient(error):
                    raise
                code = OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED
                await self._fail_node(pending, code, describe_error(error), error)

    async def _store_run(self, pending: PendingSubWorkflow, plan: WorkflowPlan) -> None:
        workflow_id = uuid7()

        async def work(transaction: Transaction) -> None:
            store = WorkflowStore(transaction)
            # Checked under the run's lock: another worker may have started it, or the run may be paused or ended.
            if await store.lock_sub_workflow_start(pending):
                await store_run(store, plan, workflow_id, pending)
                if not await store.link_sub_workflow(pending, workflow_id):
                    raise _AlreadyStarted  # rolls the stored run back

        try:
            await self._database.run(work)
        except _AlreadyStarted:
            return

    async def _defer_unknown(self, pending: PendingSubWorkflow) -> None:
        """Leave it to a worker that knows the definition; fail the node after the grace for unknown tasks."""
        self._unknown.add(pending.definition_key)
        if not gives_up(self._unknown_grace_s, tries=pending.tries + 1, waited_s=pending.waited_s):
            reason = f"this worker does not know the definition {pending.definition_key!r}"
            await self._store.defer_unknown_definition(pending, reason, delay_s=UNKNOWN_DEFINITION_DELAY_S)
        else:
            reason = f"no worker knows the definition {pending.definition_key!r}"
            await self._fail_node(pending, OperationalErrorCode.SUBWORKFLOW_LOAD_FAILED, reason)

    async def _fail_node(
        self, pending: PendingSubWorkflow, code: OperationalErrorCode, reason: str, cause: BaseException | None = None
    ) -> None:
        """Fail the node and advance its run."""
        message = f"the sub-workflow could not be started: {reason}"
        failure = TaskError(error_code=code, message=message, exception=cause)
        await advance_tree(self._database, pending.workflow_id, {pending.id: failure})
        # If the node had finished before, the advance had nothing to do and left the outbox entry.
        await self._store.delete_unwanted_start(pending)


class _AlreadyStarted(Exception):
    """Another worker has started this sub-workflow."""


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """Why a sub-workflow has no plan; stored as the error of its node."""

    message: str
    cause: BaseException | None = None


class SubWorkflowBuilder:
    """Builds plans of sub-workflows by calling their definitions: user code that may raise anything or hang.

    Each build runs in its own daemon thread, which is never joined: a hanging build blocks neither others nor exit.
    """

    def __init__(self, definitions: WorkflowDefinitions, *, timeout_s: float = BUILD_TIMEOUT_S) -> None:
        self._definitions = definitions
        self._timeout_s = timeout_s
        self._threads = DaemonThreadExecutor()

    async def build(self, pending: PendingSubWorkflow) -> WorkflowPlan | BuildFailed | None:
        """The plan, or why there is none; None if the definition is unknown."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(self._threads.submit(self._build, pending))
        except TimeoutError:
            return BuildFailed(f"building it took longer than {self._timeout_s:g} s")

    def _build(self, pending: PendingSubWorkflow) -> WorkflowPlan | BuildFailed | None:
        try:
            return self._definitions.build(
                pending.definition_key, json.loads(pending.kwargs), json.loads(pending.context)
            )
        except BaseException as error:  # noqa: BLE001
            # SystemExit or CancelledError raised by user code must not stop the worker's event loop.
            return BuildFailed(describe_error(error), error)


async def record_quarantine(database: Database, workflow_id: UUID, reason: str) -> None:
    """Record that an outbox entry of this run was set aside."""
    event = EventRecord(kind=EventKind.OUTBOX_QUARANTINED, workflow_id=workflow_id, evidence={"error": reason})
    await EventStore(database).record(event)


def describe_error(error: BaseException) -> str:
    """The type of an error, and its message if it has one."""
    kind, text = type(error).__qualname__, str(error)
    return f"{kind}: {text}" if text else kind
