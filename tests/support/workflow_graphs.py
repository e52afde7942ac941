"""Random workflows: their graphs, the graphs of their sub-workflows, and how each of their tasks would end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

from hypothesis import strategies as st

from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import JoinType, OnError, SuccessRule, WorkflowStatus
from horsies.model.workflow.plan import WorkflowTaskStatus as S
from horsies.model.workflow.progress import (
    Enqueue,
    FinishedSubWorkflow,
    FinishedTask,
    FinishNode,
    FinishRun,
    NodeState,
    NoRestartReason,
    PauseRun,
    ResultKind,
    ReturnToReady,
    RunState,
    SetRunError,
    Skip,
    StartSubWorkflow,
    Step,
    next_steps,
)

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


# How a run must end, worked out from its graph alone; shares no rule with the code that is tested by it.
#
# Neither order nor time occurs here: that they make no difference is what is to be shown.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The end of a run. A failure is that of the node `blamed`, or has a `code` where no node is to blame."""

    status: str
    nodes: Sequence[str]
    failed_node: int | None = None
    code: str | None = None
    children: Mapping[int, RunOutcome] = field(default_factory=dict[int, "RunOutcome"])
    """Of the sub-workflows that start, by the index of their node."""


def expected_outcome(dag: Dag) -> RunOutcome:
    children = {index: expected_outcome(node.child) for index, node in enumerate(dag.nodes) if node.child is not None}

    @cache
    def end_of(index: int) -> str:
        node = dag.nodes[index]
        if not _starts(node, [end_of(each) for each in node.dependencies]):
            return "SKIPPED"
        succeeds = children[index].status == "COMPLETED" if index in children else node.succeeds
        return "COMPLETED" if succeeds else "FAILED"

    ends = [end_of(index) for index in range(len(dag.nodes))]
    status, blamed, code = _end(dag, ends)
    started = {index: child for index, child in children.items() if ends[index] != "SKIPPED"}
    return RunOutcome(status=status, nodes=ends, failed_node=blamed, code=code, children=started)


def _starts(node: DagNode, waited_for: Sequence[str]) -> bool:
    completed = waited_for.count("COMPLETED")
    if not waited_for:
        return True
    if node.join == "any":
        return completed > 0
    if node.join == "quorum":
        return completed >= (node.min_success or 0)
    return node.allow_failed_deps or completed == len(waited_for)


def _end(dag: Dag, ends: Sequence[str]) -> tuple[str, int | None, str | None]:
    """Status, whose failure it is, and the code where it is nobody's."""
    if dag.success is None:
        failed = [index for index, end in enumerate(ends) if end == "FAILED"]
        return ("FAILED", failed[0], None) if failed else ("COMPLETED", None, None)
    for case in dag.success.cases:
        if all(ends[index] == "COMPLETED" for index in case):
            return "COMPLETED", None, None
    failed = [index for case in dag.success.cases for index in case if ends[index] == "FAILED"]
    return ("FAILED", failed[0], None) if failed else ("FAILED", None, "WORKFLOW_SUCCESS_CASE_NOT_MET")


# Runs as a database would hold them, to live through the rules without one. Every public method is one commit.
#
# Therefore an advance is applied wholly or not at all, and there is no half of it to be tried: a death in the middle is
# `due` without `advance`.

OK = FinishedTask(status=TaskStatus.COMPLETED, result_kind=ResultKind.OK)
ERR = FinishedTask(status=TaskStatus.FAILED, result_kind=ResultKind.ERR)
TAKEN_BACK = FinishedTask(status=TaskStatus.CANCELLED, result_kind=ResultKind.ERR, no_restart=NoRestartReason.PAUSED)


@dataclass(slots=True, eq=False)
class SimulatedRun:
    dag: Dag
    nodes: list[NodeState]
    starts: list[int]
    """How often each node was given a task, less those that were taken back before or instead of an end."""
    children: dict[int, SimulatedRun]
    parent: SimulatedRun | None = None
    status: WorkflowStatus = WorkflowStatus.RUNNING
    blamed: int | None = None
    code: str | None = None

    @property
    def is_running(self) -> bool:
        return self.status is WorkflowStatus.RUNNING

    @property
    def active_nodes(self) -> list[int]:
        """Nodes with a task that has not ended."""
        tasks = (index for index, node in enumerate(self.nodes) if not node.is_subworkflow)
        return [
            index for index in tasks if self.nodes[index].status in {S.ENQUEUED, S.RUNNING} and not self._ended(index)
        ]

    def tree(self) -> Iterator[SimulatedRun]:
        yield self
        for child in self.children.values():
            yield from child.tree()

    def outcome(self) -> RunOutcome:
        """How it ended, with all below it."""
        return RunOutcome(
            status=self.status,
            nodes=[node.status for node in self.nodes],
            failed_node=self.blamed,
            code=self.code,
            children={index: child.outcome() for index, child in sorted(self.children.items())},
        )

    def set(self, index: int, **changes: object) -> None:
        assert not self.nodes[index].status.is_terminal, "what has ended stays so"
        self.nodes[index] = replace(self.nodes[index], **changes)  # pyright: ignore[reportArgumentType]

    def _ended(self, index: int) -> bool:
        return self.nodes[index].backing is not None


@dataclass(frozen=True, slots=True)
class Request:
    """A row of the outbox: advance this run, or start the sub-workflow of this node of it."""

    run: SimulatedRun
    child: int | None = None


class SimulatedRuns:
    """A root and all that grows below it."""

    def __init__(self, dag: Dag) -> None:
        self.requests: list[Request] = []
        self.root = self._start(dag, None)

    def begin_task(self, run: SimulatedRun, index: int) -> None:
        run.set(index, status=S.RUNNING)

    def end_task(self, run: SimulatedRun, index: int) -> None:
        """The outcome and the request for an advance are stored together."""
        run.set(index, backing=OK if run.dag.nodes[index].succeeds else ERR)
        self.requests.append(Request(run))

    def lose_task(self, run: SimulatedRun, index: int) -> None:
        """Its worker died. It starts again, unless its run was paused meanwhile."""
        if not run.is_running:
            run.set(index, backing=TAKEN_BACK)
            self.requests.append(Request(run))

    def process_request(self, request: Request) -> None:
        self.requests = [each for each in self.requests if each != request]
        if request.child is None:
            self.advance(request.run)
        elif request.run.is_running and request.run.nodes[request.child].status is S.READY:
            self._start_child(request.run, request.child)

    def due_steps(self, run: SimulatedRun) -> list[Step]:
        """What an advance would do now."""
        nodes = [self._state_of(run, index) for index in range(len(run.nodes))]
        return list(
            next_steps(
                RunState(status=run.status, nodes=nodes, on_error=run.dag.on_error, success_rule=run.dag.success)
            )
        )

    def advance(self, run: SimulatedRun) -> None:
        for step in self.due_steps(run):
            self._apply(run, step)

    def pause(self, run: SimulatedRun) -> None:
        """What waits is taken back; what runs may end."""
        for each in run.tree():
            if each.is_running:
                each.status = WorkflowStatus.PAUSED
                for index in each.active_nodes:
                    if each.nodes[index].status is S.ENQUEUED:
                        each.set(index, status=S.READY)
                        each.starts[index] -= 1

    def resume(self, run: SimulatedRun) -> None:
        paused = [each for each in run.tree() if each.status is WorkflowStatus.PAUSED]
        for each in paused:
            self.advance(each)
        for each in paused:
            each.status = WorkflowStatus.RUNNING
        for each in paused:
            self.advance(each)

    def heal(self) -> None:
        """Whoever heals advances each run in which something is due, asked for or not."""
        for run in list(self.root.tree()):
            if run.is_running:
                self.advance(run)

    def _start(self, dag: Dag, parent: SimulatedRun | None) -> SimulatedRun:
        nodes = [
            NodeState(
                status=S.PENDING,
                dependencies=node.dependencies,
                context_dependencies=node.context,
                join=node.join,
                min_success=node.min_success,
                allow_failed_deps=node.allow_failed_deps,
                is_subworkflow=node.child is not None,
            )
            for node in dag.nodes
        ]
        run = SimulatedRun(dag=dag, nodes=nodes, starts=[0] * len(nodes), children={}, parent=parent)
        self.advance(run)
        return run

    def _start_child(self, run: SimulatedRun, index: int) -> None:
        child = run.dag.nodes[index].child
        assert child is not None
        assert index not in run.children, "a sub-workflow starts once"
        run.set(index, status=S.RUNNING)
        run.starts[index] += 1
        run.children[index] = self._start(child, run)

    def _state_of(self, run: SimulatedRun, index: int) -> NodeState:
        """A node with what the tables say of its child, and of the request to start one."""
        node, child = run.nodes[index], run.children.get(index)
        if node.status.is_terminal or not node.is_subworkflow:
            return node
        if child is not None and child.status.is_terminal:
            return replace(node, backing=FinishedSubWorkflow(status=child.status))
        return replace(node, status=S.ENQUEUED) if Request(run, index) in self.requests else node

    def _apply(self, run: SimulatedRun, step: Step) -> None:
        match step:
            case FinishNode(index, end):
                run.set(index, status=end.status, backing=None)
            case ReturnToReady(index):
                run.set(index, status=S.READY, backing=None)
                run.starts[index] -= 1
            case Skip(index):
                run.set(index, status=S.SKIPPED, backing=None)
            case Enqueue(index):
                assert all(run.nodes[each].status.is_terminal for each in run.nodes[index].context_dependencies), (
                    "it can read them"
                )
                run.set(index, status=S.ENQUEUED)
                run.starts[index] += 1
            case StartSubWorkflow(index):
                run.set(index, status=S.READY)
                self.requests.append(Request(run, index))
            case PauseRun():
                self.pause(run)
            case FinishRun(outcome):
                run.status, run.blamed, run.code = outcome.status, outcome.error_node, outcome.code
                if run.parent is not None:
                    self.requests.append(Request(run.parent))
            case SetRunError():
                pass
