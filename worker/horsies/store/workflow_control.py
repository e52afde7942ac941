"""Workflow control: pause, resume, end and retry a run with all its sub-workflows, and find stuck runs to heal."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from horsies.store.connection import StatementFailed
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query, load_queries
from horsies.store.workflows import RunRow

_LOCK_NOT_AVAILABLE: Final = "55P03"


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnTaskResults:
    """Stored results (JSON) of tasks that a pause or an early end withdraws."""

    cancelled: str
    expired: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryableRun:
    """A run that a retry would restart, and the number of its nodes to run again."""

    id: UUID
    status: str
    retryable_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetNode:
    """A node that was reset, and its previous task."""

    workflow_id: UUID
    node_id: str
    task_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatusRow:
    id: UUID
    status: str
    is_root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRun:
    """A run in which something is due, and which case of `stuck_runs` found it."""

    workflow_id: UUID
    stuck_case: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedTask:
    """An unstarted workflow task without a node that waits for it."""

    id: UUID
    workflow_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowControlQueries:
    lock_tree: Query[RunRow]
    pause_runs: Query[int]
    resume_runs: Query[None]
    end_runs: Query[int]
    retryable_runs: Query[RetryableRun]
    reset_nodes: Query[ResetNode]
    run_status: Query[RunStatusRow]
    long_paused: Query[UUID]
    stuck_runs: Query[StuckRun]
    orphaned_tasks: Query[OrphanedTask]
    cancel_orphaned_tasks: Query[OrphanedTask]
    request_advance: Query[None]
    set_lock_timeout: Query[None]
    release_quarantined: Query[None]


WORKFLOW_CONTROL = load_queries(WorkflowControlQueries, "horsies.store", "workflow_control")


@dataclass(frozen=True, slots=True)
class RunTreeWriter:
    """Changes a run and its sub-workflows inside one transaction. Lock the tree first."""

    transaction: Transaction

    async def run_status(self, workflow_id: UUID) -> RunStatusRow | None:
        """Status of a run, read without a lock; None if it does not exist."""
        return await self.transaction.fetch_one(WORKFLOW_CONTROL.run_status, workflow_id)

    async def lock_tree(self, workflow_id: UUID) -> list[RunRow]:
        """Lock a run and all runs below it; empty if it does not exist."""
        runs = await self.transaction.fetch(WORKFLOW_CONTROL.lock_tree, workflow_id)
        # Sub-workflows may be added until their parent is locked: repeat until no more are found.
        while len(again := await self.transaction.fetch(WORKFLOW_CONTROL.lock_tree, workflow_id)) > len(runs):
            runs = again
        return again

    async def pause(
        self, runs: Collection[UUID], results: WithdrawnTaskResults, *, failed_node: tuple[UUID, int] | None = None
    ) -> None:
        """Pause these runs; with `failed_node` (run, index) that run takes the node's error."""
        failed_run, index = failed_node or (None, None)
        await self.transaction.fetch(
            WORKFLOW_CONTROL.pause_runs, list(runs), failed_run, index, results.cancelled, results.expired
        )

    async def resume(self, runs: Collection[UUID], *, is_new_generation: bool = False) -> None:
        await self.transaction.execute(WORKFLOW_CONTROL.resume_runs, list(runs), is_new_generation)

    async def end(
        self, runs: Collection[UUID], status: str, error: str, results: WithdrawnTaskResults, *, kill: bool = False
    ) -> None:
        await self.transaction.fetch(
            WORKFLOW_CONTROL.end_runs, list(runs), status, error, results.cancelled, results.expired, kill
        )

    async def retryable_runs(self, workflow_id: UUID) -> list[RetryableRun]:
        return await self.transaction.fetch(WORKFLOW_CONTROL.retryable_runs, workflow_id)

    async def reset_nodes(self, runs: Collection[UUID]) -> list[ResetNode]:
        return await self.transaction.fetch(WORKFLOW_CONTROL.reset_nodes, list(runs))


async def long_paused(database: Database, *, longer_than_s: float, limit: int) -> list[UUID]:
    """Runs that have been paused for longer than `longer_than_s`, longest first."""
    return await database.fetch(WORKFLOW_CONTROL.long_paused, longer_than_s, limit)


async def set_lock_timeout(transaction: Transaction, *, timeout_ms: int) -> None:
    """Limit lock waits in this transaction; a longer wait raises an error for which `is_lock_timeout` is true."""
    await transaction.execute(WORKFLOW_CONTROL.set_lock_timeout, str(timeout_ms))


def is_lock_timeout(error: BaseException) -> bool:
    return isinstance(error, StatementFailed) and error.sqlstate == _LOCK_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class WorkflowHealingStore:
    """Finds and repairs stuck runs, orphaned tasks and quarantined outbox entries."""

    database: Database

    async def stuck_runs(self, limit: int) -> list[StuckRun]:
        """Runs to advance, at most `limit` of each case."""
        return await self.database.fetch(WORKFLOW_CONTROL.stuck_runs, limit)

    async def orphaned_tasks(self, limit: int) -> list[OrphanedTask]:
        return await self.database.fetch(WORKFLOW_CONTROL.orphaned_tasks, limit)

    async def cancel_orphaned_tasks(self, task_ids: Collection[UUID], document: str) -> list[OrphanedTask]:
        return await self.database.fetch(WORKFLOW_CONTROL.cancel_orphaned_tasks, list(task_ids), document)

    async def request_advance(self, workflow_id: UUID) -> None:
        """Insert an outbox entry for a run that has none."""
        await self.database.execute(WORKFLOW_CONTROL.request_advance, workflow_id)

    async def release_quarantined(self) -> None:
        await self.database.execute(WORKFLOW_CONTROL.release_quarantined)
