"""What a run does next, given what has ended so far.

The answer depends on the states alone: asked again after a crash it is the same, asked after everything was done it is
nothing. Whoever carries the steps out holds the run's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from horsies.model.task import TaskStatus
from horsies.model.task_result import BuiltInTaskCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.workflow.plan import JoinType, OnError, SuccessRule, WorkflowStatus, WorkflowTaskStatus

# How a node ends, given what became of the task or the run behind it.


class ResultKind(StrEnum):
    """What is stored as a task's result."""

    OK = "ok"
    ERR = "err"
    MISSING = "none"
    INVALID = "odd"
    """Something that is no result."""


class NoRestartReason(StrEnum):
    """Why a task that was running may end but not start again."""

    PAUSED = "paused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTask:
    """A backing task that is terminal; `mark` says what its run was when it was last told."""

    status: TaskStatus
    result_kind: ResultKind
    no_restart: NoRestartReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSubWorkflow:
    """The run of a sub-workflow that is terminal."""

    status: WorkflowStatus


@dataclass(frozen=True, slots=True)
class BackingDeleted:
    """There was something behind the node, and somebody took it away by hand."""


@dataclass(frozen=True, slots=True)
class BackingNotStarted:
    """There is nothing behind the node, and never will be: it could not be started."""


BackingOutcome: TypeAlias = FinishedTask | FinishedSubWorkflow | BackingDeleted | BackingNotStarted
"""What stands behind a node, once that will not move any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinished:
    """The node is terminal. Without a `code` it takes over what is stored; with one, an error is made of it."""

    status: WorkflowTaskStatus
    code: BuiltInTaskCode | None = None


@dataclass(frozen=True, slots=True)
class StoppedByPause:
    """The task was taken back because of a pause: the node waits for another one."""


@dataclass(frozen=True, slots=True)
class StoppedByCancel:
    """The task was taken back because of a cancel: the node never ran to its end."""


NodeOutcome: TypeAlias = NodeFinished | StoppedByPause | StoppedByCancel

_CODE_WITHOUT_RESULT: Final = {
    TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
    TaskStatus.FAILED: OperationalErrorCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}
"""What is said of a task that ended without saying anything itself."""


def node_outcome(behind: BackingOutcome) -> NodeOutcome:
    """What the node becomes."""
    match behind:
        case FinishedTask():
            return _task_outcome(behind)
        case FinishedSubWorkflow():
            return _sub_workflow_outcome(behind)
        case BackingDeleted():
            return NodeFinished(status=WorkflowTaskStatus.FAILED, code=RetrievalCode.RESULT_NOT_AVAILABLE)
        case BackingNotStarted():
            return NodeFinished(status=WorkflowTaskStatus.FAILED, code=OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED)


def _task_outcome(task: FinishedTask) -> NodeOutcome:
    if task.status is TaskStatus.CANCELLED and task.no_restart is not None:
        return StoppedByPause() if task.no_restart is NoRestartReason.PAUSED else StoppedByCancel()
    if task.result_kind is ResultKind.INVALID:
        return NodeFinished(status=WorkflowTaskStatus.FAILED, code=OperationalErrorCode.WORKER_CRASHED)
    if task.status is TaskStatus.COMPLETED and task.result_kind is ResultKind.OK:
        return NodeFinished(status=WorkflowTaskStatus.COMPLETED)
    if task.result_kind is ResultKind.ERR:
        return NodeFinished(status=WorkflowTaskStatus.FAILED)
    return NodeFinished(status=WorkflowTaskStatus.FAILED, code=_CODE_WITHOUT_RESULT[task.status])


def _sub_workflow_outcome(child: FinishedSubWorkflow) -> NodeOutcome:
    if child.status is WorkflowStatus.COMPLETED:
        return NodeFinished(status=WorkflowTaskStatus.COMPLETED)
    return NodeFinished(status=WorkflowTaskStatus.FAILED, code=OutcomeCode.SUBWORKFLOW_FAILED)


# How a run ends once all of its nodes have.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The end of a run. A failure has the error of the node `error_from`, or a `code` where no node is to blame."""

    status: WorkflowStatus
    error_node: int | None = None
    code: OutcomeCode | None = None


_RUN_COMPLETED = RunOutcome(status=WorkflowStatus.COMPLETED)


def run_outcome(statuses: Sequence[WorkflowTaskStatus], rule: SuccessRule | None) -> RunOutcome:
    """The outcome for nodes that are all terminal, given by index."""
    if not statuses:
        return RunOutcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_FAILED)
    if rule is not None:
        return _outcome_by_rule(statuses, rule)
    failed = first_failed(statuses, range(len(statuses)))
    return _RUN_COMPLETED if failed is None else RunOutcome(status=WorkflowStatus.FAILED, error_node=failed)


def _outcome_by_rule(statuses: Sequence[WorkflowTaskStatus], rule: SuccessRule) -> RunOutcome:
    if any(all(statuses[index] is WorkflowTaskStatus.COMPLETED for index in case) for case in rule.cases):
        return _RUN_COMPLETED
    failed = first_failed(statuses, (index for case in rule.cases for index in case))
    if failed is not None:
        return RunOutcome(status=WorkflowStatus.FAILED, error_node=failed)
    return RunOutcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET)


def first_failed(statuses: Sequence[WorkflowTaskStatus], indexes: Iterable[int]) -> int | None:
    """The first of these nodes that is FAILED."""
    return next((index for index in indexes if statuses[index] is WorkflowTaskStatus.FAILED), None)


def leaf_nodes(dependencies: Sequence[Sequence[int]]) -> list[int]:
    """The nodes that nobody waits for, whose results are the result of a run without an output node."""
    waited_for = {index for each in dependencies for index in each}
    return [index for index in range(len(dependencies)) if index not in waited_for]


COMPLETED, FAILED, SKIPPED = WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED
PENDING, READY = WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node as stored; `ended` is what stands behind it, where that has ended and the node has not."""

    status: WorkflowTaskStatus
    dependencies: Sequence[int] = ()
    context_dependencies: Sequence[int] = ()
    """Those dependencies that it wants to read, and therefore waits for whatever its join says."""
    join: JoinType = JoinType.ALL
    min_success: int | None = None
    allow_failed_deps: bool = False
    is_subworkflow: bool = False
    backing: BackingOutcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as stored; `nodes` stand at their indexes."""

    status: WorkflowStatus
    nodes: Sequence[NodeState]
    on_error: OnError = OnError.FAIL
    success_rule: SuccessRule | None = None


@dataclass(frozen=True, slots=True)
class FinishNode:
    """The node takes over how its task or child ended."""

    index: int
    outcome: NodeFinished


@dataclass(frozen=True, slots=True)
class ReturnToReady:
    """The node is READY again, without a task."""

    index: int


@dataclass(frozen=True, slots=True)
class Skip:
    """The node will never run: because of this dependency, or of its run's end where there is none."""

    index: int
    cause: int | None


@dataclass(frozen=True, slots=True)
class Enqueue:
    index: int


@dataclass(frozen=True, slots=True)
class StartSubWorkflow:
    index: int


@dataclass(frozen=True, slots=True)
class SetRunError:
    """The run has the error of this node, the first that failed, and goes on."""

    index: int


@dataclass(frozen=True, slots=True)
class PauseRun:
    """The run waits for a person, because of this node."""

    index: int


@dataclass(frozen=True, slots=True)
class FinishRun:
    outcome: RunOutcome


Step: TypeAlias = FinishNode | ReturnToReady | Skip | Enqueue | StartSubWorkflow | SetRunError | PauseRun | FinishRun


@dataclass(frozen=True, slots=True)
class NeverReady:
    """The node can no longer start, because of this dependency."""

    cause: int


def next_steps(run: RunState) -> Iterator[Step]:
    """Yield each move now due, in the order in which they are to be made."""
    statuses = [node.status for node in run.nodes]
    has_failed = False
    for index, node in enumerate(run.nodes):
        if node.backing is not None and not node.status.is_terminal:
            step = _step_for_backing(index, node_outcome(node.backing), run.status)
            statuses[index] = _status_after(step)
            has_failed = has_failed or statuses[index] is FAILED
            yield step
    if run.status is not WorkflowStatus.RUNNING:
        return
    blamed = first_failed(statuses, range(len(statuses))) if has_failed else None
    if blamed is not None and run.on_error is OnError.PAUSE:
        yield PauseRun(blamed)
        return
    yield from _start_or_skip(run, statuses)
    if all(status.is_terminal for status in statuses):
        yield FinishRun(run_outcome(statuses, run.success_rule))
    elif blamed is not None:
        yield SetRunError(blamed)


def readiness(node: NodeState, statuses: Sequence[WorkflowTaskStatus]) -> bool | NeverReady:
    """Whether a PENDING node may start; `Skipped` where it never will."""
    ends = [statuses[index] for index in node.dependencies]
    completed = ends.count(COMPLETED)
    is_open = len(ends) - completed - ends.count(FAILED) - ends.count(SKIPPED)
    needed = _required_successes(node)
    if completed + is_open < needed and (node.join is JoinType.QUORUM or not is_open):
        return NeverReady(_first_unsuccessful(node, statuses))
    if node.join is JoinType.ALL and is_open:
        return False
    return completed >= needed and all(statuses[index].is_terminal for index in node.context_dependencies)


def _required_successes(node: NodeState) -> int:
    """How many dependencies must be COMPLETED."""
    match node.join:
        case JoinType.ALL:
            return 0 if node.allow_failed_deps else len(node.dependencies)
        case JoinType.ANY:
            return min(1, len(node.dependencies))
        case JoinType.QUORUM:
            return node.min_success or 0


def _first_unsuccessful(node: NodeState, statuses: Sequence[WorkflowTaskStatus]) -> int:
    return next(index for index in node.dependencies if statuses[index] in {FAILED, SKIPPED})


def _step_for_backing(index: int, end: NodeOutcome, run: WorkflowStatus) -> FinishNode | ReturnToReady | Skip:
    match end:
        case NodeFinished():
            return FinishNode(index, end)
        case StoppedByPause() | StoppedByCancel() if not run.is_terminal:
            # A cancel may have been taken back, by a retry, after it had stopped the task.
            return ReturnToReady(index)
        case StoppedByPause() | StoppedByCancel():
            return Skip(index, None)


def _status_after(step: FinishNode | ReturnToReady | Skip) -> WorkflowTaskStatus:
    match step:
        case FinishNode():
            return step.outcome.status
        case ReturnToReady():
            return READY
        case Skip():
            return SKIPPED


def _start_or_skip(run: RunState, statuses: list[WorkflowTaskStatus]) -> Iterator[Step]:
    """Start what may start and skip what never will, until neither is left; `statuses` follows."""
    dependents = _dependents(run.nodes)
    waiting = deque(index for index, status in enumerate(statuses) if status in {PENDING, READY})
    while waiting:
        index = waiting.popleft()
        node = run.nodes[index]
        ready = statuses[index] is READY or (statuses[index] is PENDING and readiness(node, statuses))
        if isinstance(ready, NeverReady):
            statuses[index] = SKIPPED
            waiting.extend(dependents[index])
            yield Skip(index, ready.cause)
        elif ready:
            # Seen twice it must not start twice; what it is called between its start and its end is no matter here.
            statuses[index] = WorkflowTaskStatus.ENQUEUED
            yield StartSubWorkflow(index) if node.is_subworkflow else Enqueue(index)


def _dependents(nodes: Sequence[NodeState]) -> list[list[int]]:
    """For each node those that wait for it."""
    found: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for dependency in node.dependencies:
            found[dependency].append(index)
    return found
