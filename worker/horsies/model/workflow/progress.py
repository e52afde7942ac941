"""What a run does next, given what has ended so far.

The answer depends on the states alone: asked again after a crash it is the same, asked after everything was done it is
nothing. Whoever carries the steps out holds the run's lock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from horsies.model.task import TaskStatus
from horsies.model.task_result import BuiltInTaskCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.workflow.plan import JoinType, OnError, SuccessRule, WorkflowStatus, WorkflowTaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Final


# How a node ends, given what became of the task or the run behind it.


class Document(StrEnum):
    """What is stored as a task's result."""

    OK = "ok"
    ERR = "err"
    NONE = "none"
    ODD = "odd"
    """Something that is no result."""


class NoRestart(StrEnum):
    """Why a task that was running may end but not start again."""

    PAUSED = "paused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """A backing task that is terminal; `mark` says what its run was when it was last told."""

    status: TaskStatus
    document: Document
    mark: NoRestart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedChild:
    """The run of a sub-workflow that is terminal."""

    status: WorkflowStatus


@dataclass(frozen=True, slots=True)
class Deleted:
    """There was something behind the node, and somebody took it away by hand."""


@dataclass(frozen=True, slots=True)
class Refused:
    """There is nothing behind the node, and never will be: it could not be started."""


Behind: TypeAlias = EndedTask | EndedChild | Deleted | Refused
"""What stands behind a node, once that will not move any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The node is terminal. Without a `code` it takes over what is stored; with one, an error is made of it."""

    status: WorkflowTaskStatus
    code: BuiltInTaskCode | None = None


@dataclass(frozen=True, slots=True)
class Unstarted:
    """The task was taken back because of a pause: the node waits for another one."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The task was taken back because of a cancel: the node never ran to its end."""


NodeEnd: TypeAlias = Ended | Unstarted | Stopped

_CODES: Final = {
    TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
    TaskStatus.FAILED: OperationalErrorCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}
"""What is said of a task that ended without saying anything itself."""


def end_of(behind: Behind) -> NodeEnd:
    """What the node becomes."""
    match behind:
        case EndedTask():
            return _end_of_task(behind)
        case EndedChild():
            return _end_of_child(behind)
        case Deleted():
            return Ended(status=WorkflowTaskStatus.FAILED, code=RetrievalCode.RESULT_NOT_AVAILABLE)
        case Refused():
            return Ended(status=WorkflowTaskStatus.FAILED, code=OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED)


def _end_of_task(task: EndedTask) -> NodeEnd:
    if task.status is TaskStatus.CANCELLED and task.mark is not None:
        return Unstarted() if task.mark is NoRestart.PAUSED else Stopped()
    if task.document is Document.ODD:
        return Ended(status=WorkflowTaskStatus.FAILED, code=OperationalErrorCode.WORKER_CRASHED)
    if task.status is TaskStatus.COMPLETED and task.document is Document.OK:
        return Ended(status=WorkflowTaskStatus.COMPLETED)
    if task.document is Document.ERR:
        return Ended(status=WorkflowTaskStatus.FAILED)
    return Ended(status=WorkflowTaskStatus.FAILED, code=_CODES[task.status])


def _end_of_child(child: EndedChild) -> NodeEnd:
    if child.status is WorkflowStatus.COMPLETED:
        return Ended(status=WorkflowTaskStatus.COMPLETED)
    return Ended(status=WorkflowTaskStatus.FAILED, code=OutcomeCode.SUBWORKFLOW_FAILED)


# How a run ends once all of its nodes have.


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run. A failure has the error of the node `error_from`, or a `code` where no node is to blame."""

    status: WorkflowStatus
    error_from: int | None = None
    code: OutcomeCode | None = None


_COMPLETED = Outcome(status=WorkflowStatus.COMPLETED)


def outcome_of(statuses: Sequence[WorkflowTaskStatus], rule: SuccessRule | None) -> Outcome:
    """The outcome for nodes that are all terminal, given by index."""
    if not statuses:
        return Outcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_FAILED)
    if rule is not None:
        return _by_rule(statuses, rule)
    failed = first_failed(statuses, range(len(statuses)))
    return _COMPLETED if failed is None else Outcome(status=WorkflowStatus.FAILED, error_from=failed)


def _by_rule(statuses: Sequence[WorkflowTaskStatus], rule: SuccessRule) -> Outcome:
    if any(all(statuses[index] is WorkflowTaskStatus.COMPLETED for index in case) for case in rule.cases):
        return _COMPLETED
    failed = first_failed(statuses, (index for case in rule.cases for index in case))
    if failed is not None:
        return Outcome(status=WorkflowStatus.FAILED, error_from=failed)
    return Outcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET)


def first_failed(statuses: Sequence[WorkflowTaskStatus], indexes: Iterable[int]) -> int | None:
    """The first of these nodes that is FAILED."""
    return next((index for index in indexes if statuses[index] is WorkflowTaskStatus.FAILED), None)


def last_nodes(dependencies: Sequence[Sequence[int]]) -> list[int]:
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
    context: Sequence[int] = ()
    """Those dependencies that it wants to read, and therefore waits for whatever its join says."""
    join: JoinType = JoinType.ALL
    min_success: int | None = None
    allow_failed_deps: bool = False
    is_subworkflow: bool = False
    ended: Behind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as stored; `nodes` stand at their indexes."""

    status: WorkflowStatus
    nodes: Sequence[NodeState]
    on_error: OnError = OnError.FAIL
    success: SuccessRule | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The node takes over how its task or child ended."""

    index: int
    end: Ended


@dataclass(frozen=True, slots=True)
class PutBack:
    """The node is READY again, without a task."""

    index: int


@dataclass(frozen=True, slots=True)
class Skip:
    """The node will never run: because of this dependency, or of its run's end where there is none."""

    index: int
    because: int | None


@dataclass(frozen=True, slots=True)
class Enqueue:
    index: int


@dataclass(frozen=True, slots=True)
class StartChild:
    index: int


@dataclass(frozen=True, slots=True)
class Blame:
    """The run has the error of this node, the first that failed, and goes on."""

    index: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The run waits for a person, because of this node."""

    index: int


@dataclass(frozen=True, slots=True)
class Finish:
    outcome: Outcome


Step: TypeAlias = End | PutBack | Skip | Enqueue | StartChild | Blame | Pause | Finish


@dataclass(frozen=True, slots=True)
class Skipped:
    """The node can no longer start, because of this dependency."""

    because: int


def next_steps(run: RunState) -> Iterator[Step]:
    """Yield each move now due, in the order in which they are to be made."""
    statuses = [node.status for node in run.nodes]
    has_failed = False
    for index, node in enumerate(run.nodes):
        if node.ended is not None and not node.status.is_terminal:
            step = _taken_over(index, end_of(node.ended), run.status)
            statuses[index] = _status_after(step)
            has_failed = has_failed or statuses[index] is FAILED
            yield step
    if run.status is not WorkflowStatus.RUNNING:
        return
    blamed = first_failed(statuses, range(len(statuses))) if has_failed else None
    if blamed is not None and run.on_error is OnError.PAUSE:
        yield Pause(blamed)
        return
    yield from _onward(run, statuses)
    if all(status.is_terminal for status in statuses):
        yield Finish(outcome_of(statuses, run.success))
    elif blamed is not None:
        yield Blame(blamed)


def readiness(node: NodeState, statuses: Sequence[WorkflowTaskStatus]) -> bool | Skipped:
    """Whether a PENDING node may start; `Skipped` where it never will."""
    ends = [statuses[index] for index in node.dependencies]
    completed = ends.count(COMPLETED)
    is_open = len(ends) - completed - ends.count(FAILED) - ends.count(SKIPPED)
    needed = _needed(node)
    if completed + is_open < needed and (node.join is JoinType.QUORUM or not is_open):
        return Skipped(_first_lost(node, statuses))
    if node.join is JoinType.ALL and is_open:
        return False
    return completed >= needed and all(statuses[index].is_terminal for index in node.context)


def _needed(node: NodeState) -> int:
    """How many dependencies must be COMPLETED."""
    match node.join:
        case JoinType.ALL:
            return 0 if node.allow_failed_deps else len(node.dependencies)
        case JoinType.ANY:
            return min(1, len(node.dependencies))
        case JoinType.QUORUM:
            return node.min_success or 0


def _first_lost(node: NodeState, statuses: Sequence[WorkflowTaskStatus]) -> int:
    return next(index for index in node.dependencies if statuses[index] in {FAILED, SKIPPED})


def _taken_over(index: int, end: NodeEnd, run: WorkflowStatus) -> End | PutBack | Skip:
    match end:
        case Ended():
            return End(index, end)
        case Unstarted() | Stopped() if not run.is_terminal:
            # A cancel may have been taken back, by a retry, after it had stopped the task.
            return PutBack(index)
        case Unstarted() | Stopped():
            return Skip(index, None)


def _status_after(step: End | PutBack | Skip) -> WorkflowTaskStatus:
    match step:
        case End():
            return step.end.status
        case PutBack():
            return READY
        case Skip():
            return SKIPPED


def _onward(run: RunState, statuses: list[WorkflowTaskStatus]) -> Iterator[Step]:
    """Start what may start and skip what never will, until neither is left; `statuses` follows."""
    dependents = _dependents(run.nodes)
    waiting = deque(index for index, status in enumerate(statuses) if status in {PENDING, READY})
    while waiting:
        index = waiting.popleft()
        node = run.nodes[index]
        ready = statuses[index] is READY or (statuses[index] is PENDING and readiness(node, statuses))
        if isinstance(ready, Skipped):
            statuses[index] = SKIPPED
            waiting.extend(dependents[index])
            yield Skip(index, ready.because)
        elif ready:
            # Seen twice it must not start twice; what it is called between its start and its end is no matter here.
            statuses[index] = WorkflowTaskStatus.ENQUEUED
            yield StartChild(index) if node.is_subworkflow else Enqueue(index)


def _dependents(nodes: Sequence[NodeState]) -> list[list[int]]:
    """For each node those that wait for it."""
    found: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for dependency in node.dependencies:
            found[dependency].append(index)
    return found
