"""Random workflow graphs, their expected outcomes, and simulated runs that apply the rules without a database."""

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
    steps_of_part,
)

MAX_SUB_WORKFLOW_NODES = 4
RANDOM_GENERATORS = st.integers(0, 2**32).map(Random)


@dataclass(frozen=True, slots=True, kw_only=True)
class DagNode:
    dependencies: tuple[int, ...]
    join: JoinType
    min_success: int | None
    allow_failed_deps: bool
    context: tuple[int, ...]
    succeeds: bool
    """Outcome of a task; that of a sub-workflow follows from its own graph."""
    sub_dag: Dag | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    nodes: tuple[DagNode, ...]
    on_error: OnError
    success: SuccessRule | None
    output: int | None


@st.composite
def dags(draw: st.DrawFn, *, largest: int = 60, depth: int = 2) -> Dag:
    """A graph of up to `largest` nodes with any joins, success rules and error modes, nested up to `depth` levels."""
    ordered = [draw(_nodes(index, depth)) for index in range(draw(st.integers(1, largest)))]
    nodes = _shuffled(ordered, draw(RANDOM_GENERATORS))
    indexes = st.integers(0, len(nodes) - 1)
    case = st.lists(indexes, min_size=1, max_size=3, unique=True).map(tuple)
    rules = st.lists(case, min_size=1, max_size=3).map(lambda cases: SuccessRule(cases=tuple(cases)))
    return Dag(
        nodes=nodes,
        on_error=draw(st.sampled_from(OnError)),
        success=draw(st.none() | rules),
        output=draw(st.none() | indexes),
    )


def _shuffled(nodes: list[DagNode], random: Random) -> tuple[DagNode, ...]:
    """The same graph with its nodes in random order, so that a node may be listed before its dependencies."""
    new_indexes = list(range(len(nodes)))
    random.shuffle(new_indexes)
    moved = {index: _reindexed(node, new_indexes) for node, index in zip(nodes, new_indexes, strict=True)}
    return tuple(moved[index] for index in range(len(nodes)))


def _reindexed(node: DagNode, new_indexes: list[int]) -> DagNode:
    dependencies = tuple(sorted(new_indexes[index] for index in node.dependencies))
    return replace(node, dependencies=dependencies, context=tuple(new_indexes[index] for index in node.context))


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
        sub_dag=draw(dags(largest=MAX_SUB_WORKFLOW_NODES, depth=depth - 1)) if is_subworkflow else None,
    )


# Expected outcome, computed from the graph alone and without code of the product. Order and time do not occur here:
# the tests show that they make no difference.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """Outcome of a run. Its error is that of node `failed_node`, or has this `code` if no node is the cause."""

    status: str
    nodes: Sequence[str]
    failed_node: int | None = None
    code: str | None = None
    sub_runs: Mapping[int, RunOutcome] = field(default_factory=dict[int, "RunOutcome"])
    """Outcomes of started sub-workflows, by node index."""


def expected_outcome(dag: Dag) -> RunOutcome:
    sub_runs = {
        index: expected_outcome(node.sub_dag) for index, node in enumerate(dag.nodes) if node.sub_dag is not None
    }

    @cache
    def status_of(index: int) -> str:
        node = dag.nodes[index]
        if not _starts(node, [status_of(dependency) for dependency in node.dependencies]):
            return "SKIPPED"
        succeeds = sub_runs[index].status == "COMPLETED" if index in sub_runs else node.succeeds
        return "COMPLETED" if succeeds else "FAILED"

    statuses = [status_of(index) for index in range(len(dag.nodes))]
    status, failed_node, code = _run_outcome(dag, statuses)
    started = {index: outcome for index, outcome in sub_runs.items() if statuses[index] != "SKIPPED"}
    return RunOutcome(status=status, nodes=statuses, failed_node=failed_node, code=code, sub_runs=started)


def _starts(node: DagNode, dependencies: Sequence[str]) -> bool:
    completed = dependencies.count("COMPLETED")
    if not dependencies:
        return True
    if node.join == "any":
        return completed > 0
    if node.join == "quorum":
        return completed >= (node.min_success or 0)
    return node.allow_failed_deps or completed == len(dependencies)


def _run_outcome(dag: Dag, statuses: Sequence[str]) -> tuple[str, int | None, str | None]:
    """Status of the run, index of the failed node, and the error code if no node is the cause."""
    if dag.success is None:
        failed = [index for index, status in enumerate(statuses) if status == "FAILED"]
        return ("FAILED", failed[0], None) if failed else ("COMPLETED", None, None)
    for case in dag.success.cases:
        if all(statuses[index] == "COMPLETED" for index in case):
            return "COMPLETED", None, None
    failed = [index for case in dag.success.cases for index in case if statuses[index] == "FAILED"]
    return ("FAILED", failed[0], None) if failed else ("FAILED", None, "WORKFLOW_SUCCESS_CASE_NOT_MET")


# Simulated runs, as a database would store them. Every public method is one commit, so an advance is applied entirely
# or not at all: a crash in the middle of one is `due_steps` without `advance`.

OK = FinishedTask(status=TaskStatus.COMPLETED, result_kind=ResultKind.OK)
ERR = FinishedTask(status=TaskStatus.FAILED, result_kind=ResultKind.ERR)
WITHDRAWN = FinishedTask(status=TaskStatus.CANCELLED, result_kind=ResultKind.ERR, no_restart=NoRestartReason.PAUSED)


@dataclass(slots=True, eq=False)
class SimulatedRun:
    dag: Dag
    nodes: list[NodeState]
    starts: list[int]
    """Number of tasks enqueued for each node, without those withdrawn before they ended."""
    sub_runs: dict[int, SimulatedRun]
    parent: SimulatedRun | None = None
    status: WorkflowStatus = WorkflowStatus.RUNNING
    failed_node: int | None = None
    code: str | None = None

    @property
    def is_running(self) -> bool:
        return self.status is WorkflowStatus.RUNNING

    @property
    def active_nodes(self) -> list[int]:
        """Nodes with an unfinished task."""
        tasks = (index for index, node in enumerate(self.nodes) if not node.is_subworkflow)
        return [
            index
            for index in tasks
            if self.nodes[index].status in {S.ENQUEUED, S.RUNNING} and self.nodes[index].backing is None
        ]

    def tree(self) -> Iterator[SimulatedRun]:
        yield self
        for sub_run in self.sub_runs.values():
            yield from sub_run.tree()

    def outcome(self) -> RunOutcome:
        """Outcome of the run and all its sub-workflows."""
        return RunOutcome(
            status=self.status,
            nodes=[node.status for node in self.nodes],
            failed_node=self.failed_node,
            code=self.code,
            sub_runs={index: sub_run.outcome() for index, sub_run in sorted(self.sub_runs.items())},
        )

    def set(self, index: int, **changes: object) -> None:
        assert not self.nodes[index].status.is_terminal, "a finished node must not change"
        self.nodes[index] = replace(self.nodes[index], **changes)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class Request:
    """An outbox entry: advance a run because node `ended_index` has, or start the sub-workflow of `node_index`."""

    run: SimulatedRun
    node_index: int | None = None
    ended_index: int | None = None


class SimulatedRuns:
    """A root run and all its sub-workflows."""

    def __init__(self, dag: Dag) -> None:
        self.requests: list[Request] = []
        self.root = self._start(dag, None)

    def begin_task(self, run: SimulatedRun, index: int) -> None:
        run.set(index, status=S.RUNNING)

    def end_task(self, run: SimulatedRun, index: int) -> None:
        """Store the outcome together with an outbox entry."""
        run.set(index, backing=OK if run.dag.nodes[index].succeeds else ERR)
        self.requests.append(Request(run, ended_index=index))

    def lose_task(self, run: SimulatedRun, index: int) -> None:
        """The worker of a task died; the task starts again unless its run was paused."""
        if not run.is_running:
            run.set(index, backing=WITHDRAWN)
            self.requests.append(Request(run, ended_index=index))

    def process_request(self, request: Request) -> None:
        self.requests = [other for other in self.requests if other != request]
        if request.node_index is None:
            for step in self._steps_after(request):
                self._apply(request.run, step)
        elif request.run.is_running and request.run.nodes[request.node_index].status is S.READY:
            self._start_sub_workflow(request.run, request.node_index)

    def due_steps(self, run: SimulatedRun) -> list[Step]:
        """Steps that an advance would apply now."""
        nodes = {index: self._state_of(run, index) for index in range(len(run.nodes))}
        return list(
            next_steps(
                RunState(status=run.status, nodes=nodes, on_error=run.dag.on_error, success_rule=run.dag.success)
            )
        )

    def part_after(self, run: SimulatedRun, ended_index: int) -> RunState:
        """What an advance reads of a run in which this node has ended."""
        dependents = [index for index, node in enumerate(run.nodes) if ended_index in node.dependencies]
        if not dependents:  # one other node that has not ended
            unfinished = [index for index, node in enumerate(run.nodes) if not node.status.is_terminal]
            dependents = [index for index in unfinished if index != ended_index][-1:]
        return RunState(
            status=run.status,
            nodes={index: self._state_of(run, index) for index in sorted({ended_index, *dependents})},
            other_statuses={
                dependency: run.nodes[dependency].status
                for index in dependents
                for dependency in run.nodes[index].dependencies
            },
            on_error=run.dag.on_error,
            success_rule=run.dag.success,
        )

    def _steps_after(self, request: Request) -> Sequence[Step]:
        ended = request.ended_index
        steps = None if ended is None else steps_of_part(self.part_after(request.run, ended))
        return self.due_steps(request.run) if steps is None else steps

    def advance(self, run: SimulatedRun) -> None:
        for step in self.due_steps(run):
            self._apply(run, step)

    def pause(self, run: SimulatedRun) -> None:
        """Withdraw enqueued tasks; running ones may finish."""
        for member in run.tree():
            if member.is_running:
                member.status = WorkflowStatus.PAUSED
                for index in member.active_nodes:
                    if member.nodes[index].status is S.ENQUEUED:
                        member.set(index, status=S.READY)
                        member.starts[index] -= 1

    def resume(self, run: SimulatedRun) -> None:
        paused = [member for member in run.tree() if member.status is WorkflowStatus.PAUSED]
        for member in paused:
            self.advance(member)
        for member in paused:
            member.status = WorkflowStatus.RUNNING
        for member in paused:
            self.advance(member)

    def heal(self) -> None:
        """Advance every run, with or without an outbox entry."""
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
                is_subworkflow=node.sub_dag is not None,
            )
            for node in dag.nodes
        ]
        run = SimulatedRun(dag=dag, nodes=nodes, starts=[0] * len(nodes), sub_runs={}, parent=parent)
        self.advance(run)
        return run

    def _start_sub_workflow(self, run: SimulatedRun, index: int) -> None:
        sub_dag = run.dag.nodes[index].sub_dag
        assert sub_dag is not None
        assert index not in run.sub_runs, "a sub-workflow must start only once"
        run.set(index, status=S.RUNNING)
        run.starts[index] += 1
        run.sub_runs[index] = self._start(sub_dag, run)

    def _state_of(self, run: SimulatedRun, index: int) -> NodeState:
        """A node with the outcome of its sub-workflow, or ENQUEUED if a start is requested."""
        node, sub_run = run.nodes[index], run.sub_runs.get(index)
        if node.status.is_terminal or not node.is_subworkflow:
            return node
        if sub_run is not None and sub_run.status.is_terminal:
            return replace(node, backing=FinishedSubWorkflow(status=sub_run.status))
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
                context = [run.nodes[dependency] for dependency in run.nodes[index].context_dependencies]
                assert all(node.status.is_terminal for node in context), "context results must be available"
                run.set(index, status=S.ENQUEUED)
                run.starts[index] += 1
            case StartSubWorkflow(index):
                run.set(index, status=S.READY)
                self.requests.append(Request(run, index))
            case PauseRun():
                self.pause(run)
            case FinishRun(outcome):
                run.status, run.failed_node, run.code = outcome.status, outcome.error_node, outcome.code
                if run.parent is not None:
                    index = next(index for index, sub_run in run.parent.sub_runs.items() if sub_run is run)
                    self.requests.append(Request(run.parent, ended_index=index))
            case SetRunError():
                pass
