"""A run comes into being: all of it, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.codec.ids import IDS
from horsies.model.workflow.plan import OnError
from horsies.model.workflow.progress import Enqueue, NodeState, RunState, StartChild, next_steps
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus
from horsies.store.flows import FlowWrites, PlannedNode

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.model.workflow.plan import NodePlan, WorkflowPlan
    from horsies.store.db import Database, Transaction
    from horsies.store.flows import Parentage


async def start(database: Database, plan: WorkflowPlan, workflow_id: UUID) -> bool:
    """Store a run and enqueue what may start, in one transaction; False where there is a run with this id already."""

    async def store(transaction: Transaction) -> bool:
        return await store_run(FlowWrites(transaction), plan, workflow_id)

    return await database.run(store)


async def store_run(writes: FlowWrites, plan: WorkflowPlan, workflow_id: UUID, parent: Parentage | None = None) -> bool:
    """The same inside a transaction, for a sub-workflow too."""
    return await writes.start(plan, workflow_id, _planned(plan), parent)


def _planned(plan: WorkflowPlan) -> list[PlannedNode]:
    first = RunState(
        status=WorkflowStatus.RUNNING,
        nodes=[_state(node) for node in plan.nodes],
        on_error=OnError.FAIL,
        success=plan.success,
    )
    steps = list(next_steps(first))
    enqueued = {step.index for step in steps if isinstance(step, Enqueue)}
    ready = {step.index for step in steps if isinstance(step, StartChild)}
    return [_node(node, is_enqueued=node.index in enqueued, is_ready=node.index in ready) for node in plan.nodes]


def _state(node: NodePlan) -> NodeState:
    return NodeState(
        status=WorkflowTaskStatus.PENDING,
        dependencies=node.dependencies,
        join=node.join,
        min_success=node.min_success,
        is_subworkflow=node.is_subworkflow,
    )


def _node(plan: NodePlan, *, is_enqueued: bool, is_ready: bool) -> PlannedNode:
    if is_enqueued:
        return PlannedNode(id=IDS.next(), plan=plan, status=WorkflowTaskStatus.ENQUEUED, task_id=IDS.next())
    status = WorkflowTaskStatus.READY if is_ready else WorkflowTaskStatus.PENDING
    return PlannedNode(id=IDS.next(), plan=plan, status=status)
