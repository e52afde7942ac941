"""Controls runs: pause, resume, cancel, expire, retry, and advance one run with its tree.

Each operation is one transaction for a run and all its sub-workflows, its *tree*. Once a pause or cancel has returned,
no further task of the tree starts. With a `Transaction` the operation is a part of that transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

from horsies.codec.results import error_document
from horsies.model.events import EventKind, EventRecord
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from horsies.store.database import Database, Executor
from horsies.store.operators import EventStore
from horsies.store.workflows import LockedTree, WithdrawnTaskResults, WorkflowStore
from horsies.workflows.advance import advance, due_steps, error_for_code, write_steps

A = TypeVar("A")

EXPIRE_BATCH = 50


class ControlRefusal(StrEnum):
    """Why an operation was refused; the values are public error codes."""

    NOT_FOUND = "WORKFLOW_NOT_FOUND"
    NOT_TERMINAL = "WORKFLOW_NOT_TERMINAL"
    NOT_ROOT = "WORKFLOW_NOT_ROOT"


async def pause(executor: Executor, workflow_id: UUID) -> bool | ControlRefusal:
    """Pause a run; False if it is not RUNNING."""

    async def work(tree: LockedTree) -> bool:
        if tree.run.status is not WorkflowStatus.RUNNING:
            return False
        await tree.store.pause(tree.with_status(WorkflowStatus.RUNNING), _WITHDRAWN_BY_PAUSE)
        return True

    return await _in_tree(executor, workflow_id, work)


async def resume(executor: Executor, workflow_id: UUID) -> bool | ControlRefusal:
    """Resume a paused run and its tree; False if it is not PAUSED."""

    async def work(tree: LockedTree) -> bool:
        if tree.run.status is not WorkflowStatus.PAUSED:
            return False
        # First take over outcomes of tasks that ran on during the pause: their failures must not pause the run again.
        await advance(tree.store, [run for run in tree.runs if run.status is WorkflowStatus.PAUSED])
        await _resume_runs(tree.store, tree.with_status(WorkflowStatus.PAUSED))
        return True

    return await _in_tree(executor, workflow_id, work)


async def cancel(executor: Executor, workflow_id: UUID, *, kill: bool = False) -> bool | ControlRefusal:
    """Cancel a run and its tree; False if it has ended. Running tasks may finish, unless `kill` is set."""
    return await _end(executor, workflow_id, _UNFINISHED, WorkflowStatus.CANCELLED, kill=kill)


async def expire_paused(database: Database, *, longer_than_s: float, limit: int = EXPIRE_BATCH) -> list[UUID]:
    """Expire runs paused for longer than this; returns their ids."""
    expired = await WorkflowStore(database).long_paused(longer_than_s=longer_than_s, limit=limit)
    # One transaction per run, which checks the status again: it may have been resumed meanwhile.
    for workflow_id in expired:
        await _end(database, workflow_id, {WorkflowStatus.PAUSED}, WorkflowStatus.EXPIRED)
    return expired


async def retry_failed(executor: Executor, workflow_id: UUID) -> int | ControlRefusal:
    """Run the failed and skipped nodes of a finished run again; returns how many."""
    if await WorkflowStore(executor).is_root(workflow_id) is False:
        return ControlRefusal.NOT_ROOT

    async def work(tree: LockedTree) -> int | ControlRefusal:
        if tree.run.status not in WORKFLOW_TERMINAL_STATES:
            return ControlRefusal.NOT_TERMINAL
        # Tasks that were running when the run ended may have completed since: use their outcomes, do not repeat them.
        await advance(tree.store, tree.runs)
        retryable = await tree.store.retryable_runs(workflow_id)
        if tree.run.status is WorkflowStatus.COMPLETED or not sum(run.retryable_nodes for run in retryable):
            return 0
        run_ids = [run.id for run in retryable]
        reset = await tree.store.reset_nodes(run_ids)
        await _resume_runs(tree.store, run_ids, is_new_generation=True)
        nodes: dict[str, dict[str, str | None]] = defaultdict(dict)
        for node in reset:
            nodes[str(node.workflow_id)][node.node_id] = None if node.task_id is None else str(node.task_id)
        event = EventRecord(kind=EventKind.WORKFLOW_RETRIED, workflow_id=workflow_id, evidence={"nodes": nodes})
        await EventStore(tree.store.executor).record(event)
        return len(reset)

    return await _in_tree(executor, workflow_id, work)


async def advance_tree(
    executor: Executor, workflow_id: UUID, start_errors: Mapping[UUID, TaskError] | None = None
) -> bool:
    """Carry out all due steps of one run, including a pause of its tree; returns whether anything was due.

    `start_errors` has the nodes whose sub-workflow cannot be started, by node id.
    """

    async def work(tree: LockedTree) -> bool:
        (due,) = await due_steps(tree.store, [tree.run], start_errors)
        await write_steps(tree.store, [due])
        if due.pause is not None:
            running = tree.with_status(WorkflowStatus.RUNNING)
            await tree.store.pause(running, _WITHDRAWN_BY_PAUSE, failed_node=(workflow_id, due.pause.index))
        return bool(due.steps)

    return bool(await WorkflowStore(executor).locked(workflow_id, work))


async def _in_tree(
    executor: Executor, workflow_id: UUID, work: Callable[[LockedTree], Awaitable[A]]
) -> A | ControlRefusal:
    result = await WorkflowStore(executor).locked(workflow_id, work)
    return ControlRefusal.NOT_FOUND if result is None else result


async def _resume_runs(store: WorkflowStore, runs: list[UUID], *, is_new_generation: bool = False) -> None:
    await store.resume(runs, is_new_generation=is_new_generation)
    await advance(store, await store.lock_runs(runs))  # locked already; reads them again with the new status


async def _end(
    executor: Executor,
    workflow_id: UUID,
    allowed: Collection[WorkflowStatus],
    status: WorkflowStatus,
    *,
    kill: bool = False,
) -> bool | ControlRefusal:
    """End a run with one of the `allowed` statuses, and all unfinished runs below it; False if it has another one."""

    async def work(tree: LockedTree) -> bool:
        if tree.run.status not in allowed:
            return False
        error = error_for_code(_END_CODES[status])
        await tree.store.end(tree.with_status(*_UNFINISHED), status, error, _WITHDRAWN_BY_CANCEL, kill=kill)
        return True

    return await _in_tree(executor, workflow_id, work)


_UNFINISHED = frozenset(WorkflowStatus) - WORKFLOW_TERMINAL_STATES
_END_CODES = {
    WorkflowStatus.CANCELLED: OutcomeCode.WORKFLOW_CANCELLED,
    WorkflowStatus.EXPIRED: OutcomeCode.WORKFLOW_EXPIRED,
}


def _withdrawn_results(status: str) -> WithdrawnTaskResults:
    """The stored results of tasks that had not started when their workflow got this status."""
    cancelled = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message=f"withdrawn: its workflow was {status}")
    expired = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="not started before its good_until")
    return WithdrawnTaskResults(cancelled=error_document(cancelled), expired=error_document(expired))


_WITHDRAWN_BY_PAUSE = _withdrawn_results("paused")
_WITHDRAWN_BY_CANCEL = _withdrawn_results("cancelled")
