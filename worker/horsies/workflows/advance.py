"""Runs go on: what has ended is taken over, what may start is started, what is done is closed.

Many runs share a transaction, and in it the steps of all of them a handful of statements. Every step follows from what
is stored, so it does not matter who asks, how often, or what became of those who asked before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, assert_never
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.ids import ID_GENERATOR
from horsies.codec.results import encode_task_error
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
    BackingDeleted,
    BackingNotStarted,
    BackingOutcome,
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
    RunOutcome,
    RunState,
    SetRunError,
    Skip,
    StartSubWorkflow,
    Step,
    leaf_nodes,
    next_steps,
)
from horsies.store.workflows import NodeUpdates, RunCompletion, RunNodeRow, RunRow, WorkflowWriter

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction


# From rows to the states that the rules know.

Refusals = dict["UUID", "TaskError"]
"""Nodes that cannot start, by id, and why."""

_TASK_STATUSES = {status.value: status for status in TaskStatus}
_NODE_STATUSES = {status.value: status for status in WorkflowTaskStatus}
_JOINS = {join.value: join for join in JoinType}


def group_by_run(rows: Iterable[RunNodeRow]) -> dict[UUID, list[RunNodeRow]]:
    """The nodes of each run, by index."""
    return {workflow_id: list(nodes) for workflow_id, nodes in groupby(rows, key=attrgetter("workflow_id"))}


def run_state(run: RunRow, nodes: Sequence[RunNodeRow], refusals: Mapping[UUID, TaskError]) -> RunState:
    indexes = {node.node_id: node.task_index for node in nodes}
    return RunState(
        status=WorkflowStatus(run.status or ""),
        nodes=[_node_state(node, indexes, refusals) for node in nodes],
        on_error=OnError(run.on_error or ""),
        success_rule=None if run.success_policy is None else _success_rule(run.success_policy),
    )


def _node_state(node: RunNodeRow, indexes: Mapping[str, int], refusals: Mapping[UUID, TaskError]) -> NodeState:
    return NodeState(
        status=_NODE_STATUSES[node.status],
        dependencies=node.dependencies,
        context_dependencies=[indexes[name] for name in node.workflow_ctx_from or ()],
        join=_JOINS[node.join_type],
        min_success=node.min_success,
        allow_failed_deps=node.allow_failed_deps,
        is_subworkflow=node.is_subworkflow,
        backing=_node_end(node, refusals),
    )


def _node_end(node: RunNodeRow, refusals: Mapping[UUID, TaskError]) -> BackingOutcome | None:
    if node.task_status is not None:
        return FinishedTask(
            status=_TASK_STATUSES[node.task_status],
            result_kind=ResultKind(node.result_kind),
            no_restart=None if node.no_restart is None else NoRestartReason(node.no_restart),
        )
    if node.sub_workflow_status is not None:
        return FinishedSubWorkflow(status=WorkflowStatus(node.sub_workflow_status))
    if node.is_task_gone:
        return BackingDeleted()
    return BackingNotStarted() if node.id in refusals else None


def _success_rule(policy: str) -> SuccessRule:
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


def encode_error(error: TaskError) -> str:
    """An error as it is stored."""
    return canonical_json(encode_task_error(error))


def error_for_code(code: BuiltInTaskCode) -> str:
    return encode_error(TaskError(error_code=code, message=_MESSAGES[code]))


def sub_workflow_error(workflow_id: UUID | None) -> str:
    """Of the node whose child did not complete; the summary is filled in by the statement that stores it."""
    message = "the sub-workflow did not complete"
    return encode_error(
        SubWorkflowError(
            error_code=OutcomeCode.SUBWORKFLOW_FAILED, message=message, sub_workflow_id=str(workflow_id or "")
        )
    )


def skip_error(index: int, because: RunNodeRow | None) -> str:
    """Of a node that never ran: what those who read it are told, and which node is behind it."""
    if because is None:
        return error_for_code(OutcomeCode.WORKFLOW_CANCELLED)
    data = {"dependency_index": index, "because": because.task_index}
    message = f"skipped, for {because.node_id} did not complete"
    return encode_error(TaskError(error_code=OutcomeCode.UPSTREAM_SKIPPED, message=message, data=data))


ADVANCE_BATCH = 500
"""Rows of the outbox that one transaction answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceResult:
    """What came of one look at the outbox."""

    runs: int = 0
    locked: int = 0
    """Runs that another hand held; worth another look soon."""
    to_pause: Sequence[UUID] = ()
    """Runs that a failure is to pause, which needs their whole tree: nothing of them was done yet."""


async def advance_due(database: Database, *, limit: int = ADVANCE_BATCH) -> AdvanceResult:
    """Advance the runs that have asked longest, in one transaction."""

    async def work(transaction: Transaction) -> AdvanceResult:
        writes = WorkflowWriter(transaction)
        due = await writes.lock_due_runs(limit)
        runs = [run for run in due if run.status is not None]
        to_pause = await advance(writes, runs) if runs else ()
        return AdvanceResult(runs=len(runs), locked=len(due) - len(runs), to_pause=to_pause)

    return await database.run(work)


async def advance(
    writes: WorkflowWriter, runs: Sequence[RunRow], refusals: Mapping[UUID, TaskError] | None = None
) -> list[UUID]:
    """Do all that is due in runs that are locked; returns those that are to be paused, untouched."""
    nodes = group_by_run(await writes.run_nodes([run.id for run in runs]))
    due = StepBatch()
    to_pause: list[UUID] = []
    for run in runs:
        rows = nodes.get(run.id, [])
        steps = list(next_steps(run_state(run, rows, refusals or {})))
        if any(isinstance(step, PauseRun) for step in steps):
            to_pause.append(run.id)
        else:
            due.add(run, rows, steps, refusals or {})
    await due.write(writes)
    return to_pause


@dataclass(slots=True)
class StepBatch:
    """The steps of many runs, sorted by the statements that carry them out."""

    moves: NodeUpdates = field(default_factory=NodeUpdates)
    enqueued: list[UUID] = field(default_factory=list["UUID"])
    closings: list[RunCompletion] = field(default_factory=list[RunCompletion])
    outbox_ids: list[UUID] = field(default_factory=list["UUID"])

    def add(
        self, run: RunRow, nodes: Sequence[RunNodeRow], steps: Sequence[Step], refusals: Mapping[UUID, TaskError]
    ) -> None:
        self.outbox_ids.extend(run.outbox_ids)
        started = {step.index for step in steps if isinstance(step, Enqueue | StartSubWorkflow)}
        for step in steps:
            match step:
                case SetRunError():
                    self.closings.append(RunCompletion(workflow_id=run.id, failed_index=step.index))
                case FinishRun():
                    self.closings.append(_closing(run, nodes, step.outcome))
                case PauseRun():
                    pass  # needs the runs below as well
                case ReturnToReady() if step.index in started:
                    pass  # moves once, not twice
                case Skip():
                    because = None if step.cause is None else nodes[step.cause]
                    error = skip_error(step.index, because)
                    self.moves.add(nodes[step.index].id, WorkflowTaskStatus.SKIPPED, error=error)
                case _:
                    self._move(nodes[step.index], step, refusals)

    async def write(self, writes: WorkflowWriter) -> None:
        if self.moves.ids or self.outbox_ids:
            await writes.update_nodes(self.moves, outbox_ids=self.outbox_ids)
        if self.enqueued:
            await writes.enqueue_nodes(self.enqueued)
        if self.closings:
            await writes.finish_runs(self.closings)

    def _move(
        self,
        node: RunNodeRow,
        step: FinishNode | ReturnToReady | Enqueue | StartSubWorkflow,
        refusals: Mapping[UUID, TaskError],
    ) -> None:
        match step:
            case FinishNode():
                self._end(node, step, refusals)
            case Enqueue():
                self.moves.add(node.id, WorkflowTaskStatus.ENQUEUED, task_id=ID_GENERATOR.next_uuid())
                self.enqueued.append(node.id)
            case ReturnToReady() | StartSubWorkflow():
                self.moves.add(node.id, WorkflowTaskStatus.READY)
            case _:
                assert_never(step)

    def _end(self, node: RunNodeRow, step: FinishNode, refusals: Mapping[UUID, TaskError]) -> None:
        error = None
        if node.id in refusals:
            error = encode_error(refusals[node.id])
            self.outbox_ids.append(node.id)
        elif step.outcome.code is OutcomeCode.SUBWORKFLOW_FAILED:
            error = sub_workflow_error(node.sub_workflow_id)
        elif step.outcome.code is not None:
            error = error_for_code(step.outcome.code)
        self.moves.add(node.id, step.outcome.status, error=error)


def _closing(run: RunRow, nodes: Sequence[RunNodeRow], outcome: RunOutcome) -> RunCompletion:
    return RunCompletion(
        workflow_id=run.id,
        status=outcome.status,
        failed_index=outcome.error_node,
        error=None if outcome.code is None else error_for_code(outcome.code),
        leaf_indexes=() if run.output_task_index is not None else leaf_nodes([node.dependencies for node in nodes]),
    )


# Whose fault it is that a statement failed.


def is_transient(error: BaseException) -> bool:
    """Whether the database is to blame, and not what is stored in it."""
    return isinstance(error, DatabaseUnreachable) or (isinstance(error, BrokerError) and error.retryable)
