"""What a run does next, given what has ended so far.

The answer depends on the states alone: asked again after a crash it is the same, asked after everything was done it is
nothing. Whoever carries the steps out holds the run's lock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from horsies.model.workflow.ending import Behind, Ended, NodeEnd, Stopped, Unstarted, end_of
from horsies.model.workflow.outcome import Outcome, first_failed, outcome_of
from horsies.model.workflow.plan import JoinType, OnError, SuccessRule
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
