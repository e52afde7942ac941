"""What people, and failures, do to runs: pause, resume, cancel, expire, and begin again what failed.

Each is one commit for a run and all runs below it. Nothing of them starts once a pause or a cancel has returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from horsies.model.workflow.progress import PauseRun, next_steps
from horsies.store.database import Database, Transaction
from horsies.store.operators import StoredEvent, record_event
from horsies.store.workflow_control import ResetNode, RunTreeWriter, WithdrawnTaskResults, long_paused
from horsies.store.workflows import RunRow, WorkflowWriter
from horsies.workflows.advance import StepBatch, advance, error_for_code, group_by_run, run_state

EXPIRE_BATCH = 50


class ControlRefusal(StrEnum):
    """Why nothing was done."""

    NOT_FOUND = "WORKFLOW_NOT_FOUND"
    NOT_TERMINAL = "WORKFLOW_NOT_TERMINAL"
    NOT_ROOT = "WORKFLOW_NOT_ROOT"


async def pause(database: Database, workflow_id: UUID) -> bool | ControlRefusal:
    """Pause a run; False where it was not RUNNING."""
    return await database.run(lambda transaction: pause_within(transaction, workflow_id))


async def pause_within(transaction: Transaction, workflow_id: UUID) -> bool | ControlRefusal:
    """The same as a part of a transaction, as each of its kind."""
    tree = RunTreeWriter(transaction)
    runs = await tree.lock_tree(workflow_id)
    if not runs:
        return ControlRefusal.NOT_FOUND
    if _status_of(runs, workflow_id) is not WorkflowStatus.RUNNING:
        return False
    await tree.pause(_with_status(runs, WorkflowStatus.RUNNING), _WITHDRAWN_BY_PAUSE)
    return True


async def advance_tree(database: Database, workflow_id: UUID, refusals: Mapping[UUID, TaskError] | None = None) -> bool:
    """Do all that is due in one run, also where that pauses it and the runs below; whether anything was due."""
    return await database.run(lambda transaction: advance_tree_within(transaction, workflow_id, refusals))


async def advance_tree_within(
    transaction: Transaction, workflow_id: UUID, refusals: Mapping[UUID, TaskError] | None = None
) -> bool:
    tree = RunTreeWriter(transaction)
    runs = await tree.lock_tree(workflow_id)
    run = next((each for each in runs if each.id == workflow_id), None)
    return False if run is None else await _advance_with_tree(tree, run, runs, refusals or {})


async def _advance_with_tree(
    tree: RunTreeWriter, run: RunRow, runs: list[RunRow], refusals: Mapping[UUID, TaskError]
) -> bool:
    writes = WorkflowWriter(tree.transaction)
    nodes = group_by_run(await writes.run_nodes([run.id])).get(run.id, [])
    steps = list(next_steps(run_state(run, nodes, refusals)))
    due = StepBatch()
    due.add(run, nodes, steps, refusals)
    await due.write(writes)
    if steps and isinstance(blame := steps[-1], PauseRun):
        running = _with_status(runs, WorkflowStatus.RUNNING)
        await tree.pause(running, _WITHDRAWN_BY_PAUSE, failed_node=(run.id, blame.index))
    return bool(steps)


async def resume(database: Database, workflow_id: UUID) -> bool | ControlRefusal:
    """Let a paused run go on, with the runs below it; False where it was not PAUSED."""
    return await database.run(lambda transaction: resume_within(transaction, workflow_id))


async def resume_within(transaction: Transaction, workflow_id: UUID) -> bool | ControlRefusal:
    tree, writes = RunTreeWriter(transaction), WorkflowWriter(transaction)
    runs = await tree.lock_tree(workflow_id)
    if not runs:
        return ControlRefusal.NOT_FOUND
    if _status_of(runs, workflow_id) is not WorkflowStatus.PAUSED:
        return False
    paused = _with_status(runs, WorkflowStatus.PAUSED)
    # What ended meanwhile is taken over first: a failure of that time has been waited for, and pauses nothing.
    await advance(writes, [run for run in runs if run.id in paused])
    await _resume_runs(tree, writes, paused)
    return True


async def cancel(database: Database, workflow_id: UUID, *, kill: bool = False) -> bool | ControlRefusal:
    """End a run and all below it; False where it has ended. What runs may end, unless it is to be killed."""
    return await database.run(lambda transaction: cancel_within(transaction, workflow_id, kill=kill))


async def cancel_within(transaction: Transaction, workflow_id: UUID, *, kill: bool = False) -> bool | ControlRefusal:
    return await _end(transaction, workflow_id, WorkflowStatus.CANCELLED, kill=kill)


async def expire_paused(database: Database, *, longer_than_s: float, limit: int = EXPIRE_BATCH) -> list[UUID]:
    """End runs that have been paused for so long; returns their ids."""
    expired = await long_paused(database, longer_than_s=longer_than_s, limit=limit)
    for workflow_id in expired:

        async def work(transaction: Transaction, workflow_id: UUID = workflow_id) -> None:
            await _end(transaction, workflow_id, WorkflowStatus.EXPIRED, only_if=WorkflowStatus.PAUSED)

        await database.run(work)
    return expired


async def retry_failed(database: Database, workflow_id: UUID) -> int | ControlRefusal:
    """Let a run that has ended begin again where it failed; returns how many nodes do."""
    return await database.run(lambda transaction: retry_within(transaction, workflow_id))


async def retry_within(transaction: Transaction, workflow_id: UUID) -> int | ControlRefusal:
    tree, writes = RunTreeWriter(transaction), WorkflowWriter(transaction)
    run = await tree.run_status(workflow_id)
    if run is not None and not run.is_root:
        return ControlRefusal.NOT_ROOT
    runs = await tree.lock_tree(workflow_id)
    if not runs:
        return ControlRefusal.NOT_FOUND
    status = _status_of(runs, workflow_id)
    if status not in WORKFLOW_TERMINAL_STATES:
        return ControlRefusal.NOT_TERMINAL
    # What was still running when the run ended may have ended since, and is not run again for nothing.
    await advance(writes, runs)
    retriable = await tree.retryable_runs(workflow_id)
    if status is WorkflowStatus.COMPLETED or not sum(run.retryable_nodes for run in retriable):
        return 0
    again = [run.id for run in retriable]
    reset = await tree.reset_nodes(again)
    await _resume_runs(tree, writes, again, is_new_generation=True)
    await record_event(transaction, _retried(workflow_id, reset))
    return len(reset)


async def _resume_runs(
    tree: RunTreeWriter, writes: WorkflowWriter, runs: list[UUID], *, is_new_generation: bool = False
) -> None:
    await tree.resume(runs, is_new_generation=is_new_generation)
    await advance(writes, await writes.lock_runs(runs))


async def _end(
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
    now = _status_of(runs, workflow_id)
    if now in WORKFLOW_TERMINAL_STATES or (only_if is not None and now is not only_if):
        return False
    ending = [run.id for run in runs if WorkflowStatus(run.status or "") not in WORKFLOW_TERMINAL_STATES]
    await tree.end(ending, status, error_for_code(_CODES[status]), _WITHDRAWN_BY_CANCEL, kill=kill)
    return True


_CODES = {
    WorkflowStatus.CANCELLED: OutcomeCode.WORKFLOW_CANCELLED,
    WorkflowStatus.EXPIRED: OutcomeCode.WORKFLOW_EXPIRED,
}


def _status_of(runs: list[RunRow], workflow_id: UUID) -> WorkflowStatus:
    return next(WorkflowStatus(run.status or "") for run in runs if run.id == workflow_id)


def _with_status(runs: list[RunRow], status: WorkflowStatus) -> list[UUID]:
    return [run.id for run in runs if run.status == status]


def _retried(workflow_id: UUID, reset: list[ResetNode]) -> StoredEvent:
    nodes: dict[str, dict[str, str | None]] = defaultdict(dict)
    for node in reset:
        nodes[str(node.workflow_id)][node.node_id] = None if node.task_id is None else str(node.task_id)
    return StoredEvent(kind="workflow_retried", workflow_id=workflow_id, evidence={"nodes": nodes})


def _withdrawn_results(by: str) -> WithdrawnTaskResults:
    cancelled = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message=f"taken back: its workflow was {by}")
    expired = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="not started before its good_until")
    return WithdrawnTaskResults(
        cancelled=canonical_json({"err": encode_task_error(cancelled)}),
        expired=canonical_json({"err": encode_task_error(expired)}),
    )


_WITHDRAWN_BY_PAUSE = _withdrawn_results("paused")
_WITHDRAWN_BY_CANCEL = _withdrawn_results("cancelled")
