"""Advances workflow runs: copies task outcomes to their nodes, starts nodes that are due, finishes runs.

`next_steps` decides what is due from what is stored; this module carries it out, for many runs in one transaction and a
few statements. Every step is derived from stored state, so it is safe to advance a run at any time, by any process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, assert_never
from uuid import UUID

from uuid_utils.compat import uuid7

from horsies.codec.canonical_json import canonical_json
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

ADVANCE_BATCH = 500
"""Outbox entries processed in one transaction."""

# Dicts, because calling an enum class takes several times as long, and every pass converts all nodes of its runs.
_TASK_STATUSES = {status.value: status for status in TaskStatus}
_NODE_STATUSES = {status.value: status for status in WorkflowTaskStatus}
_JOINS = {join.value: join for join in JoinType}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceResult:
    """The result of one pass over the outbox."""

    runs: int = 0
    locked: int = 0
    """Runs skipped because another transaction has locked them; try again soon."""
    to_pause: Sequence[UUID] = ()
    """Runs to pause because of a failure. Left unchanged: a pause needs the lock of the whole tree."""


async def advance_due(database: Database, *, limit: int = ADVANCE_BATCH) -> AdvanceResult:
    """Advance the runs with the oldest outbox entries, in one transaction."""

    async def work(transaction: Transaction) -> AdvanceResult:
        writer = WorkflowWriter(transaction)
        due = await writer.lock_due_runs(limit)
        runs = [run for run in due if run.status is not None]  # the others are locked by another transaction
        to_pause = await advance(writer, runs) if runs else ()
        return AdvanceResult(runs=len(runs), locked=len(due) - len(runs), to_pause=to_pause)

    return await database.run(work)


async def advance(
    writer: WorkflowWriter, runs: Sequence[RunRow], start_errors: Mapping[UUID, TaskError] | None = None
) -> list[UUID]:
    """Carry out all due steps of locked runs; returns those to pause, which are left unchanged.

    `start_errors` maps the ids of nodes whose sub-workflow cannot be started to the reason.
    """
    nodes = group_by_run(await writer.run_nodes([run.id for run in runs]))
    batch = StepBatch()
    to_pause: list[UUID] = []
    for run in runs:
        rows = nodes.get(run.id, [])
        steps = list(next_steps(run_state(run, rows, start_errors or {})))
        if any(isinstance(step, PauseRun) for step in steps):
            to_pause.append(run.id)
        else:
            batch.add(run, rows, steps, start_errors or {})
    await batch.write(writer)
    return to_pause


@dataclass(slots=True)
class StepBatch:
    """Steps of many runs, grouped by the statements that carry them out."""

    updates: NodeUpdates = field(default_factory=NodeUpdates)
    enqueued: list[UUID] = field(default_factory=list["UUID"])
    completions: list[RunCompletion] = field(default_factory=list[RunCompletion])
    outbox_ids: list[UUID] = field(default_factory=list["UUID"])
    """Outbox entries to delete."""

    def add(
        self, run: RunRow, nodes: Sequence[RunNodeRow], steps: Sequence[Step], start_errors: Mapping[UUID, TaskError]
    ) -> None:
        self.outbox_ids.extend(run.outbox_ids)
        started = {step.index for step in steps if isinstance(step, Enqueue | StartSubWorkflow)}
        for step in steps:
            match step:
                case SetRunError():
                    self.completions.append(RunCompletion(workflow_id=run.id, failed_index=step.index))
                case FinishRun():
                    outcome, has_output = step.outcome, run.output_task_index is not None
                    completion = RunCompletion(
                        workflow_id=run.id,
                        status=outcome.status,
                        failed_index=outcome.error_node,
                        error=None if outcome.code is None else error_for_code(outcome.code),
                        leaf_indexes=() if has_output else leaf_nodes([node.dependencies for node in nodes]),
                    )
                    self.completions.append(completion)
                case PauseRun():
                    pass  # not in a batch: `advance` returns such runs, and `control.advance_tree` pauses their tree
                case ReturnToReady() if step.index in started:
                    pass  # the same batch starts it: one update per node
                case Skip():
                    cause = None if step.cause is None else nodes[step.cause]
                    error = skip_error(step.index, cause)
                    self.updates.add(nodes[step.index].id, WorkflowTaskStatus.SKIPPED, error=error)
                case _:
                    self._update_node(nodes[step.index], step, start_errors)

    async def write(self, writer: WorkflowWriter) -> None:
        # In this order: the later statements read the task ids and results that the first one stores in the nodes.
        if self.updates.ids or self.outbox_ids:
            await writer.update_nodes(self.updates, outbox_ids=self.outbox_ids)
        if self.enqueued:
            await writer.enqueue_nodes(self.enqueued)
        if self.completions:
            await writer.finish_runs(self.completions)

    def _update_node(
        self,
        node: RunNodeRow,
        step: FinishNode | ReturnToReady | Enqueue | StartSubWorkflow,
        start_errors: Mapping[UUID, TaskError],
    ) -> None:
        match step:
            case FinishNode():
                self._finish_node(node, step, start_errors)
            case Enqueue():
                self.updates.add(node.id, WorkflowTaskStatus.ENQUEUED, task_id=uuid7())
                self.enqueued.append(node.id)
            case ReturnToReady() | StartSubWorkflow():
                self.updates.add(node.id, WorkflowTaskStatus.READY)
            case _:
                assert_never(step)

    def _finish_node(self, node: RunNodeRow, step: FinishNode, start_errors: Mapping[UUID, TaskError]) -> None:
        error = None
        if node.id in start_errors:
            error = encode_error(start_errors[node.id])
            self.outbox_ids.append(node.id)  # the entry that asks to start a sub-workflow has the id of its node
        elif step.outcome.code is OutcomeCode.SUBWORKFLOW_FAILED:
            error = sub_workflow_error(node.sub_workflow_id)
        elif step.outcome.code is not None:
            error = error_for_code(step.outcome.code)
        self.updates.add(node.id, step.outcome.status, error=error)


def is_transient(error: BaseException) -> bool:
    """Whether the failure may go away by itself, such as a lost connection; not if stored data caused it."""
    return isinstance(error, DatabaseUnreachable) or (isinstance(error, BrokerError) and error.retryable)


# Converting rows to the state that `next_steps` takes


def group_by_run(rows: Iterable[RunNodeRow]) -> dict[UUID, list[RunNodeRow]]:
    """The nodes of each run, ordered by index."""
    # `groupby` needs the rows of a run next to each other: the query sorts them by run and index.
    return {workflow_id: list(nodes) for workflow_id, nodes in groupby(rows, key=attrgetter("workflow_id"))}


def run_state(run: RunRow, nodes: Sequence[RunNodeRow], start_errors: Mapping[UUID, TaskError]) -> RunState:
    indexes = {node.node_id: node.task_index for node in nodes}
    return RunState(
        status=WorkflowStatus(run.status or ""),
        nodes=[_node_state(node, indexes, start_errors) for node in nodes],
        on_error=OnError(run.on_error or ""),
        success_rule=None if run.success_policy is None else _success_rule(run.success_policy),
    )


def _node_state(node: RunNodeRow, indexes: Mapping[str, int], start_errors: Mapping[UUID, TaskError]) -> NodeState:
    return NodeState(
        status=_NODE_STATUSES[node.status],
        dependencies=node.dependencies,
        context_dependencies=[indexes[name] for name in node.workflow_ctx_from or ()],
        join=_JOINS[node.join_type],
        min_success=node.min_success,
        allow_failed_deps=node.allow_failed_deps,
        is_subworkflow=node.is_subworkflow,
        backing=_backing_outcome(node, start_errors),
    )


def _backing_outcome(node: RunNodeRow, start_errors: Mapping[UUID, TaskError]) -> BackingOutcome | None:
    """The outcome of the node's task or sub-workflow; None if it has none yet."""
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
    return BackingNotStarted() if node.id in start_errors else None


def _success_rule(policy: str) -> SuccessRule:
    stored = json.loads(policy)
    cases = tuple(tuple(case) for case in stored["cases"])
    return SuccessRule(cases=cases, optional=tuple(stored.get("optional", ())))


# Errors that the engine stores in nodes and runs, as JSON text

_MESSAGES: dict[BuiltInTaskCode, str] = {
    RetrievalCode.RESULT_NOT_AVAILABLE: "the task has no stored result, or was deleted",
    OperationalErrorCode.WORKER_CRASHED: "the task finished without a readable result",
    OutcomeCode.TASK_CANCELLED: "the task was cancelled",
    OutcomeCode.TASK_EXPIRED: "the task was not started before its good_until",
    OutcomeCode.WORKFLOW_FAILED: "the run has no nodes",
    OutcomeCode.WORKFLOW_CANCELLED: "the run was cancelled",
    OutcomeCode.WORKFLOW_EXPIRED: "the run was paused for too long",
    OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET: "no case of the success policy was met",
}


def encode_error(error: TaskError) -> str:
    return canonical_json(encode_task_error(error))


def error_for_code(code: BuiltInTaskCode) -> str:
    return encode_error(TaskError(error_code=code, message=_MESSAGES[code]))


def sub_workflow_error(workflow_id: UUID | None) -> str:
    """The error of a node whose sub-workflow did not complete; the statement that stores it adds the summary."""
    message = "the sub-workflow did not complete"
    return encode_error(
        SubWorkflowError(
            error_code=OutcomeCode.SUBWORKFLOW_FAILED, message=message, sub_workflow_id=str(workflow_id or "")
        )
    )


def skip_error(index: int, cause: RunNodeRow | None) -> str:
    """The error of a node that was skipped because of the node `cause`, or because the run was cancelled."""
    if cause is None:
        return error_for_code(OutcomeCode.WORKFLOW_CANCELLED)
    data = {"dependency_index": index, "because": cause.task_index}
    message = f"skipped because {cause.node_id} did not complete"
    return encode_error(TaskError(error_code=OutcomeCode.UPSTREAM_SKIPPED, message=message, data=data))
