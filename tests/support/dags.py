"""Random workflows: their graphs, the graphs of their sub-workflows, and how each of their tasks would end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from hypothesis import strategies as st

from horsies.model.workflow.plan import JoinType, OnError, SuccessRule

LARGEST_CHILD = 4
CHANCES = st.integers(0, 2**32).map(Random)


@dataclass(frozen=True, slots=True, kw_only=True)
class DagNode:
    dependencies: tuple[int, ...]
    join: JoinType
    min_success: int | None
    allow_failed_deps: bool
    context: tuple[int, ...]
    succeeds: bool
    """Of a task; a sub-workflow ends as its own graph says."""
    child: Dag | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    nodes: tuple[DagNode, ...]
    on_error: OnError
    success: SuccessRule | None
    output: int | None


@st.composite
def dags(draw: st.DrawFn, *, largest: int = 60, depth: int = 2) -> Dag:
    """A graph of up to `largest` nodes with every kind of join, policy and reaction to errors, so many levels deep."""
    nodes = _in_any_order([draw(_nodes(index, depth)) for index in range(draw(st.integers(1, largest)))], draw(CHANCES))
    indexes = st.integers(0, len(nodes) - 1)
    case = st.lists(indexes, min_size=1, max_size=3, unique=True).map(tuple)
    rules = st.lists(case, min_size=1, max_size=3).map(lambda cases: SuccessRule(cases=tuple(cases)))
    return Dag(
        nodes=nodes,
        on_error=draw(st.sampled_from(OnError)),
        success=draw(st.none() | rules),
        output=draw(st.none() | indexes),
    )


def _in_any_order(nodes: list[DagNode], chance: Random) -> tuple[DagNode, ...]:
    """The same graph with its nodes listed differently: they may stand before those that they wait for."""
    places = list(range(len(nodes)))
    chance.shuffle(places)
    listed = {place: _moved(node, places) for node, place in zip(nodes, places, strict=True)}
    return tuple(listed[place] for place in range(len(nodes)))


def _moved(node: DagNode, places: list[int]) -> DagNode:
    dependencies = tuple(sorted(places[each] for each in node.dependencies))
    return replace(node, dependencies=dependencies, context=tuple(places[each] for each in node.context))


@st.composite
def _nodes(draw: st.DrawFn, index: int, depth: int) -> DagNode:
    earlier = st.integers(max(0, index - 8), max(0, index - 1))
    dependencies = tuple(sorted(draw(st.lists(earlier, max_size=4, unique=True)))) if index else ()
    join = draw(st.sampled_from(JoinType)) if dependencies else JoinType.ALL
    is_subworkflow = depth > 0 and draw(st.integers(0, 7)) == 7
    return DagNode(
        dependencies=dependencies,
        join=join,
        min_success=draw(st.integers(1, len(dependencies))) if join is JoinType.QUORUM else None,
        allow_failed_deps=draw(st.booleans()),
        context=tuple(index for index in dependencies if draw(st.integers(0, 3)) == 0),
        succeeds=draw(st.integers(0, 3)) != 0,
        child=draw(dags(largest=LARGEST_CHILD, depth=depth - 1)) if is_subworkflow else None,
    )
