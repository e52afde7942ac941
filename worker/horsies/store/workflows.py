"""Runs of workflows: stored, locked, read, moved and closed. What to do with them is not decided here."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from horsies.model.workflow.plan import NodePlan, SuccessRule, WorkflowPlan
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """A node of a run that is about to be stored, with its id and where it stands at the start."""

    id: UUID
    plan: NodePlan
    status: str
    task_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRef:
    """The node that a run stands behind."""

    workflow_id: UUID
    task_index: int
    root_id: UUID
    depth: int
    """Of the run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run that asks to be advanced; without a status it is in another hand."""

    id: UUID
    status: str | None
    on_error: str | None
    success_policy: str | None
    output_task_index: int | None
    outbox_ids: Sequence[UUID]
    """The rows of the outbox that asked."""


class RunNodeRow(NamedTuple):
    """A node, and how its task or child ended where that is not yet taken over."""

    workflow_id: UUID
    id: UUID
    task_index: int
    node_id: str
    dependencies: Sequence[int]
    workflow_ctx_from: Sequence[str] | None
    join_type: str
    min_success: int | None
    allow_failed_deps: bool
    is_subworkflow: bool
    sub_workflow_id: UUID | None
    task_status: str | None
    no_restart: str | None
    result_kind: str
    child_status: str | None
    is_task_gone: bool
    """Whether its task or child was deleted."""
    status: str


@dataclass(slots=True, kw_only=True)
class NodeUpdates:
    """Moves of nodes, collected over runs and written in one statement."""

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
    """The end of a run, or with no status only who is to blame for what will be its end."""

    workflow_id: UUID
    status: str | None = None
    failed_index: int | None = None
    error: str | None = None
    leaf_indexes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowIdRow:
    """Of a run or a node."""

    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAdvance:
    """A row of the outbox that is to be tried again, or was set aside."""

    id: UUID
    is_quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSubWorkflow:
    """A sub-workflow to be started; arguments and context are JSON."""

    id: UUID
    workflow_id: UUID
    task_index: int
    definition_key: str
    kwargs: str
    context: str
    root_workflow_id: UUID
    depth: int
    tries: int
    has_waited_long: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AncestorRow:
    """A sub-workflow that another one stands below."""

    definition_key: str
    has_same_inputs: bool
    """Whether definition, arguments and context are those of the one below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStateRow:
    has_entries: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowQueries:
    insert_run: Query[WorkflowIdRow]
    has_outbox_entries: Query[OutboxStateRow]
    lock_due_runs: Query[RunRow]
    due_runs: Query[WorkflowIdRow]
    lock_runs: Query[RunRow]
    read_runs: Query[RunRow]
    run_nodes: Query[RunNodeRow]
    update_nodes: Query[WorkflowIdRow]
    enqueue_nodes: Query[None]
    finish_runs: Query[WorkflowIdRow]
    record_advance_failure: Query[FailedAdvance]
    pending_sub_workflows: Query[PendingSubWorkflow]
    link_sub_workflow: Query[WorkflowIdRow]
    lock_sub_workflow_start: Query[WorkflowIdRow]
    defer_unknown_definition: Query[None]
    ancestors: Query[AncestorRow]
    delete_unwanted_start: Query[None]
    quarantine_sub_workflow: Query[None]


WORKFLOWS = load_queries(WorkflowQueries, "horsies.store", "flows")


@dataclass(frozen=True, slots=True)
class WorkflowWriter:
    """Runs inside one transaction. Whoever moves one has locked it first."""

    transaction: Transaction

    async def insert_run(
        self, plan: WorkflowPlan, workflow_id: UUID, nodes: Sequence[PlannedNode], parent: ParentRef | None
    ) -> bool:
        """Store a run; False where there is one with this id."""
        columns = _run_columns(plan, workflow_id, parent)
        stored = await self.transaction.fetch(WORKFLOWS.insert_run, *columns, _nodes_document(nodes))
        return bool(stored)

    async def lock_due_runs(self, limit: int) -> list[RunRow]:
        return await self.transaction.fetch(WORKFLOWS.lock_due_runs, limit)

    async def lock_runs(self, workflow_ids: Collection[UUID]) -> list[RunRow]:
        return await self.transaction.fetch(WORKFLOWS.lock_runs, list(workflow_ids))

    async def run_nodes(self, workflow_ids: Collection[UUID]) -> list[RunNodeRow]:
        """The nodes of these runs, a run after the other, by index."""
        return await self.transaction.fetch(WORKFLOWS.run_nodes, list(workflow_ids))

    async def update_nodes(self, moves: NodeUpdates, *, outbox_ids: Collection[UUID]) -> None:
        """Move nodes, and forget the rows of the outbox that asked for it."""
        columns = (moves.ids, moves.statuses, moves.errors, moves.task_ids)
        await self.transaction.fetch(WORKFLOWS.update_nodes, *columns, list(outbox_ids))

    async def enqueue_nodes(self, node_ids: Collection[UUID]) -> None:
        """Make the tasks that these nodes have been given."""
        await self.transaction.execute(WORKFLOWS.enqueue_nodes, list(node_ids))

    async def finish_runs(self, closings: Sequence[RunCompletion]) -> None:
        await self.transaction.fetch(
            WORKFLOWS.finish_runs,
            [each.workflow_id for each in closings],
            [each.status for each in closings],
            [each.failed_index for each in closings],
            [each.error for each in closings],
            # Lists of different lengths make no array of the server's.
            [f"{{{','.join(map(str, each.leaf_indexes))}}}" for each in closings],
        )

    async def lock_sub_workflow_start(self, child: PendingSubWorkflow) -> bool:
        """Lock the parent's run, and the root's; whether this child is still wanted."""
        return bool(
            await self.transaction.fetch(
                WORKFLOWS.lock_sub_workflow_start, child.id, child.workflow_id, child.root_workflow_id
            )
        )

    async def link_sub_workflow(self, child: PendingSubWorkflow, workflow_id: UUID) -> bool:
        return bool(await self.transaction.fetch(WORKFLOWS.link_sub_workflow, child.id, workflow_id))


@dataclass(frozen=True, slots=True)
class WorkflowStore:
    """Runs of one database, as far as no lock is needed."""

    database: Database

    async def has_outbox_entries(self) -> bool:
        """Whether there is, or soon will be, something to do for any run; one look at an index."""
        (found,) = await self.database.fetch(WORKFLOWS.has_outbox_entries)
        return found.has_entries

    async def pending_sub_workflows(self, *, unknown: Collection[str], limit: int) -> list[PendingSubWorkflow]:
        """Sub-workflows to start; those with `unknown` definitions only now and then."""
        return await self.database.fetch(WORKFLOWS.pending_sub_workflows, list(unknown), limit)

    async def read_runs(self, workflow_ids: Collection[UUID]) -> tuple[list[RunRow], list[RunNodeRow]]:
        """Runs and their nodes as they stand, which may be another thing a moment later."""
        ids = list(workflow_ids)
        return await self.database.fetch(WORKFLOWS.read_runs, ids), await self.database.fetch(WORKFLOWS.run_nodes, ids)

    async def due_runs(self, limit: int) -> list[UUID]:
        """Runs that ask to be advanced."""
        return [row.id for row in await self.database.fetch(WORKFLOWS.due_runs, limit)]

    async def defer_unknown_definition(self, child: PendingSubWorkflow, why: str, *, pause_s: float) -> None:
        await self.database.execute(WORKFLOWS.defer_unknown_definition, child.id, why, pause_s)

    async def ancestors(self, child: PendingSubWorkflow) -> list[AncestorRow]:
        """The sub-workflows that this one would stand below, the nearest first."""
        return await self.database.fetch(WORKFLOWS.ancestors, child.id)

    async def delete_unwanted_start(self, child: PendingSubWorkflow) -> None:
        """Ask no more for a child whose node does not wait for one."""
        await self.database.execute(WORKFLOWS.delete_unwanted_start, child.id)

    async def quarantine_sub_workflow(self, child: PendingSubWorkflow, why: str) -> None:
        """Leave it for an hour."""
        await self.database.execute(WORKFLOWS.quarantine_sub_workflow, child.id, why)

    async def record_advance_failure(self, workflow_id: UUID, why: str, *, max_tries: int) -> list[FailedAdvance]:
        return await self.database.fetch(WORKFLOWS.record_advance_failure, workflow_id, why, max_tries)


def _run_columns(plan: WorkflowPlan, workflow_id: UUID, parent: ParentRef | None) -> tuple[object, ...]:
    return (
        workflow_id,
        plan.name,
        plan.on_error,
        plan.output_index,
        None if plan.success_rule is None else _policy(plan.success_rule),
        plan.definition_key,
        parent.workflow_id if parent else None,
        parent.task_index if parent else None,
        parent.root_id if parent else workflow_id,
        parent.depth if parent else 0,
    )


def _policy(rule: SuccessRule) -> str:
    return json.dumps({"cases": rule.cases, "optional": rule.optional})


def _nodes_document(nodes: Sequence[PlannedNode]) -> str:
    """All nodes as one JSON text; what is JSON already goes in as it is."""
    return f"[{','.join(map(_node_document, nodes))}]"


def _node_document(node: PlannedNode) -> str:
    plan = node.plan
    values = {
        "id": str(node.id),
        "index": plan.index,
        "node_id": plan.node_id,
        "name": plan.name,
        "queue_name": plan.queue_name,
        "priority": plan.priority,
        "dependencies": plan.dependencies,
        "args_from": dict(plan.args_from),
        "ctx_from": plan.ctx_from,
        "allow_failed_deps": plan.allow_failed_deps,
        "join_type": plan.join,
        "min_success": plan.min_success,
        "good_until": _instant(plan.good_until),
        "max_retries": plan.max_retries,
        "is_subworkflow": plan.is_subworkflow,
        "definition_key": plan.definition_key,
        "status": node.status,
        "task_id": str(node.task_id) if node.task_id else None,
    }
    return f'{json.dumps(values)[:-1]},"kwargs":{plan.kwargs_json},"options":{plan.options_json}}}'


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


# Runs and their nodes, as those who started them look at them.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResultRow:
    """How a run stands; document and error are JSON."""

    id: UUID
    status: str
    document: str | None
    error: str | None
    is_map: bool
    """Whether its result is one of several nodes."""
    output_name: str | None
    output_definition_key: str | None
    """Of the sub-workflow that made its result, where one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfoRow:
    node_id: str
    task_index: int
    task_name: str
    status: str
    task_id: UUID | None
    is_subworkflow: bool
    definition_key: str | None
    sub_workflow_id: UUID | None
    document: str | None
    started_at: datetime | None
    completed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReadQueries:
    run_results: Query[RunResultRow]
    node_infos: Query[NodeInfoRow]


RUN_READS = load_queries(RunReadQueries, "horsies.store", "flow_reads")


@dataclass(frozen=True, slots=True)
class WorkflowReader:
    """Runs of one database, to be looked at."""

    database: Database

    async def run_results(self, workflow_ids: Iterable[UUID]) -> list[RunResultRow]:
        return await self.database.fetch(RUN_READS.run_results, list(workflow_ids))

    async def node_infos(self, workflow_id: UUID) -> list[NodeInfoRow]:
        """By index."""
        return await self.database.fetch(RUN_READS.node_infos, workflow_id)
