"""Old rows are deleted, a bounded number in each transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.model.retention import Category
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.store.database import Database, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """How many rows of a table were deleted or are due, and when the oldest of them came to its end."""

    table_name: str
    rows: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """What a table takes up, indexes included."""

    table_name: str
    bytes: int
    rows_estimate: int

    def share_of(self, rows: int) -> int:
        """What so many of its rows take up; the whole table at most, however old the estimate is."""
        return self.bytes * rows // max(self.rows_estimate, rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRun:
    id: UUID
    root_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionQueries:
    lock: Query[Locked]
    sizes: Query[TableSize]
    heartbeats: Query[Taken]
    due_heartbeats: Query[Taken]
    worker_states: Query[Taken]
    due_worker_states: Query[Taken]
    workers: Query[Taken]
    due_workers: Query[Taken]
    tasks: Query[Taken]
    due_tasks: Query[Taken]
    lock_trees: Query[LockedRun]
    trees: Query[Taken]
    due_trees: Query[Taken]
    events: Query[Taken]
    due_events: Query[Taken]
    audit: Query[Taken]
    due_audit: Query[Taken]


CLEANING: Final = "retention"
"""The turn of those who clean everything."""
A_TICK: Final = "retention of heartbeats"
"""The turn of those who only make room for the next beats."""

RETENTION = load(RetentionQueries, "horsies.store", "retention")

_TAKE = {
    Category.HEARTBEATS: RETENTION.heartbeats,
    Category.WORKER_STATES: RETENTION.worker_states,
    Category.WORKERS: RETENTION.workers,
    Category.TASKS: RETENTION.tasks,
    Category.EVENTS: RETENTION.events,
    Category.AUDIT: RETENTION.audit,
}
_DUE = {
    Category.HEARTBEATS: RETENTION.due_heartbeats,
    Category.WORKER_STATES: RETENTION.due_worker_states,
    Category.WORKERS: RETENTION.due_workers,
    Category.WORKFLOWS: RETENTION.due_trees,
    Category.TASKS: RETENTION.due_tasks,
    Category.EVENTS: RETENTION.due_events,
    Category.AUDIT: RETENTION.due_audit,
}


@dataclass(frozen=True, slots=True)
class RetentionStore:
    """Old rows of one database. Answers are by table: attempts go with their tasks, whole trees with their roots."""

    database: Database

    async def take(
        self,
        category: Category,
        window: timedelta,
        *,
        limit: int,
        turn: str = CLEANING,
        record: Callable[[Transaction, int], Awaitable[None]] | None = None,
    ) -> dict[str, Taken] | None:
        """Delete a batch of what is older than `window`, the oldest first; None while another process has the turn.

        `record` writes down how many rows of the category went, in the same transaction and only where some did.
        """

        async def batch(transaction: Transaction) -> dict[str, Taken] | None:
            (lock,) = await transaction.fetch(RETENTION.lock, turn)
            if not lock.is_ours:
                return None
            taken = _by_table(await _take(transaction, category, window, limit))
            if record is not None and (rows := taken[category.table].rows):
                await record(transaction, rows)
            return taken

        return await self.database.run(batch)

    async def due(self, category: Category, window: timedelta) -> dict[str, Taken]:
        """Count what is older than `window`; nothing is locked."""
        return _by_table(await self.database.fetch(_DUE[category], window))

    async def sizes(self) -> dict[str, TableSize]:
        """What our tables take up with their indexes."""
        return {size.table_name: size for size in await self.database.fetch(RETENTION.sizes)}


async def _take(transaction: Transaction, category: Category, window: timedelta, limit: int) -> list[Taken]:
    if category is not Category.WORKFLOWS:
        return await transaction.fetch(_TAKE[category], window, limit)
    runs = await transaction.fetch(RETENTION.lock_trees, window, limit)
    return await transaction.fetch(RETENTION.trees, window, sorted({run.root_id for run in runs}))


def _by_table(rows: list[Taken]) -> dict[str, Taken]:
    return {row.table_name: row for row in rows}
