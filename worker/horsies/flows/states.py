"""From rows to the states that the rules know."""

from __future__ import annotations

import json
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies.model.workflow.ending import Deleted, Document, EndedChild, EndedTask, NoRestart, Refused
from horsies.model.workflow.plan import JoinType, OnError, SuccessRule
from horsies.model.workflow.progress import NodeState, RunState
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from horsies.model.task_error import TaskError
    from horsies.model.workflow.ending import Behind
    from horsies.store.flows import DueRun, NodeRow

Refusals = dict["UUID", "TaskError"]
"""Nodes that cannot start, by id, and why."""

_TASK_STATUSES = {status.value: status for status in TaskStatus}
_NODE_STATUSES = {status.value: status for status in WorkflowTaskStatus}
_JOINS = {join.value: join for join in JoinType}


def by_run(rows: Iterable[NodeRow]) -> dict[UUID, list[NodeRow]]:
    """The nodes of each run, by index."""
    return {workflow_id: list(nodes) for workflow_id, nodes in groupby(rows, key=attrgetter("workflow_id"))}


def run_state(run: DueRun, nodes: Sequence[NodeRow], refusals: Mapping[UUID, TaskError]) -> RunState:
    indexes = {node.node_id: node.task_index for node in nodes}
    return RunState(
        status=WorkflowStatus(run.status or ""),
        nodes=[_node_state(node, indexes, refusals) for node in nodes],
        on_error=OnError(run.on_error or ""),
        success=None if run.success_policy is None else _rule(run.success_policy),
    )


def _node_state(node: NodeRow, indexes: Mapping[str, int], refusals: Mapping[UUID, TaskError]) -> NodeState:
    return NodeState(
        status=_NODE_STATUSES[node.status],
        dependencies=node.dependencies,
        context=[indexes[name] for name in node.workflow_ctx_from or ()],
        join=_JOINS[node.join_type],
        min_success=node.min_success,
        allow_failed_deps=node.allow_failed_deps,
        is_subworkflow=node.is_subworkflow,
        ended=_behind(node, refusals),
    )


def _behind(node: NodeRow, refusals: Mapping[UUID, TaskError]) -> Behind | None:
    if node.task_status is not None:
        return EndedTask(
            status=_TASK_STATUSES[node.task_status],
            document=Document(node.document),
            mark=None if node.mark is None else NoRestart(node.mark),
        )
    if node.child_status is not None:
        return EndedChild(status=WorkflowStatus(node.child_status))
    if node.is_bereft:
        return Deleted()
    return Refused() if node.id in refusals else None


def _rule(policy: str) -> SuccessRule:
    stored = json.loads(policy)
    cases = tuple(tuple(case) for case in stored["cases"])
    return SuccessRule(cases=cases, optional=tuple(stored.get("optional", ())))
