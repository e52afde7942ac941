"""Queues: waiting and running tasks, throughput, pauses and the workers that serve them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies_ops.ops import Ops


MAX_FINISHED_COUNTED: Final = 20_000
"""Most rows counted for the last minute; beyond that the numbers are extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue. Priority and limit are those published by the most recently seen worker, None without one."""

    name: str
    priority: int | None
    max_concurrency: int | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    pending: int
    """Due and not claimed yet."""
    delayed: int
    """Not due yet."""
    claimed: int
    running: int
    oldest_due_age: timedelta | None
    next_due_in: timedelta | None
    finished_last_minute: int
    """With any outcome; extrapolated if there were very many."""
    failed_last_minute: int
    served_by: int
    """Number of live workers that serve it."""

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReadQueries:
    list: Query[QueueRow]


QUEUE_READS = load_queries(QueueReadQueries, "horsies_ops.reads", "queues")


async def list_queues(ops: Ops) -> tuple[QueueRow, ...]:
    """Return every queue that a task, a worker or a pause mentions, by priority."""
    return tuple(await ops.reader.fetch(QUEUE_READS.list, MAX_FINISHED_COUNTED))
