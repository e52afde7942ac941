"""Old rows are deleted, a bounded number in each transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.model.retention import RetentionCategory
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRowCount:
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

    def estimate_bytes(self, rows: int) -> int:
        """What so many of its rows take up; the whole table at most, however old the estimate is."""
        return self.bytes * rows // max(self.rows_estimate, rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLockRow:
    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRun:
    id: UUID
    root_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionQueries:
    try_retention_lock: Query[RetentionLockRow]
    sizes: Query[TableSize]
    delete_heartbeats: Query[TableRowCount]
    count_due_heartbeats: Query[TableRowCount]
    delete_worker_states: Query[TableRowCount]
    count_due_worker_states: Query[TableRowCount]
    delete_workers: Query[TableRowCount]
    count_due_workers: Query[TableRowCount]
    delete_tasks: Query[TableRowCount]
    count_due_tasks: Query[TableRowCount]
    lock_run_trees: Query[LockedRun]
    delete_run_trees: Query[TableRowCount]
    count_due_run_trees: Query[TableRowCount]
    delete_events: Query[TableRowCount]
    count_due_events: Query[TableRowCount]
    delete_audit_entries: Query[TableRowCount]
    count_due_audit_entries: Query[TableRowCount]


RETENTION_LOCK: Final = "retention"
"""The turn of those who clean everything."""
HEARTBEAT_RETENTION_LOCK: Final = "retention of heartbeats"
"""The turn of those who only make room for the next beats."""

RETENTION = load_queries(RetentionQueries, "horsies.store", "retention")

_DELETE_QUERIES = {
    RetentionCategory.HEARTBEATS: RETENTION.delete_heartbeats,
    RetentionCategory.WORKER_STATES: RETENTION.delete_worker_states,
    RetentionCategory.WORKERS: RETENTION.delete_workers,
    RetentionCategory.TASKS: RETENTION.delete_tasks,
    RetentionCategory.EVENTS: RETENTION.delete_events,
    RetentionCategory.AUDIT: RETENTION.delete_audit_entries,
}
_COUNT_QUERIES = {
    RetentionCategory.HEARTBEATS: RETENTION.count_due_heartbeats,
    RetentionCategory.WORKER_STATES: RETENTION.count_due_worker_states,
    RetentionCategory.WORKERS: RETENTION.count_due_workers,
    RetentionCategory.WORKFLOWS: RETENTION.count_due_run_trees,
    RetentionCategory.TASKS: RETENTION.count_due_tasks,
    RetentionCategory.EVENTS: RETENTION.count_due_events,
    RetentionCategory.AUDIT: RETENTION.count_due_audit_entries,
}


@dataclass(frozen=True, slots=True)
class RetentionStore:
    """Old rows of one database. Answers are by table: attempts go with their tasks, whole trees with their roots."""

    database: Database

    async def delete_batch(
        self,
        category: RetentionCategory,
        window: timedelta,
        *,
        limit: int,
        lock_name: str = RETENTION_LOCK,
        record: Callable[[Transaction, int], Awaitable[None]] | None = None,
    ) -> dict[str, TableRowCount] | None:
        """Delete a batch of what is older than `window`, the oldest first; None while another process has the turn.

        `record` writes down how many rows of the category went, in the same transaction and only where some did.
        """

        async def batch(transaction: Transaction) -> dict[str, TableRowCount] | None:
            (lock,) = await transaction.fetch(RETENTION.try_retention_lock, lock_name)
            if not lock.is_ours:
                return None
            taken = _by_table(await _take(transaction, category, window, limit))
            if record is not None and (rows := taken[category.table].rows):
                await record(transaction, rows)
            return taken

        return await self.database.run(batch)

    async def count_due(self, category: RetentionCategory, window: timedelta) -> dict[str, TableRowCount]:
        """Count what is older than `window`; nothing is locked."""
        return _by_table(await self.database.fetch(_COUNT_QUERIES[category], window))

    async def sizes(self) -> dict[str, TableSize]:
        """What our tables take up with their indexes."""
        return {size.table_name: size for size in await self.database.fetch(RETENTION.sizes)}


async def _take(
    transaction: Transaction, category: RetentionCategory, window: timedelta, limit: int
) -> list[TableRowCount]:
    if category is not RetentionCategory.WORKFLOWS:
        return await transaction.fetch(_DELETE_QUERIES[category], window, limit)
    runs = await transaction.fetch(RETENTION.lock_run_trees, window, limit)
    return await transaction.fetch(RETENTION.delete_run_trees, window, sorted({run.root_id for run in runs}))


def _by_table(rows: list[TableRowCount]) -> dict[str, TableRowCount]:
    return {row.table_name: row for row in rows}
