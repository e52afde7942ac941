"""Runs go on: what has ended is taken over, what may start is started, what is done is closed.

Many runs share a transaction, and in it the steps of all of them a handful of statements. Every step follows from what
is stored, so it does not matter who asks, how often, or what became of those who asked before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, assert_never

from horsies.codec.canonical_json import canonical
from horsies.codec.ids import IDS
from horsies.codec.results import stored_error
from horsies.errors import BrokerError, DatabaseUnreachable
from horsies.model.task import TaskStatus
from horsies.model.task_result import (
    BuiltInTaskCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    SubWorkflowError,
    TaskError,
)
from horsies.model.workflow.plan import JoinType, OnError, SuccessRule, WorkflowStatus, WorkflowTaskStatus
from horsies.model.workflow.progress import (
    Blame,
    Deleted,
    Document,
    End,
    EndedChild,
    EndedTask,
    Enqueue,
    Finish,
    NodeState,
    NoRestart,
    Pause,
    PutBack,
    Refused,
    RunState,
    Skip,
    StartChild,
    last_nodes,
    next_steps,
)
from horsies.store.workflows import Closing, FlowWrites, NodeMoves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from horsies.model.workflow.progress import Behind, Outcome, Step
    from horsies.store.database import Database, Transaction
    from horsies.store.workflows import DueRun, NodeRow


# From rows to the states that the rules know.

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


# The errors that the engine itself writes into nodes and runs.

_MESSAGES: dict[BuiltInTaskCode, str] = {
    RetrievalCode.RESULT_NOT_AVAILABLE: "the task left no result, or somebody deleted it",
    OperationalErrorCode.WORKER_CRASHED: "the task ended without a result that can be read",
    OutcomeCode.TASK_CANCELLED: "the task was cancelled",
    OutcomeCode.TASK_EXPIRED: "the task was not started before its good_until",
    OutcomeCode.WORKFLOW_FAILED: "the run has no nodes",
    OutcomeCode.WORKFLOW_CANCELLED: "the run was cancelled",
    OutcomeCode.WORKFLOW_EXPIRED: "the run was paused for too long",
    OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET: "no case of the success policy is met",
}


def error_text(error: TaskError) -> str:
    """An error as it is stored."""
    return canonical(stored_error(error))


def error_of(code: BuiltInTaskCode) -> str:
    return error_text(TaskError(error_code=code, message=_MESSAGES[code]))


def error_of_child(workflow_id: UUID | None) -> str:
    """Of the node whose child did not complete; the summary is filled in by the statement that stores it."""
    message = "the sub-workflow did not complete"
    return error_text(
        SubWorkflowError(
            error_code=OutcomeCode.SUBWORKFLOW_FAILED, message=message, sub_workflow_id=str(workflow_id or "")
        )
    )


def error_of_skip(index: int, because: NodeRow | None) -> str:
    """Of a node that never ran: what those who read it are told, and which node is behind it."""
    if because is None:
        return error_of(OutcomeCode.WORKFLOW_CANCELLED)
    data = {"dependency_index": index, "because": because.task_index}
    message = f"skipped, for {because.node_id} did not complete"
    return error_text(TaskError(error_code=OutcomeCode.UPSTREAM_SKIPPED, message=message, data=data))


LARGEST_BATCH = 500
"""Rows of the outbox that one transaction answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """What came of one look at the outbox."""

    runs: int = 0
    passed_by: int = 0
    """Runs that another hand held; worth another look soon."""
    to_pause: Sequence[UUID] = ()
    """Runs that a failure is to pause, which needs their whole tree: nothing of them was done yet."""


async def advance_due(database: Database, *, limit: int = LARGEST_BATCH) -> Advanced:
    """Advance the runs that have asked longest, in one transaction."""

    async def work(transaction: Transaction) -> Advanced:
        writes = FlowWrites(transaction)
        due = await writes.lock_due(limit)
        runs = [run for run in due if run.status is not None]
        to_pause = await advance(writes, runs) if runs else ()
        return Advanced(runs=len(runs), passed_by=len(due) - len(runs), to_pause=to_pause)

    return await database.run(work)


async def advance(
    writes: FlowWrites, runs: Sequence[DueRun], refusals: Mapping[UUID, TaskError] | None = None
) -> list[UUID]:
    """Do all that is due in runs that are locked; returns those that are to be paused, untouched."""
    nodes = by_run(await writes.nodes_of([run.id for run in runs]))
    due = Due()
    to_pause: list[UUID] = []
    for run in runs:
        rows = nodes.get(run.id, [])
        steps = list(next_steps(run_state(run, rows, refusals or {})))
        if any(isinstance(step, Pause) for step in steps):
            to_pause.append(run.id)
        else:
            due.add(run, rows, steps, refusals or {})
    await due.write(writes)
    return to_pause


@dataclass(slots=True)
class Due:
    """The steps of many runs, sorted by the statements that carry them out."""

    moves: NodeMoves = field(default_factory=NodeMoves)
    enqueued: list[UUID] = field(default_factory=list["UUID"])
    closings: list[Closing] = field(default_factory=list[Closing])
    asked: list[UUID] = field(default_factory=list["UUID"])

    def add(
        self, run: DueRun, nodes: Sequence[NodeRow], steps: Sequence[Step], refusals: Mapping[UUID, TaskError]
    ) -> None:
        self.asked.extend(run.asked)
        started = {step.index for step in steps if isinstance(step, Enqueue | StartChild)}
        for step in steps:
            match step:
                case Blame():
                    self.closings.append(Closing(workflow_id=run.id, blamed=step.index))
                case Finish():
                    self.closings.append(_closing(run, nodes, step.outcome))
                case Pause():
                    pass  # needs the runs below as well
                case PutBack() if step.index in started:
                    pass  # moves once, not twice
                case Skip():
                    because = None if step.because is None else nodes[step.because]
                    error = error_of_skip(step.index, because)
                    self.moves.add(nodes[step.index].id, WorkflowTaskStatus.SKIPPED, error=error)
                case _:
                    self._move(nodes[step.index], step, refusals)

    async def write(self, writes: FlowWrites) -> None:
        if self.moves.ids or self.asked:
            await writes.move_nodes(self.moves, asked=self.asked)
        if self.enqueued:
            await writes.enqueue(self.enqueued)
        if self.closings:
            await writes.close(self.closings)

    def _move(
        self, node: NodeRow, step: End | PutBack | Enqueue | StartChild, refusals: Mapping[UUID, TaskError]
    ) -> None:
        match step:
            case End():
                self._end(node, step, refusals)
            case Enqueue():
                self.moves.add(node.id, WorkflowTaskStatus.ENQUEUED, task_id=IDS.next())
                self.enqueued.append(node.id)
            case PutBack() | StartChild():
                self.moves.add(node.id, WorkflowTaskStatus.READY)
            case _:
                assert_never(step)

    def _end(self, node: NodeRow, step: End, refusals: Mapping[UUID, TaskError]) -> None:
        error = None
        if node.id in refusals:
            error = error_text(refusals[node.id])
            self.asked.append(node.id)
        elif step.end.code is OutcomeCode.SUBWORKFLOW_FAILED:
            error = error_of_child(node.sub_workflow_id)
        elif step.end.code is not None:
            error = error_of(step.end.code)
        self.moves.add(node.id, step.end.status, error=error)


def _closing(run: DueRun, nodes: Sequence[NodeRow], outcome: Outcome) -> Closing:
    return Closing(
        workflow_id=run.id,
        status=outcome.status,
        blamed=outcome.error_from,
        error=None if outcome.code is None else error_of(outcome.code),
        last_nodes=() if run.output_task_index is not None else last_nodes([node.dependencies for node in nodes]),
    )


# Whose fault it is that a statement failed.


def is_away(error: BaseException) -> bool:
    """Whether the database is to blame, and not what is stored in it."""
    return isinstance(error, DatabaseUnreachable) or (isinstance(error, BrokerError) and error.retryable)
