"""Queues with their tasks, throughput, pauses and workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from horsies.store.queries import Query, load_queries
from horsies.store.recovery import RecoveryStore

if TYPE_CHECKING:
    from horsies_ops.ops import Ops


MAX_FINISHED_COUNTED: Final = 20_000
"""Most rows counted for the last minute; beyond that the number of tasks that did not fail is extrapolated."""


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
    """With any outcome; see `is_estimate`."""
    failed_last_minute: int
    """Always exact."""
    served_by: int
    """Number of workers that respond and serve it."""
    is_estimate: bool = False
    """So many tasks finished in the last minute that the number of those that did not fail is extrapolated."""

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReadQueries:
    list: Query[QueueRow]
    has_work: Query[bool]


QUEUE_READS = load_queries(QueueReadQueries, "horsies_ops.reads", "queues")


async def list_queues(ops: Ops) -> tuple[QueueRow, ...]:
    """Return every queue that a task, a worker or a pause mentions, by priority."""
    fleet = await RecoveryStore(ops.reader).fleet()
    return tuple(await ops.reader.fetch(QUEUE_READS.list, MAX_FINISHED_COUNTED, fleet.responsive_ids))


async def has_work(ops: Ops, queues: Sequence[str]) -> bool:
    """Whether tasks of these queues are due, waiting for a retry or in flight, or workflow runs have to advance.

    Delayed tasks and due tasks of paused queues do not count.
    """
    return await ops.reader.fetch_single(QUEUE_READS.has_work, list(queues))
