"""Retention: delete old rows, a bounded number per transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.model.retention import RetentionCategory
from horsies.store.database import RETENTION_LOCK
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRowCount:
    """Rows of a table that were deleted or are due for deletion, and the age of the oldest."""

    table_name: str
    rows: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """Size of a table, indexes included."""

    table_name: str
    bytes: int
    rows_estimate: int

    def estimate_bytes(self, rows: int) -> int:
        """Estimated size of `rows` rows; never more than the whole table."""
        return self.bytes * rows // max(self.rows_estimate, rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionQueries:
    try_retention_lock: Query[bool]
    sizes: Query[TableSize]
    delete_heartbeats: Query[TableRowCount]
    count_due_heartbeats: Query[TableRowCount]
    delete_worker_states: Query[TableRowCount]
    count_due_worker_states: Query[TableRowCount]
    delete_workers: Query[TableRowCount]
    count_due_workers: Query[TableRowCount]
    delete_tasks: Query[TableRowCount]
    count_due_tasks: Query[TableRowCount]
    lock_run_trees: Query[UUID]
    delete_run_trees: Query[TableRowCount]
    count_due_run_trees: Query[TableRowCount]
    delete_events: Query[TableRowCount]
    count_due_events: Query[TableRowCount]
    delete_audit_entries: Query[TableRowCount]
    count_due_audit_entries: Query[TableRowCount]
    delete_schedule_runs: Query[TableRowCount]
    count_due_schedule_runs: Query[TableRowCount]


RETENTION = load_queries(RetentionQueries, "horsies.store", "retention")

_DELETE_AND_COUNT = {
    RetentionCategory.HEARTBEATS: (RETENTION.delete_heartbeats, RETENTION.count_due_heartbeats),
    RetentionCategory.WORKER_STATES: (RETENTION.delete_worker_states, RETENTION.count_due_worker_states),
    RetentionCategory.WORKERS: (RETENTION.delete_workers, RETENTION.count_due_workers),
    RetentionCategory.WORKFLOWS: (RETENTION.delete_run_trees, RETENTION.count_due_run_trees),
    RetentionCategory.TASKS: (RETENTION.delete_tasks, RETENTION.count_due_tasks),
    RetentionCategory.EVENTS: (RETENTION.delete_events, RETENTION.count_due_events),
    RetentionCategory.AUDIT: (RETENTION.delete_audit_entries, RETENTION.count_due_audit_entries),
    RetentionCategory.SCHEDULE_RUNS: (RETENTION.delete_schedule_runs, RETENTION.count_due_schedule_runs),
}


@dataclass(frozen=True, slots=True)
class RetentionStore:
    """Deletes old rows. Counts are by table: attempts are deleted with their tasks, run trees as a whole."""

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
        """Delete a batch of rows older than `window`, oldest first; None if another process holds the lock.

        `record` is called in the same transaction with the number of deleted rows of the category, if any.
        """

        async def batch(transaction: Transaction) -> dict[str, TableRowCount] | None:
            if not await transaction.fetch_single(RETENTION.try_retention_lock, lock_name):
                return None
            # The lock ends with this transaction: another process may take the next batch, which does no harm.
            deleted = _by_table(await _delete(transaction, category, window, limit))
            if record is not None and (rows := deleted[category.table].rows):
                await record(transaction, rows)
            return deleted

        return await self.database.run(batch)

    async def count_due(self, category: RetentionCategory, window: timedelta) -> dict[str, TableRowCount]:
        """Count rows older than `window`, without locks."""
        _, count = _DELETE_AND_COUNT[category]
        return _by_table(await self.database.fetch(count, window))

    async def sizes(self) -> dict[str, TableSize]:
        """Size of each of our tables."""
        return {size.table_name: size for size in await self.database.fetch(RETENTION.sizes)}


async def _delete(
    transaction: Transaction, category: RetentionCategory, window: timedelta, limit: int
) -> list[TableRowCount]:
    delete, _ = _DELETE_AND_COUNT[category]
    if category is not RetentionCategory.WORKFLOWS:
        return await transaction.fetch(delete, window, limit)
    # Two statements: after waiting for the locks, the delete needs a new snapshot to see runs retried meanwhile.
    roots = await transaction.fetch(RETENTION.lock_run_trees, window, limit)
    return await transaction.fetch(delete, window, sorted(set(roots)))


def _by_table(rows: list[TableRowCount]) -> dict[str, TableRowCount]:
    return {row.table_name: row for row in rows}
