"""Queues as operators see them: what waits, what runs, how fast, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database


MAX_FINISHED_COUNTED: Final = 20_000
"""How many rows that ended within a minute are looked at; the rest is reckoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue. Priority and cap are those of the worker that last wrote of it; None where no worker has."""

    name: str
    priority: int | None
    max_concurrency: int | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    pending: int
    """Due and not yet claimed."""
    delayed: int
    """Not yet due."""
    claimed: int
    running: int
    oldest_due_age: timedelta | None
    next_due_in: timedelta | None
    finished_last_minute: int
    """Ended in any way; reckoned from the last seconds where there were very many."""
    failed_last_minute: int
    served_by: int
    """Workers that beat and take from it."""

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReadQueries:
    list: Query[QueueRow]


QUEUE_READS = load_queries(QueueReadQueries, "horsies_ops.reads", "queues")


async def list_queues(database: Database) -> tuple[QueueRow, ...]:
    """Every queue that a task, a worker or a pause names, in the order of their priorities."""
    return tuple(await database.fetch(QUEUE_READS.list, MAX_FINISHED_COUNTED))
