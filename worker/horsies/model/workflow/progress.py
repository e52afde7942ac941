"""The next steps of a run, given its stored state.

`next_steps` depends on the stored state alone, so it can be repeated after a crash; once its steps have been applied it
yields nothing more. The caller applies the steps while it holds the run's lock. `steps_of_part` finds
the steps from a part of the run, the nodes that ended and their dependents, unless other nodes matter too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from typing import Final, TypeAlias

from horsies.model.task import TaskStatus
from horsies.model.task_result import BuiltInTaskCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.workflow.plan import JoinType, OnError, SuccessRule, WorkflowStatus, WorkflowTaskStatus

COMPLETED, FAILED, SKIPPED = WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED
PENDING, READY = WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY

Statuses: TypeAlias = Sequence[WorkflowTaskStatus] | Mapping[int, WorkflowTaskStatus]
"""Statuses of nodes by index."""


# Outcome of a node, given the outcome of its backing task or sub-workflow


class ResultKind(StrEnum):
    """What the result column of a finished task contains."""

    OK = "ok"
    ERR = "err"
    MISSING = "none"
    INVALID = "invalid"


class NoRestartReason(StrEnum):
    """Why a running task may finish but not start again."""

    PAUSED = "paused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTask:
    """A terminal backing task; `no_restart` is set if its run was paused or cancelled while it was running."""

    status: TaskStatus
    result_kind: ResultKind
    no_restart: NoRestartReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSubWorkflow:
    """The terminal run of a sub-workflow."""

    status: WorkflowStatus


@dataclass(frozen=True, slots=True)
class BackingDeleted:
    """The backing task or run was deleted by hand."""


@dataclass(frozen=True, slots=True)
class BackingNotStarted:
    """The backing task or run could not be started."""


BackingOutcome: TypeAlias = FinishedTask | FinishedSubWorkflow | BackingDeleted | BackingNotStarted
"""The final state of a node's backing task or sub-workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinished:
    """The node is terminal. With a `code` it gets a new error with that code, else the stored result or error."""

    status: WorkflowTaskStatus
    code: BuiltInTaskCode | None = None


_CODE_WITHOUT_RESULT: Final = {
    TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
    TaskStatus.FAILED: OperationalErrorCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}
"""Error codes of nodes whose task finished without a result."""


def node_outcome(backing: BackingOutcome) -> NodeFinished | None:
    """The outcome of a node; None if its task was not restarted because the run was paused or cancelled."""
    match backing:
        case FinishedTask():
            return _task_outcome(backing)
        case FinishedSubWorkflow(status=WorkflowStatus.COMPLETED):
            return NodeFinished(status=WorkflowTaskStatus.COMPLETED)
        case FinishedSubWorkflow():
            return NodeFinished(status=WorkflowTaskStatus.FAILED, code=OutcomeCode.SUBWORKFLOW_FAILED)
        case BackingDeleted():
            return NodeFinished(status=WorkflowTaskStatus.FAILED, code=RetrievalCode.RESULT_NOT_AVAILABLE)
        case BackingNotStarted():
            return NodeFinished(status=WorkflowTaskStatus.FAILED, code=OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED)


def _task_outcome(task: FinishedTask) -> NodeFinished | None:
    if task.status is TaskStatus.CANCELLED and task.no_restart is not None:
        return None
    if task.result_kind is ResultKind.INVALID:
        return NodeFinished(status=WorkflowTaskStatus.FAILED, code=OperationalErrorCode.WORKER_CRASHED)
    if task.status is TaskStatus.COMPLETED and task.result_kind is ResultKind.OK:
        return NodeFinished(status=WorkflowTaskStatus.COMPLETED)
    if task.result_kind is ResultKind.ERR:
        return NodeFinished(status=WorkflowTaskStatus.FAILED)
    return NodeFinished(status=WorkflowTaskStatus.FAILED, code=_CODE_WITHOUT_RESULT[task.status])


# Outcome of a run whose nodes are all terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a run; a failed one has the error of node `error_node`, or else `code`."""

    status: WorkflowStatus
    error_node: int | None = None
    code: OutcomeCode | None = None


_RUN_COMPLETED = RunOutcome(status=WorkflowStatus.COMPLETED)


def run_outcome(statuses: Mapping[int, WorkflowTaskStatus], rule: SuccessRule | None) -> RunOutcome:
    """Return the outcome of a run; `statuses` are those of its nodes, all terminal."""
    if not statuses:
        return RunOutcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_FAILED)
    if rule is not None:
        return _outcome_by_rule(statuses, rule)
    failed = first_failed(statuses, sorted(statuses))
    return _RUN_COMPLETED if failed is None else RunOutcome(status=WorkflowStatus.FAILED, error_node=failed)


def _outcome_by_rule(statuses: Statuses, rule: SuccessRule) -> RunOutcome:
    # One satisfied case is enough: failures of all other nodes are ignored.
    if any(all(statuses[index] is WorkflowTaskStatus.COMPLETED for index in case) for case in rule.cases):
        return _RUN_COMPLETED
    failed = first_failed(statuses, (index for case in rule.cases for index in case))
    if failed is not None:
        return RunOutcome(status=WorkflowStatus.FAILED, error_node=failed)
    return RunOutcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET)


def first_failed(statuses: Statuses, indexes: Iterable[int]) -> int | None:
    """Return the first of these nodes that is FAILED."""
    return next((index for index in indexes if statuses[index] is WorkflowTaskStatus.FAILED), None)


def leaf_nodes(dependencies: Sequence[Sequence[int]]) -> list[int]:
    """Return the nodes without dependents; their results form the result of a run without an output node."""
    have_dependents = {index for node_dependencies in dependencies for index in node_dependencies}
    return [index for index in range(len(dependencies)) if index not in have_dependents]


# State of a run and its next steps


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The stored state of a node."""

    status: WorkflowTaskStatus
    dependencies: Sequence[int] = ()
    context_dependencies: Sequence[int] = ()
    """Dependencies whose results it reads; it waits for them with any join type."""
    join: JoinType = JoinType.ALL
    min_success: int | None = None
    allow_failed_deps: bool = False
    is_subworkflow: bool = False
    backing: BackingOutcome | None = None
    """Set if the backing task or sub-workflow is final and the node is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The stored state of a run, or of a part of it; nodes are given by index."""

    status: WorkflowStatus
    nodes: Mapping[int, NodeState]
    other_statuses: Mapping[int, WorkflowTaskStatus] = field(default_factory=dict[int, WorkflowTaskStatus])
    """In a part of a run: the statuses of nodes on which the given ones depend."""
    on_error: OnError = OnError.FAIL
    success_rule: SuccessRule | None = None


@dataclass(frozen=True, slots=True)
class FinishNode:
    """Store the outcome of the backing task or sub-workflow in the node."""

    index: int
    outcome: NodeFinished


@dataclass(frozen=True, slots=True)
class ReturnToReady:
    """Make the node READY again, without a task."""

    index: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Skip the node because of the dependency `cause`, or because the run has ended if that is None."""

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
    """Store the error of this node, the first that failed, in the run; the run continues."""

    index: int


@dataclass(frozen=True, slots=True)
class PauseRun:
    """Pause the run because this node failed."""

    index: int


@dataclass(frozen=True, slots=True)
class FinishRun:
    outcome: RunOutcome


Step: TypeAlias = FinishNode | ReturnToReady | Skip | Enqueue | StartSubWorkflow | SetRunError | PauseRun | FinishRun


class Readiness(Enum):
    """Whether a PENDING node may start."""

    NOW = auto()
    LATER = auto()
    NEVER = auto()
    """Too many of its dependencies failed or were skipped."""


def next_steps(run: RunState) -> Iterator[Step]:
    """Yield the steps that are due, in the order in which to apply them."""
    statuses = {**run.other_statuses, **{index: node.status for index, node in run.nodes.items()}}
    has_failed = False
    for index, node in run.nodes.items():
        if node.backing is not None and not node.status.is_terminal:
            outcome = node_outcome(node.backing)
            if outcome is not None:
                statuses[index] = outcome.status
                has_failed = has_failed or outcome.status is FAILED
                yield FinishNode(index, outcome)
            elif run.status.is_terminal:
                statuses[index] = SKIPPED
                yield Skip(index, None)
            else:  # even if its task was stopped by a cancel: the run may have been retried in the meantime
                statuses[index] = READY
                yield ReturnToReady(index)
    # A paused or finished run still stores the outcomes of tasks that were running, but starts nothing.
    if run.status is not WorkflowStatus.RUNNING:
        return
    # Only a new failure counts: a run resumed after a failure must not pause again because of it.
    failed = first_failed(statuses, sorted(statuses)) if has_failed else None
    if failed is not None and run.on_error is OnError.PAUSE:
        yield PauseRun(failed)
        return
    yield from _start_or_skip(run, statuses)
    if all(status.is_terminal for status in statuses.values()):
        yield FinishRun(run_outcome(statuses, run.success_rule))
    elif failed is not None:
        yield SetRunError(failed)


def steps_of_part(part: RunState) -> list[Step] | None:
    """Return the steps that are due after some nodes have ended; the part has these nodes and their dependents.

    None if the whole run must be read: after a failure or a skip, which can affect any node, and if all nodes of the
    part have ended, because then the run may have ended too.
    """
    steps = list(next_steps(replace(part, success_rule=None)))  # without the rule, which names nodes of the whole run
    return steps if all(map(_concerns_part_only, steps)) else None


def _concerns_part_only(step: Step) -> bool:
    if isinstance(step, FinishNode):
        return step.outcome.status is COMPLETED
    return isinstance(step, Enqueue | StartSubWorkflow)


def readiness(node: NodeState, statuses: Statuses) -> Readiness:
    """Whether a PENDING node may start, given the statuses of all nodes."""
    dependency_statuses = [statuses[index] for index in node.dependencies]
    completed = dependency_statuses.count(COMPLETED)
    unfinished = sum(not status.is_terminal for status in dependency_statuses)
    required = _required_successes(node)
    # Only a quorum is given up early; the other joins wait for all dependencies before a node is skipped.
    if completed + unfinished < required and (node.join is JoinType.QUORUM or not unfinished):
        return Readiness.NEVER
    if node.join is JoinType.ALL and unfinished:
        return Readiness.LATER
    has_context = all(statuses[index].is_terminal for index in node.context_dependencies)
    return Readiness.NOW if completed >= required and has_context else Readiness.LATER


def unsuccessful_dependency(node: NodeState, statuses: Statuses) -> int:
    """The first dependency that failed or was skipped: the reason why the node is never ready."""
    return next(index for index in node.dependencies if statuses[index] in {FAILED, SKIPPED})


def _required_successes(node: NodeState) -> int:
    match node.join:
        case JoinType.ALL:
            return 0 if node.allow_failed_deps else len(node.dependencies)
        case JoinType.ANY:
            return min(1, len(node.dependencies))
        case JoinType.QUORUM:
            return node.min_success or 0


def _start_or_skip(run: RunState, statuses: dict[int, WorkflowTaskStatus]) -> Iterator[Step]:
    """Start all ready nodes and skip those that can never start; updates `statuses`."""
    dependents: defaultdict[int, list[int]] = defaultdict(list)
    for index, node in run.nodes.items():
        for dependency in node.dependencies:
            dependents[dependency].append(index)
    waiting = deque(index for index in run.nodes if statuses[index] in {PENDING, READY})
    while waiting:
        index = waiting.popleft()
        node = run.nodes[index]
        if statuses[index] not in {PENDING, READY}:
            continue  # it was in `waiting` twice
        match Readiness.NOW if statuses[index] is READY else readiness(node, statuses):
            case Readiness.NOW:
                statuses[index] = WorkflowTaskStatus.ENQUEUED
                yield StartSubWorkflow(index) if node.is_subworkflow else Enqueue(index)
            case Readiness.LATER:
                pass
            case Readiness.NEVER:
                statuses[index] = SKIPPED
                # They may have been checked before this skip; it may decide that they start or are skipped, too.
                waiting.extend(dependents[index])
                yield Skip(index, unsuccessful_dependency(node, statuses))
