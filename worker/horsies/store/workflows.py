"""Workflow runs and their nodes: start, read, advance, control and heal. The rules are in `horsies.model.workflow`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from horsies.model.workflow.plan import NodePlan, OnError, WorkflowPlan, WorkflowStatus, WorkflowTaskStatus
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Executor, Transaction

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """A node of a run to insert, with its id and initial status."""

    id: UUID
    plan: NodePlan
    status: str
    task_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run to advance; `status` is None if another transaction has locked it."""

    id: UUID
    status: WorkflowStatus | None
    on_error: OnError | None
    success_policy: str | None
    output_task_index: int | None
    outbox_ids: Sequence[UUID]
    """Outbox entries of the run."""


class RunNodeRow(NamedTuple):
    """A node, with the outcome of its task or sub-workflow if the node has not taken it over yet."""

    workflow_id: UUID
    id: UUID
    task_index: int
    node_id: str
    dependencies: Sequence[int]
    context_dependencies: Sequence[int] | None
    """Dependencies whose results it reads."""
    join_type: str
    min_success: int | None
    allow_failed_deps: bool
    is_subworkflow: bool
    sub_workflow_id: UUID | None
    task_status: str | None
    no_restart: str | None
    result_kind: str
    sub_workflow_status: str | None
    is_task_gone: bool
    """Whether its task or sub-workflow run was deleted."""
    status: str
    dependency_statuses: Sequence[str] | None
    """In the order of the dependencies, in a part of a run and only while the node is PENDING."""


@dataclass(slots=True, kw_only=True)
class NodeUpdates:
    """Node updates of several runs, written in one statement."""

    ids: list[UUID] = field(default_factory=list["UUID"])
    statuses: list[str] = field(default_factory=list[str])
    errors: list[str | None] = field(default_factory=list["str | None"])
    task_ids: list[UUID | None] = field(default_factory=list["UUID | None"])

    def add(self, node_id: UUID, status: str, *, error: str | None = None, task_id: UUID | None = None) -> None:
        self.ids.append(node_id)
        self.statuses.append(status)
        self.errors.append(error)
        self.task_ids.append(task_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompletion:
    """How a run finishes. Without a status only the error of the failed node is stored and the run continues."""

    workflow_id: UUID
    status: str | None = None
    failed_index: int | None = None
    error: str | None = None
    leaf_indexes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSubWorkflow:
    """A sub-workflow to start; `id` is its node, `depth` that of the node's run. Arguments are JSON text."""

    id: UUID
    workflow_id: UUID
    task_index: int
    definition_key: str
    kwargs: str
    context: str
    root_workflow_id: UUID
    depth: int
    tries: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AncestorRow:
    """A sub-workflow above another one in the tree."""

    definition_key: str
    has_same_inputs: bool
    """Whether definition, arguments and context equal those of the lower one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResultRow:
    """Status and result of a run; `document` and `error` are JSON text."""

    id: str
    definition_key: str
    status: WorkflowStatus
    document: str | None
    error: str | None
    is_map: bool
    """Whether the result maps node ids to results, for a run without an output node."""
    output_name: str | None
    output_definition_key: str | None
    """Definition of the sub-workflow that produced the result, if one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfoRow:
    node_id: str
    task_index: int
    task_name: str
    status: WorkflowTaskStatus
    task_id: UUID | None
    is_subworkflow: bool
    definition_key: str | None
    sub_workflow_id: UUID | None
    document: str | None
    started_at: datetime | None
    completed_at: datetime | None


class WithdrawnTaskResults(NamedTuple):
    """Stored results (JSON) of tasks that a pause or an early end withdraws."""

    cancelled: str
    expired: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryableRun:
    """A run that a retry would restart, and the number of its nodes to run again."""

    id: UUID
    retryable_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetNode:
    """A node that was reset, and its previous task."""

    workflow_id: UUID
    node_id: str
    task_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRun:
    """A run in which something is due, or an orphan: an unstarted workflow task without a node that waits for it."""

    workflow_id: UUID | None
    case: str
    """How it was found: one of the cases of the statements `stuck_runs` and `orphaned_tasks`."""
    task_id: UUID | None = None
    """The orphan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowQueries:
    insert_run: Query[UUID]
    run_results: Query[RunResultRow]
    node_infos: Query[NodeInfoRow]
    lock_due_runs: Query[RunRow]
    due_runs: Query[UUID]
    lock_runs: Query[RunRow]
    read_runs: Query[RunRow]
    run_nodes: Query[RunNodeRow]
    ended_nodes: Query[RunNodeRow]
    update_nodes: Query[UUID]
    enqueue_nodes: Query[None]
    finish_runs: Query[UUID]
    record_advance_failure: Query[bool]
    pending_sub_workflows: Query[PendingSubWorkflow]
    link_sub_workflow: Query[UUID]
    lock_sub_workflow_start: Query[UUID]
    defer_unknown_definition: Query[None]
    ancestors: Query[AncestorRow]
    delete_unwanted_start: Query[None]
    quarantine_sub_workflow: Query[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowControlQueries:
    lock_tree: Query[RunRow]
    pause_runs: Query[int]
    resume_runs: Query[None]
    end_runs: Query[int]
    retryable_runs: Query[RetryableRun]
    reset_nodes: Query[ResetNode]
    is_root: Query[bool]
    long_paused: Query[UUID]
    stuck_runs: Query[StuckRun]
    orphaned_tasks: Query[StuckRun]
    cancel_orphaned_tasks: Query[StuckRun]
    request_advance: Query[None]
    set_lock_timeout: Query[None]
    release_quarantined: Query[None]


WORKFLOWS = load_queries(WorkflowQueries, "horsies.store", "workflows")
WORKFLOW_CONTROL = load_queries(WorkflowControlQueries, "horsies.store", "workflow_control")


@dataclass(frozen=True, slots=True)
class WorkflowStore:
    """Workflow runs and their nodes, in a database or in a transaction. Lock a run before changing it."""

    executor: Executor

    # Starting runs

    async def insert_run(
        self, plan: WorkflowPlan, workflow_id: UUID, nodes: Sequence[PlannedNode], parent: PendingSubWorkflow | None
    ) -> bool:
        """Insert a run, with `parent` as a sub-workflow of that node; False if the id is taken."""
        dependents: dict[int, list[int]] = {node.plan.index: [] for node in nodes}
        for node in nodes:
            for dependency in node.plan.dependencies:
                dependents[dependency].append(node.plan.index)
        nodes_json = f"[{','.join(_node_json(node, dependents[node.plan.index]) for node in nodes)}]"
        columns = _run_columns(plan, workflow_id, parent)
        return bool(await self.executor.fetch(WORKFLOWS.insert_run, *columns, nodes_json))

    async def pending_sub_workflows(self, *, unknown: Collection[str], limit: int) -> list[PendingSubWorkflow]:
        """Sub-workflows to start; those with `unknown` definitions only once their retry time has come."""
        return await self.executor.fetch(WORKFLOWS.pending_sub_workflows, list(unknown), limit)

    async def ancestors(self, pending: PendingSubWorkflow) -> list[AncestorRow]:
        """Sub-workflows above this one, nearest first."""
        return await self.executor.fetch(WORKFLOWS.ancestors, pending.id)

    async def lock_sub_workflow_start(self, pending: PendingSubWorkflow) -> bool:
        """Lock the parent and root runs; returns whether the sub-workflow should still be started."""
        runs = (pending.workflow_id, pending.root_workflow_id)
        return bool(await self.executor.fetch(WORKFLOWS.lock_sub_workflow_start, pending.id, *runs))

    async def link_sub_workflow(self, pending: PendingSubWorkflow, workflow_id: UUID) -> bool:
        return bool(await self.executor.fetch(WORKFLOWS.link_sub_workflow, pending.id, workflow_id))

    async def defer_unknown_definition(self, pending: PendingSubWorkflow, error: str, *, delay_s: float) -> None:
        await self.executor.execute(WORKFLOWS.defer_unknown_definition, pending.id, error, delay_s)

    async def delete_unwanted_start(self, pending: PendingSubWorkflow) -> None:
        """Delete the start request if the node no longer waits for a sub-workflow."""
        await self.executor.execute(WORKFLOWS.delete_unwanted_start, pending.id)

    async def quarantine_sub_workflow(self, pending: PendingSubWorkflow, error: str) -> None:
        """Set the start request aside; `release_quarantined` makes it due again after an hour."""
        await self.executor.execute(WORKFLOWS.quarantine_sub_workflow, pending.id, error)

    # Reading runs

    def run_results(self, workflow_ids: Sequence[str]) -> Coroutine[Any, Any, list[RunResultRow]]:
        """Status and result of those of these runs that exist."""
        return self.executor.fetch(WORKFLOWS.run_results, workflow_ids)

    async def node_infos(self, workflow_id: UUID) -> list[NodeInfoRow]:
        """Nodes of a run, ordered by index."""
        return await self.executor.fetch(WORKFLOWS.node_infos, workflow_id)

    async def is_root(self, workflow_id: UUID) -> bool | None:
        """Whether a run has no parent; None if it does not exist."""
        return await self.executor.fetch_one(WORKFLOW_CONTROL.is_root, workflow_id)

    async def read_runs(self, workflow_ids: Collection[UUID]) -> list[RunRow]:
        """Runs, read without locks."""
        return await self.executor.fetch(WORKFLOWS.read_runs, list(workflow_ids))

    async def run_nodes(self, workflow_ids: Collection[UUID]) -> list[RunNodeRow]:
        """Nodes of these runs, ordered by run and index."""
        return await self.executor.fetch(WORKFLOWS.run_nodes, list(workflow_ids))

    async def ended_nodes(self, outbox_ids: Collection[UUID]) -> list[RunNodeRow]:
        """Nodes of these outbox entries and their dependents, ordered by run and index.

        If one has no dependents, also another node that has not ended: without one the run has ended.
        """
        return await self.executor.fetch(WORKFLOWS.ended_nodes, list(outbox_ids))

    # Advancing runs

    async def due_runs(self, limit: int) -> list[UUID]:
        """Runs with due outbox entries."""
        return await self.executor.fetch(WORKFLOWS.due_runs, limit)

    async def lock_due_runs(self, limit: int) -> list[RunRow]:
        return await self.executor.fetch(WORKFLOWS.lock_due_runs, limit)

    async def lock_runs(self, workflow_ids: Collection[UUID]) -> list[RunRow]:
        return await self.executor.fetch(WORKFLOWS.lock_runs, list(workflow_ids))

    async def update_nodes(self, updates: NodeUpdates, *, outbox_ids: Collection[UUID]) -> None:
        """Update nodes and delete the outbox entries that led to the update."""
        columns = (updates.ids, updates.statuses, updates.errors, updates.task_ids)
        await self.executor.execute(WORKFLOWS.update_nodes, *columns, list(outbox_ids))

    async def enqueue_nodes(self, node_ids: Collection[UUID]) -> None:
        """Insert the tasks of nodes that became ENQUEUED."""
        await self.executor.execute(WORKFLOWS.enqueue_nodes, list(node_ids))

    async def finish_runs(self, completions: Sequence[RunCompletion]) -> None:
        await self.executor.execute(
            WORKFLOWS.finish_runs,
            [run.workflow_id for run in completions],
            [run.status for run in completions],
            [run.failed_index for run in completions],
            [run.error for run in completions],
            # As text: PostgreSQL arrays cannot hold lists of different lengths.
            [f"{{{','.join(map(str, run.leaf_indexes))}}}" for run in completions],
        )

    async def record_advance_failure(self, workflow_id: UUID, error: str, *, max_tries: int) -> bool:
        """Postpone the outbox entries of a run; returns whether one of them is now quarantined."""
        return any(await self.executor.fetch(WORKFLOWS.record_advance_failure, workflow_id, error, max_tries))

    # Controlling runs

    async def locked(self, workflow_id: UUID, work: Callable[[LockedTree], Awaitable[A]]) -> A | None:
        """Run `work` in a transaction that has locked a run and all runs below it; None if the run does not exist."""

        async def lock_and_work(transaction: Transaction) -> A | None:
            runs = await transaction.fetch(WORKFLOW_CONTROL.lock_tree, workflow_id)
            # Sub-workflows may be added until their parent is locked: repeat until no more are found.
            while len(again := await transaction.fetch(WORKFLOW_CONTROL.lock_tree, workflow_id)) > len(runs):
                runs = again
            for run in again:
                if run.id == workflow_id:
                    return await work(LockedTree(store=WorkflowStore(transaction), run=run, runs=again))
            return None

        return await self.executor.run(lock_and_work)

    async def pause(
        self, runs: Collection[UUID], results: WithdrawnTaskResults, *, failed_node: tuple[UUID, int] | None = None
    ) -> None:
        """Pause these runs; with `failed_node` (run, index) that run takes the node's error."""
        await self.executor.execute(WORKFLOW_CONTROL.pause_runs, list(runs), *(failed_node or (None, None)), *results)

    async def resume(self, runs: Collection[UUID], *, is_new_generation: bool = False) -> None:
        await self.executor.execute(WORKFLOW_CONTROL.resume_runs, list(runs), is_new_generation)

    async def end(
        self, runs: Collection[UUID], status: str, error: str, results: WithdrawnTaskResults, *, kill: bool = False
    ) -> None:
        await self.executor.execute(WORKFLOW_CONTROL.end_runs, list(runs), status, error, *results, kill)

    async def retryable_runs(self, workflow_id: UUID) -> list[RetryableRun]:
        return await self.executor.fetch(WORKFLOW_CONTROL.retryable_runs, workflow_id)

    async def reset_nodes(self, runs: Collection[UUID]) -> list[ResetNode]:
        return await self.executor.fetch(WORKFLOW_CONTROL.reset_nodes, list(runs))

    async def long_paused(self, *, longer_than_s: float, limit: int) -> list[UUID]:
        """Runs that have been paused for longer than `longer_than_s`, longest first."""
        return await self.executor.fetch(WORKFLOW_CONTROL.long_paused, longer_than_s, limit)

    # Healing

    async def stuck_runs(self, limit: int) -> list[StuckRun]:
        """Runs to advance, at most `limit` of each case."""
        return await self.executor.fetch(WORKFLOW_CONTROL.stuck_runs, limit)

    async def orphaned_tasks(self, limit: int) -> list[StuckRun]:
        return await self.executor.fetch(WORKFLOW_CONTROL.orphaned_tasks, limit)

    async def cancel_orphaned_tasks(self, orphans: Iterable[StuckRun], document: str) -> list[StuckRun]:
        task_ids = [orphan.task_id for orphan in orphans]
        return await self.executor.fetch(WORKFLOW_CONTROL.cancel_orphaned_tasks, task_ids, document)

    async def request_advance(self, workflow_id: UUID) -> None:
        """Insert an outbox entry for a run that has none."""
        await self.executor.execute(WORKFLOW_CONTROL.request_advance, workflow_id)

    async def release_quarantined(self) -> None:
        """Make outbox entries due again that were quarantined more than an hour ago."""
        await self.executor.execute(WORKFLOW_CONTROL.release_quarantined)

    async def set_lock_timeout(self, *, timeout_ms: int) -> None:
        """Limit lock waits in this transaction; a longer wait raises LockTimeout."""
        await self.executor.execute(WORKFLOW_CONTROL.set_lock_timeout, str(timeout_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedTree:
    """A run and all runs below it, locked by the transaction of `store`."""

    store: WorkflowStore
    run: RunRow
    runs: Sequence[RunRow]

    def with_status(self, *statuses: WorkflowStatus) -> list[UUID]:
        """The runs that have one of these statuses."""
        return [run.id for run in self.runs if run.status in statuses]


def _run_columns(plan: WorkflowPlan, workflow_id: UUID, parent: PendingSubWorkflow | None) -> tuple[object, ...]:
    rule = plan.success_rule
    return (
        workflow_id,
        plan.name,
        plan.on_error,
        plan.output_index,
        None if rule is None else json.dumps({"cases": rule.cases, "optional": rule.optional}),
        plan.definition_key,
        parent.workflow_id if parent else None,
        parent.task_index if parent else None,
        parent.root_workflow_id if parent else workflow_id,  # a root run is the root of its own tree
        parent.depth + 1 if parent else 0,
    )


def _node_json(node: PlannedNode, dependents: Sequence[int]) -> str:
    plan = node.plan
    values = {
        "id": str(node.id),
        "index": plan.index,
        "node_id": plan.node_id,
        "name": plan.name,
        "queue_name": plan.queue_name,
        "priority": plan.priority,
        "dependencies": plan.dependencies,
        "dependents": dependents,
        "args_from": dict(plan.args_from),
        "ctx_from": plan.ctx_from,
        "allow_failed_deps": plan.allow_failed_deps,
        "join_type": plan.join,
        "min_success": plan.min_success,
        "good_until": None if plan.good_until is None else plan.good_until.isoformat(),
        "max_retries": plan.max_retries,
        "is_subworkflow": plan.is_subworkflow,
        "definition_key": plan.definition_key,
        "status": node.status,
        "task_id": str(node.task_id) if node.task_id else None,
    }
    # kwargs and options are JSON already: append them without decoding.
    return f'{json.dumps(values)[:-1]},"kwargs":{plan.kwargs_json},"options":{plan.options_json}}}'
