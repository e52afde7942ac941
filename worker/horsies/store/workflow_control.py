"""Runs are paused, resumed, ended early and begun again, each with all runs below it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from horsies.store.connection import StatementFailed
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query, load_queries
from horsies.store.workflows import RunRow  # `load` reads the annotations


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotificationCountRow:
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnTaskResults:
    """The results of tasks that are taken back: as they are stored, by what they say."""

    cancelled: str
    expired: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryableRun:
    """A run of a tree that would go on, and how many of its nodes would begin again."""

    id: UUID
    status: str
    retryable_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetNode:
    """A node that begins again, and the task that it had."""

    workflow_id: UUID
    node_id: str
    task_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatusRow:
    id: UUID
    status: str
    is_root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunId:
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowControlQueries:
    lock_tree: Query[RunRow]
    pause_runs: Query[RunNotificationCountRow]
    resume_runs: Query[None]
    end_runs: Query[RunNotificationCountRow]
    retryable_runs: Query[RetryableRun]
    reset_nodes: Query[ResetNode]
    run_status: Query[RunStatusRow]
    long_paused: Query[RunId]


WORKFLOW_CONTROL = load_queries(WorkflowControlQueries, "horsies.store", "flow_control")


@dataclass(frozen=True, slots=True)
class RunTreeWriter:
    """A run and those below it, inside one transaction that holds all their locks."""

    transaction: Transaction

    async def run_status(self, workflow_id: UUID) -> RunStatusRow | None:
        """How a run stands, before anything is locked; None where there is no such run."""
        return next(iter(await self.transaction.fetch(WORKFLOW_CONTROL.run_status, workflow_id)), None)

    async def lock_tree(self, workflow_id: UUID) -> list[RunRow]:
        """Lock the tree below a run, and the run; none where there is no such run."""
        runs = await self.transaction.fetch(WORKFLOW_CONTROL.lock_tree, workflow_id)
        while len(again := await self.transaction.fetch(WORKFLOW_CONTROL.lock_tree, workflow_id)) > len(runs):
            runs = again
        return again

    async def pause(
        self, runs: Collection[UUID], results: WithdrawnTaskResults, *, failed_node: tuple[UUID, int] | None = None
    ) -> None:
        """Pause these runs; the error of one is that of the node that is to blame, where there is one."""
        blamed, index = failed_node or (None, None)
        await self.transaction.fetch(
            WORKFLOW_CONTROL.pause_runs, list(runs), blamed, index, results.cancelled, results.expired
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
    """Runs that have been paused for so long, the longest first."""
    return [row.id for row in await database.fetch(WORKFLOW_CONTROL.long_paused, longer_than_s, limit)]


# What was left lying about by those who died: found without locks.

_LOCK_NOT_AVAILABLE: Final = "55P03"


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRun:
    """A run in which something is due, and the case of the specification that it is of."""

    workflow_id: UUID
    stuck_case: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedTask:
    """A task without a node to wait for it."""

    id: UUID
    workflow_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowHealingQueries:
    stuck_runs: Query[StuckRun]
    orphaned_tasks: Query[OrphanedTask]
    cancel_orphaned_tasks: Query[OrphanedTask]
    request_advance: Query[None]
    set_lock_timeout: Query[None]
    release_quarantined: Query[None]


WORKFLOW_HEALING = load_queries(WorkflowHealingQueries, "horsies.store", "flow_healing")


async def set_lock_timeout(transaction: Transaction, *, timeout_ms: int) -> None:
    """From now on a lock that another hand keeps longer is an error, of which `is_held` is true."""
    await transaction.execute(WORKFLOW_HEALING.set_lock_timeout, str(timeout_ms))


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a lock was waited for in vain."""
    return isinstance(error, StatementFailed) and error.sqlstate == _LOCK_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class WorkflowHealingStore:
    """Loose ends of one database."""

    database: Database

    async def stuck_runs(self, limit: int) -> list[StuckRun]:
        """Runs to be advanced, at most so many of each case."""
        return await self.database.fetch(WORKFLOW_HEALING.stuck_runs, limit)

    async def orphaned_tasks(self, limit: int) -> list[OrphanedTask]:
        return await self.database.fetch(WORKFLOW_HEALING.orphaned_tasks, limit)

    async def cancel_orphaned_tasks(self, task_ids: Collection[UUID], document: str) -> list[OrphanedTask]:
        return await self.database.fetch(WORKFLOW_HEALING.cancel_orphaned_tasks, list(task_ids), document)

    async def request_advance(self, workflow_id: UUID) -> None:
        """Have a run asked for, where nothing asks for it yet."""
        await self.database.execute(WORKFLOW_HEALING.request_advance, workflow_id)

    async def release_quarantined(self) -> None:
        await self.database.execute(WORKFLOW_HEALING.release_quarantined)
