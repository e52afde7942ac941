"""Retention: deletes old rows in small transactions; a pass may be interrupted at any point."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.errors import BrokerError, DatabaseUnreachable
from horsies.model.events import EventKind, EventRecord
from horsies.model.retention import CategoryCleanup, CleanupSummary, RetentionCategory, RetentionWindows
from horsies.store.database import HEARTBEAT_RETENTION_LOCK, RETENTION_LOCK, log_suspicious_holders
from horsies.store.operators import EventStore
from horsies.store.retention import RetentionStore, TableRowCount, TableSize

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction

__all__ = [
    "CategoryCleanup",
    "Cleanup",
    "CleanupSummary",
    "RetentionCategory",
    "RetentionWindows",
    "clean_heartbeats",
    "preview_cleanup",
]


LOCK_POLL_S: Final = 0.1
MAX_BATCH_TIME: Final = timedelta(seconds=30)
"""A process that holds the lock for longer is stuck: a batch is one short transaction."""


async def clean_heartbeats(database: Database, windows: RetentionWindows, *, budget_s: float) -> int:
    """Delete old heartbeats only and return how many; part of every reaper pass. Records no event."""
    # A lock of its own, so that this and a long retention pass do not keep each other from running.
    cleanup = Cleanup(database, windows, budget_s=budget_s, lock_name=HEARTBEAT_RETENTION_LOCK)
    await cleanup.clean_category(RetentionCategory.HEARTBEATS)
    return cleanup.totals[RetentionCategory.HEARTBEATS].tables[RetentionCategory.HEARTBEATS.table]


async def preview_cleanup(database: Database, windows: RetentionWindows) -> CleanupSummary:
    """Count what `clean` would delete now; takes no lock and writes nothing."""
    store = RetentionStore(database)
    sizes = await store.sizes()
    categories: list[CategoryCleanup] = []
    for category, window in windows:
        totals = _CategoryTotals()
        if window is not None:
            totals.add(category, await store.count_due(category, window))
        categories.append(totals.to_cleanup(category, window, sizes))
    return CleanupSummary(categories=tuple(categories))


@dataclass(slots=True)
class _CategoryTotals:
    """Rows deleted by the batches of one category."""

    tables: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    oldest_at: datetime | None = None

    def add(self, category: RetentionCategory, deleted: Mapping[str, TableRowCount]) -> None:
        for table, count in deleted.items():
            self.tables[table] += count.rows
        # The oldest rows are deleted first, so the first batch has the oldest row.
        self.oldest_at = self.oldest_at or deleted[category.table].oldest_at

    def to_cleanup(
        self, category: RetentionCategory, window: timedelta | None, sizes: Mapping[str, TableSize]
    ) -> CategoryCleanup:
        tables = {table: rows for table, rows in self.tables.items() if rows}
        return CategoryCleanup(
            category=category,
            window=window,
            rows=tables.get(category.table, 0),
            bytes=sum(sizes[table].estimate_bytes(rows) for table, rows in tables.items()),
            oldest_at=self.oldest_at,
            tables=tables,
        )


@dataclass(slots=True)
class Cleanup:
    """One retention pass: deletes rows older than their window until none are left or `budget_s` is used up.

    None means no limit. Every category gets at least one batch; `stop` ends the pass before the next batch. If another
    process holds the lock, the pass waits for it up to `lock_wait_s` in total, then skips the category. After each
    batch, `progress` is called with its category and rows; `record` runs inside the transaction of the batch.
    """

    database: Database
    windows: RetentionWindows
    _: KW_ONLY
    budget_s: float | None
    progress: Callable[[RetentionCategory, int], None] | None = None
    record: Callable[[Transaction, int], Awaitable[None]] | None = None
    stop: asyncio.Event | None = None
    lock_wait_s: float = 0
    lock_name: str = RETENTION_LOCK
    totals: defaultdict[RetentionCategory, _CategoryTotals] = field(
        init=False, default_factory=lambda: defaultdict[RetentionCategory, _CategoryTotals](_CategoryTotals)
    )
    _started_at: float = field(init=False, default_factory=time.monotonic)
    _is_busy: bool = field(init=False, default=False)
    _is_cut_short: bool = field(init=False, default=False)

    async def run(self, *, worker_id: UUID | None = None) -> CleanupSummary:
        """Clean all categories; if it deleted rows, record an event of this worker.

        If a category fails, the others still run and the error is raised at the end.
        """
        sizes = await RetentionStore(self.database).sizes()
        errors: list[BrokerError] = []
        for category in RetentionCategory:
            try:
                await self.clean_category(category)
            except DatabaseUnreachable:
                raise  # the other categories would fail as well
            except BrokerError as error:
                errors.append(error)
        summary = CleanupSummary(
            categories=tuple(
                self.totals[category].to_cleanup(category, window, sizes) for category, window in self.windows
            ),
            is_complete=not (self._is_cut_short or self._is_busy),
            is_busy=self._is_busy,
        )
        if summary.counts:
            evidence: dict[str, object] = {**summary.counts}
            event = EventRecord(kind=EventKind.RETENTION_FINISHED, worker_id=worker_id, evidence=evidence)
            await EventStore(self.database).record(event)
        if errors:
            raise errors[0]
        return summary

    async def clean_category(self, category: RetentionCategory) -> None:
        """Delete batches until nothing is left, the time is up, or another process holds the lock."""
        window = self.windows.for_category(category)
        if window is None or self._is_stopped():
            return
        while (deleted := await self._delete_batch(category, window)) is not None:
            if not (rows := deleted[category.table].rows):
                return
            self.totals[category].add(category, deleted)
            if self.progress is not None:
                self.progress(category, rows)
            # Checked after a batch, so that every category makes progress even if the first ones use up the time.
            if self._is_over():
                self._is_cut_short = True
                return
        # The loop ended because another process holds the lock.
        if not self._is_busy:
            self._is_busy = True
            await log_suspicious_holders(self.database, self.lock_name, limit=MAX_BATCH_TIME)

    async def _delete_batch(self, category: RetentionCategory, window: timedelta) -> dict[str, TableRowCount] | None:
        """Delete one batch, waiting for the lock if allowed; None if another process holds it."""
        limit = self.windows.batch_size
        while True:
            deleted = await RetentionStore(self.database).delete_batch(
                category, window, limit=limit, lock_name=self.lock_name, record=self.record
            )
            if deleted is not None or self.lock_wait_s <= 0 or self._is_over():
                return deleted
            # One wait budget for the whole pass: a busy lock must not cost `lock_wait_s` per category.
            self.lock_wait_s -= LOCK_POLL_S
            await asyncio.sleep(LOCK_POLL_S)

    def _is_over(self) -> bool:
        is_out_of_time = self.budget_s is not None and time.monotonic() - self._started_at >= self.budget_s
        return self._is_stopped() or is_out_of_time

    def _is_stopped(self) -> bool:
        return self.stop is not None and self.stop.is_set()
