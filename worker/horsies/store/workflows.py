"""Runs of workflows: stored, locked, read, moved and closed. What to do with them is not decided here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.model.workflow.plan import NodePlan, SuccessRule, WorkflowPlan
    from horsies.store.database import Database, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """A node of a run that is about to be stored, with its id and where it stands at the start."""

    id: UUID
    plan: NodePlan
    status: str
    task_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parentage:
    """The node that a run stands behind."""

    workflow_id: UUID
    task_index: int
    root_id: UUID
    depth: int
    """Of the run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    """A run that asks to be advanced; without a status it is in another hand."""

    id: UUID
    status: str | None
    on_error: str | None
    success_policy: str | None
    output_task_index: int | None
    asked: Sequence[UUID]
    """The rows of the outbox that asked."""


class NodeRow(NamedTuple):
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
    mark: str | None
    document: str
    child_status: str | None
    is_bereft: bool
    """Whether its task or child was deleted."""
    status: str


@dataclass(slots=True, kw_only=True)
class NodeMoves:
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
class Closing:
    """The end of a run, or with no status only who is to blame for what will be its end."""

    workflow_id: UUID
    status: str | None = None
    blamed: int | None = None
    error: str | None = None
    last_nodes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Of a run or a node."""

    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAdvance:
    """A row of the outbox that is to be tried again, or was set aside."""

    id: UUID
    is_quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingChild:
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
class Above:
    """A sub-workflow that another one stands below."""

    definition_key: str
    is_built_from_the_same: bool
    """Whether definition, arguments and context are those of the one below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    is_asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowQueries:
    start: Query[Identity]
    anything_asked: Query[Asked]
    lock_due: Query[DueRun]
    due: Query[Identity]
    lock: Query[DueRun]
    look: Query[DueRun]
    nodes_of: Query[NodeRow]
    move_nodes: Query[Identity]
    enqueue: Query[None]
    close: Query[Identity]
    note_failure: Query[FailedAdvance]
    waiting_children: Query[WaitingChild]
    link_child: Query[Identity]
    may_start_child: Query[Identity]
    note_unknown: Query[None]
    above: Query[Above]
    forget_unwanted: Query[None]
    set_child_aside: Query[None]


FLOWS = load(FlowQueries, "horsies.store", "flows")


@dataclass(frozen=True, slots=True)
class FlowWrites:
    """Runs inside one transaction. Whoever moves one has locked it first."""

    transaction: Transaction

    async def start(
        self, plan: WorkflowPlan, workflow_id: UUID, nodes: Sequence[PlannedNode], parent: Parentage | None
    ) -> bool:
        """Store a run; False where there is one with this id."""
        columns = _run_columns(plan, workflow_id, parent)
        stored = await self.transaction.fetch(FLOWS.start, *columns, _nodes_document(nodes))
        return bool(stored)

    async def lock_due(self, limit: int) -> list[DueRun]:
        return await self.transaction.fetch(FLOWS.lock_due, limit)

    async def lock(self, workflow_ids: Collection[UUID]) -> list[DueRun]:
        return await self.transaction.fetch(FLOWS.lock, list(workflow_ids))

    async def nodes_of(self, workflow_ids: Collection[UUID]) -> list[NodeRow]:
        """The nodes of these runs, a run after the other, by index."""
        return await self.transaction.fetch(FLOWS.nodes_of, list(workflow_ids))

    async def move_nodes(self, moves: NodeMoves, *, asked: Collection[UUID]) -> None:
        """Move nodes, and forget the rows of the outbox that asked for it."""
        columns = (moves.ids, moves.statuses, moves.errors, moves.task_ids)
        await self.transaction.fetch(FLOWS.move_nodes, *columns, list(asked))

    async def enqueue(self, node_ids: Collection[UUID]) -> None:
        """Make the tasks that these nodes have been given."""
        await self.transaction.execute(FLOWS.enqueue, list(node_ids))

    async def close(self, closings: Sequence[Closing]) -> None:
        await self.transaction.fetch(
            FLOWS.close,
            [each.workflow_id for each in closings],
            [each.status for each in closings],
            [each.blamed for each in closings],
            [each.error for each in closings],
            # Lists of different lengths make no array of the server's.
            [f"{{{','.join(map(str, each.last_nodes))}}}" for each in closings],
        )

    async def may_start_child(self, child: WaitingChild) -> bool:
        """Lock the parent's run, and the root's; whether this child is still wanted."""
        return bool(
            await self.transaction.fetch(FLOWS.may_start_child, child.id, child.workflow_id, child.root_workflow_id)
        )

    async def link_child(self, child: WaitingChild, workflow_id: UUID) -> bool:
        return bool(await self.transaction.fetch(FLOWS.link_child, child.id, workflow_id))


@dataclass(frozen=True, slots=True)
class FlowStore:
    """Runs of one database, as far as no lock is needed."""

    database: Database

    async def is_anything_asked(self) -> bool:
        """Whether there is, or soon will be, something to do for any run; one look at an index."""
        (found,) = await self.database.fetch(FLOWS.anything_asked)
        return found.is_asked

    async def waiting_children(self, *, unknown: Collection[str], limit: int) -> list[WaitingChild]:
        """Sub-workflows to start; those with `unknown` definitions only now and then."""
        return await self.database.fetch(FLOWS.waiting_children, list(unknown), limit)

    async def look(self, workflow_ids: Collection[UUID]) -> tuple[list[DueRun], list[NodeRow]]:
        """Runs and their nodes as they stand, which may be another thing a moment later."""
        ids = list(workflow_ids)
        return await self.database.fetch(FLOWS.look, ids), await self.database.fetch(FLOWS.nodes_of, ids)

    async def due(self, limit: int) -> list[UUID]:
        """Runs that ask to be advanced."""
        return [row.id for row in await self.database.fetch(FLOWS.due, limit)]

    async def note_unknown(self, child: WaitingChild, why: str, *, pause_s: float) -> None:
        await self.database.execute(FLOWS.note_unknown, child.id, why, pause_s)

    async def above(self, child: WaitingChild) -> list[Above]:
        """The sub-workflows that this one would stand below, the nearest first."""
        return await self.database.fetch(FLOWS.above, child.id)

    async def forget_unwanted(self, child: WaitingChild) -> None:
        """Ask no more for a child whose node does not wait for one."""
        await self.database.execute(FLOWS.forget_unwanted, child.id)

    async def set_child_aside(self, child: WaitingChild, why: str) -> None:
        """Leave it for an hour."""
        await self.database.execute(FLOWS.set_child_aside, child.id, why)

    async def note_failure(self, workflow_id: UUID, why: str, *, most_tries: int) -> list[FailedAdvance]:
        return await self.database.fetch(FLOWS.note_failure, workflow_id, why, most_tries)


def _run_columns(plan: WorkflowPlan, workflow_id: UUID, parent: Parentage | None) -> tuple[object, ...]:
    return (
        workflow_id,
        plan.name,
        plan.on_error,
        plan.output_index,
        None if plan.success is None else _policy(plan.success),
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
class RunOutcomeRow:
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
class FlowReadQueries:
    outcomes: Query[RunOutcomeRow]
    nodes: Query[NodeInfoRow]


FLOW_READS = load(FlowReadQueries, "horsies.store", "flow_reads")


@dataclass(frozen=True, slots=True)
class FlowReadStore:
    """Runs of one database, to be looked at."""

    database: Database

    async def outcomes(self, workflow_ids: Iterable[UUID]) -> list[RunOutcomeRow]:
        return await self.database.fetch(FLOW_READS.outcomes, list(workflow_ids))

    async def nodes(self, workflow_id: UUID) -> list[NodeInfoRow]:
        """By index."""
        return await self.database.fetch(FLOW_READS.nodes, workflow_id)
