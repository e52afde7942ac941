"""Controls runs: pause, resume, cancel, expire, retry, and advance one run with its tree.

Each operation is one transaction for a run and all its sub-workflows, its *tree*. Once a pause or cancel has returned,
no further task of the tree starts. The `*_within` functions run inside a transaction of the caller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.model.events import EventRecord
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from horsies.model.workflow.progress import PauseRun, next_steps
from horsies.store.database import Database, Transaction
from horsies.store.operators import EventStore
from horsies.store.workflow_control import RunTreeWriter, WithdrawnTaskResults, long_paused
from horsies.store.workflows import RunRow, WorkflowWriter
from horsies.workflows.advance import StepBatch, advance, error_for_code, group_by_run, run_state

EXPIRE_BATCH = 50


class ControlRefusal(StrEnum):
    """Why an operation was refused; the values are public error codes."""

    NOT_FOUND = "WORKFLOW_NOT_FOUND"
    NOT_TERMINAL = "WORKFLOW_NOT_TERMINAL"
    NOT_ROOT = "WORKFLOW_NOT_ROOT"


async def pause(database: Database, workflow_id: UUID) -> bool | ControlRefusal:
    """Pause a run; False if it is not RUNNING."""
    return await database.run(lambda transaction: pause_within(transaction, workflow_id))


async def pause_within(transaction: Transaction, workflow_id: UUID) -> bool | ControlRefusal:
    tree = RunTreeWriter(transaction)
    runs = await tree.lock_tree(workflow_id)
    if not runs:
        return ControlRefusal.NOT_FOUND
    if _status_of(runs, workflow_id) is not WorkflowStatus.RUNNING:
        return False
    await tree.pause(_with_status(runs, WorkflowStatus.RUNNING), _WITHDRAWN_BY_PAUSE)
    return True


async def advance_tree(
    database: Database, workflow_id: UUID, start_errors: Mapping[UUID, TaskError] | None = None
) -> bool:
    """Carry out all due steps of one run, including a pause of its tree; returns whether anything was due.

    `start_errors` has the nodes whose sub-workflow cannot be started, by node id.
    """
    return await database.run(lambda transaction: advance_tree_within(transaction, workflow_id, start_errors))


async def advance_tree_within(
    transaction: Transaction, workflow_id: UUID, start_errors: Mapping[UUID, TaskError] | None = None
) -> bool:
    tree = RunTreeWriter(transaction)
    runs = await tree.lock_tree(workflow_id)
    run = next((run for run in runs if run.id == workflow_id), None)
    if run is None:
        return False
    writer = WorkflowWriter(transaction)
    nodes = group_by_run(await writer.run_nodes([run.id])).get(run.id, [])
    steps = list(next_steps(run_state(run, nodes, start_errors or {})))
    batch = StepBatch()
    batch.add(run, nodes, steps, start_errors or {})
    await batch.write(writer)
    if steps and isinstance(last := steps[-1], PauseRun):  # a pause ends the steps
        running = _with_status(runs, WorkflowStatus.RUNNING)
        await tree.pause(running, _WITHDRAWN_BY_PAUSE, failed_node=(run.id, last.index))
    return bool(steps)


async def resume(database: Database, workflow_id: UUID) -> bool | ControlRefusal:
    """Resume a paused run and its tree; False if it is not PAUSED."""
    return await database.run(lambda transaction: resume_within(transaction, workflow_id))


async def resume_within(transaction: Transaction, workflow_id: UUID) -> bool | ControlRefusal:
    tree, writer = RunTreeWriter(transaction), WorkflowWriter(transaction)
    runs = await tree.lock_tree(workflow_id)
    if not runs:
        return ControlRefusal.NOT_FOUND
    if _status_of(runs, workflow_id) is not WorkflowStatus.PAUSED:
        return False
    paused = _with_status(runs, WorkflowStatus.PAUSED)
    # Take over the outcomes of tasks that ran on during the pause first: their failures must not pause the run again.
    await advance(writer, [run for run in runs if run.id in paused])
    await _resume_runs(tree, writer, paused)
    return True


async def cancel(database: Database, workflow_id: UUID, *, kill: bool = False) -> bool | ControlRefusal:
    """Cancel a run and its tree; False if it has ended. Running tasks may finish, unless `kill` is set."""
    return await database.run(lambda transaction: cancel_within(transaction, workflow_id, kill=kill))


async def cancel_within(transaction: Transaction, workflow_id: UUID, *, kill: bool = False) -> bool | ControlRefusal:
    return await _end_tree(transaction, workflow_id, WorkflowStatus.CANCELLED, kill=kill)


async def expire_paused(database: Database, *, longer_than_s: float, limit: int = EXPIRE_BATCH) -> list[UUID]:
    """Expire runs paused for longer than this; returns their ids."""
    expired = await long_paused(database, longer_than_s=longer_than_s, limit=limit)
    # One transaction per run, which checks the status again: it may have been resumed meanwhile.
    for workflow_id in expired:

        async def work(transaction: Transaction, workflow_id: UUID = workflow_id) -> None:
            await _end_tree(transaction, workflow_id, WorkflowStatus.EXPIRED, only_if=WorkflowStatus.PAUSED)

        await database.run(work)
    return expired


async def retry_failed(database: Database, workflow_id: UUID) -> int | ControlRefusal:
    """Run the failed and skipped nodes of a finished run again; returns how many."""
    return await database.run(lambda transaction: retry_within(transaction, workflow_id))


async def retry_within(transaction: Transaction, workflow_id: UUID) -> int | ControlRefusal:
    tree, writer = RunTreeWriter(transaction), WorkflowWriter(transaction)
    run = await tree.run_status(workflow_id)
    if run is not None and not run.is_root:
        return ControlRefusal.NOT_ROOT
    runs = await tree.lock_tree(workflow_id)
    if not runs:
        return ControlRefusal.NOT_FOUND
    status = _status_of(runs, workflow_id)
    if status not in WORKFLOW_TERMINAL_STATES:
        return ControlRefusal.NOT_TERMINAL
    # Tasks that were running when the run ended may have completed since: use their outcomes, do not run them again.
    await advance(writer, runs)
    retryable = await tree.retryable_runs(workflow_id)
    if status is WorkflowStatus.COMPLETED or not sum(run.retryable_nodes for run in retryable):
        return 0
    run_ids = [run.id for run in retryable]
    reset = await tree.reset_nodes(run_ids)
    await _resume_runs(tree, writer, run_ids, is_new_generation=True)
    nodes: dict[str, dict[str, str | None]] = defaultdict(dict)
    for node in reset:
        nodes[str(node.workflow_id)][node.node_id] = None if node.task_id is None else str(node.task_id)
    event = EventRecord(kind="workflow_retried", workflow_id=workflow_id, evidence={"nodes": nodes})
    await EventStore(transaction).record(event)
    return len(reset)


async def _resume_runs(
    tree: RunTreeWriter, writer: WorkflowWriter, runs: list[UUID], *, is_new_generation: bool = False
) -> None:
    await tree.resume(runs, is_new_generation=is_new_generation)
    await advance(writer, await writer.lock_runs(runs))  # locked already; reads them again with the new status


async def _end_tree(
    transaction: Transaction,
    workflow_id: UUID,
    status: WorkflowStatus,
    *,
    kill: bool = False,
    only_if: WorkflowStatus | None = None,
) -> bool | ControlRefusal:
    tree = RunTreeWriter(transaction)
    runs = await tree.lock_tree(workflow_id)
    if not runs:
        return ControlRefusal.NOT_FOUND
    current = _status_of(runs, workflow_id)
    if current in WORKFLOW_TERMINAL_STATES or (only_if is not None and current is not only_if):
        return False
    ending = [run.id for run in runs if WorkflowStatus(run.status or "") not in WORKFLOW_TERMINAL_STATES]
    await tree.end(ending, status, error_for_code(_END_CODES[status]), _WITHDRAWN_BY_CANCEL, kill=kill)
    return True


_END_CODES = {
    WorkflowStatus.CANCELLED: OutcomeCode.WORKFLOW_CANCELLED,
    WorkflowStatus.EXPIRED: OutcomeCode.WORKFLOW_EXPIRED,
}


def _status_of(runs: list[RunRow], workflow_id: UUID) -> WorkflowStatus:
    return next(WorkflowStatus(run.status or "") for run in runs if run.id == workflow_id)


def _with_status(runs: list[RunRow], status: WorkflowStatus) -> list[UUID]:
    return [run.id for run in runs if run.status == status]


def _withdrawn_results(status: str) -> WithdrawnTaskResults:
    """The stored results of tasks that had not started when their workflow got this status."""
    cancelled = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message=f"withdrawn: its workflow was {status}")
    expired = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="not started before its good_until")
    return WithdrawnTaskResults(
        cancelled=canonical_json({"err": encode_task_error(cancelled)}),
        expired=canonical_json({"err": encode_task_error(expired)}),
    )


_WITHDRAWN_BY_PAUSE = _withdrawn_results("paused")
_WITHDRAWN_BY_CANCEL = _withdrawn_results("cancelled")
