"""Random workflows: their graphs, how each of their tasks would end, and the state in which they must end."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from horsies.model.workflow.plan import JoinType, OnError, SuccessRule
from horsies.model.workflow.status import WorkflowTaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class DagNode:
    dependencies: tuple[int, ...]
    join: JoinType
    min_success: int | None
    allow_failed_deps: bool
    context: tuple[int, ...]
    succeeds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    nodes: tuple[DagNode, ...]
    on_error: OnError
    success: SuccessRule | None

    def last_states(self) -> list[WorkflowTaskStatus]:
        """How every node must end, worked out from the graph alone: each waits for earlier ones only."""
        ends: list[WorkflowTaskStatus] = []
        for node in self.nodes:
            completed = sum(ends[index] is WorkflowTaskStatus.COMPLETED for index in node.dependencies)
            ends.append(_end(node, completed))
        return ends


def _end(node: DagNode, completed: int) -> WorkflowTaskStatus:
    needed = {JoinType.ALL: len(node.dependencies), JoinType.ANY: 1, JoinType.QUORUM: node.min_success or 0}[node.join]
    is_forgiving = node.join is JoinType.ALL and node.allow_failed_deps
    if node.dependencies and completed < needed and not is_forgiving:
        return WorkflowTaskStatus.SKIPPED
    return WorkflowTaskStatus.COMPLETED if node.succeeds else WorkflowTaskStatus.FAILED


@st.composite
def dags(draw: st.DrawFn, *, largest: int = 60) -> Dag:
    """A graph of up to `largest` nodes with every kind of join, policy and reaction to errors."""
    nodes = tuple(draw(_nodes(index)) for index in range(draw(st.integers(1, largest))))
    indexes = st.integers(0, len(nodes) - 1)
    case = st.lists(indexes, min_size=1, max_size=3, unique=True).map(tuple)
    rules = st.lists(case, min_size=1, max_size=3).map(lambda cases: SuccessRule(cases=tuple(cases)))
    return Dag(nodes=nodes, on_error=draw(st.sampled_from(OnError)), success=draw(st.none() | rules))


@st.composite
def _nodes(draw: st.DrawFn, index: int) -> DagNode:
    earlier = st.integers(max(0, index - 8), max(0, index - 1))
    dependencies = tuple(sorted(draw(st.lists(earlier, max_size=4, unique=True)))) if index else ()
    join = draw(st.sampled_from(JoinType)) if dependencies else JoinType.ALL
    return DagNode(
        dependencies=dependencies,
        join=join,
        min_success=draw(st.integers(1, len(dependencies))) if join is JoinType.QUORUM else None,
        allow_failed_deps=draw(st.booleans()),
        context=tuple(index for index in dependencies if draw(st.integers(0, 3)) == 0),
        succeeds=draw(st.integers(0, 3)) != 0,
    )
