"""Retention: what has ended long enough ago is deleted, in small transactions that may be cut off at any point."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.errors import BrokerError, DatabaseUnreachable
from horsies.model.events import EventKind
from horsies.model.retention import CategoryCleanup, CleanupSummary, RetentionCategory, RetentionWindows
from horsies.store.operators import EventStore, StoredEvent
from horsies.store.retention import HEARTBEAT_RETENTION_LOCK, RETENTION_LOCK, RetentionStore, TableRowCount, TableSize

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction

__all__ = [
    "CategoryCleanup",
    "CleanupSummary",
    "RetentionCategory",
    "RetentionWindows",
    "clean",
    "clean_heartbeats",
    "preview_cleanup",
]


LOCK_POLL_S: Final = 0.1


async def clean(
    database: Database,
    windows: RetentionWindows,
    *,
    budget_s: float | None,
    progress: Callable[[RetentionCategory, int], None] | None = None,
    record: Callable[[Transaction, int], Awaitable[None]] | None = None,
    worker_id: UUID | None = None,
    stop: asyncio.Event | None = None,
    lock_wait_s: float = 0,
) -> CleanupSummary:
    """Delete what is older than its window, until nothing is left or `budget_s` is over; None takes the time it needs.

    Every category gets at least one batch, and `stop` ends the pass before the next. While another process cleans, it
    is waited for, for `patience_s` in all; then its batch is left out. After each, `progress` is told its
    category and rows; `record` writes inside the transaction of the batch. A category that fails does not keep the
    others from their turn; its error is raised at the end. A pass that deleted something leaves an event.
    """
    cleaning = _CleanupPass(
        database, windows, budget_s=budget_s, progress=progress, record=record, stop=stop, patience_s=lock_wait_s
    )
    sizes = await cleaning.store.sizes()
    errors: list[BrokerError] = []
    for category in RetentionCategory:
        try:
            await cleaning.clean_category(category)
        except DatabaseUnreachable:
            raise
        except BrokerError as error:
            errors.append(error)
    cleaned = cleaning.outcome(sizes)
    if cleaned.counts:
        evidence: dict[str, object] = {**cleaned.counts}
        await EventStore(database).record(
            StoredEvent(kind=EventKind.RETENTION_FINISHED, worker_id=worker_id, evidence=evidence)
        )
    if errors:
        raise errors[0]
    return cleaned


async def clean_heartbeats(database: Database, windows: RetentionWindows, *, budget_s: float) -> int:
    """The part of `clean` that belongs into every tick of a reaper: how many beats went. It leaves no event."""
    cleaning = _CleanupPass(database, windows, budget_s=budget_s, turn=HEARTBEAT_RETENTION_LOCK)
    await cleaning.clean_category(RetentionCategory.HEARTBEATS)
    return cleaning.tallies[RetentionCategory.HEARTBEATS].rows_of(RetentionCategory.HEARTBEATS)


async def preview_cleanup(database: Database, windows: RetentionWindows) -> CleanupSummary:
    """What `clean` would take now, counted without a lock or a write."""
    store = RetentionStore(database)
    sizes = await store.sizes()
    portions: list[CategoryCleanup] = []
    for category, window in windows:
        tally = _CategoryTotals()
        if window is not None:
            tally.add(category, await store.count_due(category, window))
        portions.append(tally.portion(category, window, sizes))
    return CleanupSummary(categories=tuple(portions))


@dataclass(slots=True)
class _CategoryTotals:
    """What the batches of one category took."""

    tables: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    oldest_at: datetime | None = None

    def add(self, category: RetentionCategory, taken: Mapping[str, TableRowCount]) -> None:
        for table, part in taken.items():
            self.tables[table] += part.rows
        # The oldest go first: no later batch has anything older.
        self.oldest_at = self.oldest_at or taken[category.table].oldest_at

    def rows_of(self, category: RetentionCategory) -> int:
        return self.tables[category.table]

    def portion(
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


class _CleanupPass:
    """One pass: batch after batch, within its time."""

    def __init__(
        self,
        database: Database,
        windows: RetentionWindows,
        *,
        budget_s: float | None,
        progress: Callable[[RetentionCategory, int], None] | None = None,
        record: Callable[[Transaction, int], Awaitable[None]] | None = None,
        stop: asyncio.Event | None = None,
        patience_s: float = 0,
        turn: str = RETENTION_LOCK,
    ) -> None:
        self.store = RetentionStore(database)
        self.tallies = {category: _CategoryTotals() for category in RetentionCategory}
        self._windows = windows
        self._deadline = None if budget_s is None else time.monotonic() + budget_s
        self._progress = progress
        self._record = record
        self._stop = stop
        self._patience_s = patience_s
        self._lock_name = turn
        self._is_busy = False
        self._is_cut_short = False

    async def clean_category(self, category: RetentionCategory) -> None:
        """Batches until one finds nothing, the time is over, or another process turns out to be cleaning."""
        window = self._windows.for_category(category)
        if window is None or self._is_stopped():
            return
        while (taken := await self._batch(category, window)) is not None:
            if not (rows := taken[category.table].rows):
                return
            self.tallies[category].add(category, taken)
            if self._progress is not None:
                self._progress(category, rows)
            if self._is_over():
                self._is_cut_short = True
                return
        self._is_busy = True

    async def _batch(self, category: RetentionCategory, window: timedelta) -> dict[str, TableRowCount] | None:
        limit = self._windows.batch_size
        while True:
            taken = await self.store.delete_batch(
                category, window, limit=limit, lock_name=self._lock_name, record=self._record
            )
            if taken is not None or self._patience_s <= 0 or self._is_over():
                return taken
            self._patience_s -= LOCK_POLL_S
            await asyncio.sleep(LOCK_POLL_S)

    def outcome(self, sizes: Mapping[str, TableSize]) -> CleanupSummary:
        return CleanupSummary(
            categories=tuple(
                self.tallies[category].portion(category, window, sizes) for category, window in self._windows
            ),
            is_complete=not (self._is_cut_short or self._is_busy),
            is_busy=self._is_busy,
        )

    def _is_over(self) -> bool:
        return self._is_stopped() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()
