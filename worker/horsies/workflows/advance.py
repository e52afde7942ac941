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
    steps_of_part,
)
from horsies.store.workflows import NodeUpdates, RunCompletion, RunNodeRow, RunRow, WorkflowStore

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSteps:
    """A locked run, its nodes or the part of them that was read, and the steps that are due."""

    run: RunRow
    nodes: Mapping[int, RunNodeRow]
    """By index, in this order."""
    steps: Sequence[Step]
    start_errors: Mapping[UUID, TaskError]
    """Why the sub-workflows of nodes cannot be started, by node id."""

    @property
    def pause(self) -> PauseRun | None:
        """The pause that ends the steps, if there is one."""
        return self.steps[-1] if self.steps and isinstance(self.steps[-1], PauseRun) else None


async def advance_due(database: Database, *, limit: int = ADVANCE_BATCH) -> AdvanceResult:
    """Advance the runs with the oldest outbox entries, in one transaction."""

    async def work(transaction: Transaction) -> AdvanceResult:
        store = WorkflowStore(transaction)
        due = await store.lock_due_runs(limit)
        runs = [run for run in due if run.status is not None]  # the others are locked by another transaction
        steps = await _steps_after_ends(store, runs) if runs else []
        to_pause = await _carry_out(store, steps)
        return AdvanceResult(runs=len(runs), locked=len(due) - len(runs), to_pause=to_pause)

    return await database.run(work)


async def advance(store: WorkflowStore, runs: Sequence[RunRow]) -> list[UUID]:
    """Carry out all due steps of locked runs; returns those to pause, which are left unchanged."""
    return await _carry_out(store, await due_steps(store, runs))


async def _carry_out(store: WorkflowStore, due: Sequence[RunSteps]) -> list[UUID]:
    await write_steps(store, [steps for steps in due if steps.pause is None])
    return [steps.run.id for steps in due if steps.pause is not None]


async def _steps_after_ends(store: WorkflowStore, runs: Sequence[RunRow]) -> list[RunSteps]:
    """The steps that are due because of the outbox entries of these runs.

    Reads the nodes that ended and their dependents, and the whole run only where the others matter.
    """
    parts = group_by_run(await store.ended_nodes([entry for run in runs for entry in run.outbox_ids]))
    decided: list[RunSteps] = []
    undecided: list[RunRow] = []
    for run in runs:
        part = parts.get(run.id, {})
        steps = steps_of_part(run_state(run, part, {})) if part else None
        if steps is None:
            undecided.append(run)
        else:
            decided.append(RunSteps(run=run, nodes=part, steps=steps, start_errors={}))
    return [*decided, *(await due_steps(store, undecided) if undecided else ())]


async def due_steps(
    store: WorkflowStore, runs: Sequence[RunRow], start_errors: Mapping[UUID, TaskError] | None = None
) -> list[RunSteps]:
    """The steps that are due in each of these runs."""
    errors = start_errors or {}
    nodes = group_by_run(await store.run_nodes([run.id for run in runs]))
    return [
        RunSteps(run=run, nodes=rows, steps=list(next_steps(run_state(run, rows, errors))), start_errors=errors)
        for run in runs
        for rows in [nodes.get(run.id, {})]
    ]


async def write_steps(store: WorkflowStore, due: Iterable[RunSteps]) -> None:
    """Carry out these steps, except pauses: a pause needs the lock of the whole tree."""
    batch = StepBatch()
    for run_steps in due:
        batch.add(run_steps)
    # In this order: the later statements read the task ids and results that the first one stores in the nodes.
    if batch.updates.ids or batch.outbox_ids:
        await store.update_nodes(batch.updates, outbox_ids=batch.outbox_ids)
    if batch.enqueued:
        await store.enqueue_nodes(batch.enqueued)
    if batch.completions:
        await store.finish_runs(batch.completions)


@dataclass(slots=True)
class StepBatch:
    """Steps of many runs, grouped by the statements that carry them out."""

    updates: NodeUpdates = field(default_factory=NodeUpdates)
    enqueued: list[UUID] = field(default_factory=list["UUID"])
    completions: list[RunCompletion] = field(default_factory=list[RunCompletion])
    outbox_ids: list[UUID] = field(default_factory=list["UUID"])
    """Outbox entries to delete."""

    def add(self, due: RunSteps) -> None:
        run, nodes = due.run, due.nodes
        self.outbox_ids.extend(run.outbox_ids)
        started = {step.index for step in due.steps if isinstance(step, Enqueue | StartSubWorkflow)}
        for step in due.steps:
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
                        leaf_indexes=() if has_output else leaf_nodes([node.dependencies for node in nodes.values()]),
                    )
                    self.completions.append(completion)
                case PauseRun():
                    pass  # `control.advance_tree` pauses the tree
                case ReturnToReady() if step.index in started:
                    pass  # the same batch starts it: one update per node
                case Skip():
                    cause = None if step.cause is None else nodes[step.cause]
                    error = skip_error(step.index, cause)
                    self.updates.add(nodes[step.index].id, WorkflowTaskStatus.SKIPPED, error=error)
                case FinishNode():
                    self._finish_node(nodes[step.index], step, due.start_errors)
                case Enqueue():
                    node_id = nodes[step.index].id
                    self.updates.add(node_id, WorkflowTaskStatus.ENQUEUED, task_id=uuid7())
                    self.enqueued.append(node_id)
                case ReturnToReady() | StartSubWorkflow():
                    self.updates.add(nodes[step.index].id, WorkflowTaskStatus.READY)
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


# Converting rows to the state that `next_steps` takes


def group_by_run(rows: Iterable[RunNodeRow]) -> dict[UUID, dict[int, RunNodeRow]]:
    """The nodes of each run by index, in this order."""
    # `groupby` needs the rows of a run next to each other: the query sorts them by run and index.
    return {
        workflow_id: {node.task_index: node for node in nodes}
        for workflow_id, nodes in groupby(rows, key=attrgetter("workflow_id"))
    }


def run_state(run: RunRow, nodes: Mapping[int, RunNodeRow], start_errors: Mapping[UUID, TaskError]) -> RunState:
    return RunState(
        status=WorkflowStatus(run.status or ""),
        nodes={index: _node_state(node, start_errors) for index, node in nodes.items()},
        other_statuses={
            index: _NODE_STATUSES[status]
            for node in nodes.values()
            for index, status in zip(node.dependencies, node.dependency_statuses or (), strict=False)
        },
        on_error=OnError(run.on_error or ""),
        success_rule=None if run.success_policy is None else _success_rule(run.success_policy),
    )


def _node_state(node: RunNodeRow, start_errors: Mapping[UUID, TaskError]) -> NodeState:
    return NodeState(
        status=_NODE_STATUSES[node.status],
        dependencies=node.dependencies,
        context_dependencies=node.context_dependencies or (),
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
