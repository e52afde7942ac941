"""Retention: what has ended long enough ago is deleted, in small transactions that may be cut off at any point."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from horsies.errors import BrokerError, DatabaseUnreachable
from horsies.model.events import EventKind
from horsies.model.retention import Category, Cleaned, Portion, Windows
from horsies.store.operators import Event, EventStore
from horsies.store.retention import A_TICK, CLEANING, RetentionStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.store.database import Database, Transaction
    from horsies.store.retention import TableSize, Taken

__all__ = ["Category", "Cleaned", "Portion", "Windows", "clean", "clean_heartbeats", "would_clean"]


LOOK_AGAIN_S: Final = 0.1


async def clean(
    database: Database,
    windows: Windows,
    *,
    budget_s: float | None,
    progress: Callable[[Category, int], None] | None = None,
    record: Callable[[Transaction, int], Awaitable[None]] | None = None,
    worker_id: UUID | None = None,
    stop: asyncio.Event | None = None,
    patience_s: float = 0,
) -> Cleaned:
    """Delete what is older than its window, until nothing is left or `budget_s` is over; None takes the time it needs.

    Every category gets at least one batch, and `stop` ends the pass before the next. While another process cleans, it
    is waited for, for `patience_s` in all; then its batch is left out. After each, `progress` is told its
    category and rows; `record` writes inside the transaction of the batch. A category that fails does not keep the
    others from their turn; its error is raised at the end. A pass that deleted something leaves an event.
    """
    cleaning = _Cleaning(
        database, windows, budget_s=budget_s, progress=progress, record=record, stop=stop, patience_s=patience_s
    )
    sizes = await cleaning.store.sizes()
    errors: list[BrokerError] = []
    for category in Category:
        try:
            await cleaning.take(category)
        except DatabaseUnreachable:
            raise
        except BrokerError as error:
            errors.append(error)
    cleaned = cleaning.outcome(sizes)
    if cleaned.counts:
        evidence: dict[str, object] = {**cleaned.counts}
        await EventStore(database).record(
            Event(kind=EventKind.RETENTION_FINISHED, worker_id=worker_id, evidence=evidence)
        )
    if errors:
        raise errors[0]
    return cleaned


async def clean_heartbeats(database: Database, windows: Windows, *, budget_s: float) -> int:
    """The part of `clean` that belongs into every tick of a reaper: how many beats went. It leaves no event."""
    cleaning = _Cleaning(database, windows, budget_s=budget_s, turn=A_TICK)
    await cleaning.take(Category.HEARTBEATS)
    return cleaning.tallies[Category.HEARTBEATS].rows_of(Category.HEARTBEATS)


async def would_clean(database: Database, windows: Windows) -> Cleaned:
    """What `clean` would take now, counted without a lock or a write."""
    store = RetentionStore(database)
    sizes = await store.sizes()
    portions: list[Portion] = []
    for category, window in windows:
        tally = _Tally()
        if window is not None:
            tally.add(category, await store.due(category, window))
        portions.append(tally.portion(category, window, sizes))
    return Cleaned(portions=tuple(portions))


@dataclass(slots=True)
class _Tally:
    """What the batches of one category took."""

    tables: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    oldest_at: datetime | None = None

    def add(self, category: Category, taken: Mapping[str, Taken]) -> None:
        for table, part in taken.items():
            self.tables[table] += part.rows
        # The oldest go first: no later batch has anything older.
        self.oldest_at = self.oldest_at or taken[category.table].oldest_at

    def rows_of(self, category: Category) -> int:
        return self.tables[category.table]

    def portion(self, category: Category, window: timedelta | None, sizes: Mapping[str, TableSize]) -> Portion:
        tables = {table: rows for table, rows in self.tables.items() if rows}
        return Portion(
            category=category,
            window=window,
            rows=tables.get(category.table, 0),
            bytes=sum(sizes[table].share_of(rows) for table, rows in tables.items()),
            oldest_at=self.oldest_at,
            tables=tables,
        )


class _Cleaning:
    """One pass: batch after batch, within its time."""

    def __init__(
        self,
        database: Database,
        windows: Windows,
        *,
        budget_s: float | None,
        progress: Callable[[Category, int], None] | None = None,
        record: Callable[[Transaction, int], Awaitable[None]] | None = None,
        stop: asyncio.Event | None = None,
        patience_s: float = 0,
        turn: str = CLEANING,
    ) -> None:
        self.store = RetentionStore(database)
        self.tallies = {category: _Tally() for category in Category}
        self._windows = windows
        self._deadline = None if budget_s is None else time.monotonic() + budget_s
        self._progress = progress
        self._record = record
        self._stop = stop
        self._patience_s = patience_s
        self._turn = turn
        self._is_busy = False
        self._is_cut_short = False

    async def take(self, category: Category) -> None:
        """Batches until one finds nothing, the time is over, or another process turns out to be cleaning."""
        window = self._windows.of_category(category)
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

    async def _batch(self, category: Category, window: timedelta) -> dict[str, Taken] | None:
        limit = self._windows.batch_size
        while True:
            taken = await self.store.take(category, window, limit=limit, turn=self._turn, record=self._record)
            if taken is not None or self._patience_s <= 0 or self._is_over():
                return taken
            self._patience_s -= LOOK_AGAIN_S
            await asyncio.sleep(LOOK_AGAIN_S)

    def outcome(self, sizes: Mapping[str, TableSize]) -> Cleaned:
        return Cleaned(
            portions=tuple(
                self.tallies[category].portion(category, window, sizes) for category, window in self._windows
            ),
            is_complete=not (self._is_cut_short or self._is_busy),
            is_busy=self._is_busy,
        )

    def _is_over(self) -> bool:
        return self._is_stopped() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()
