"""Workers and queues looked at closely: what several reads say about one of them, put together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.model.task import TaskStatus
from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.tasks import Order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies_ops.reads.counts import Facet
    from horsies_ops.reads.tasks import TaskSummary
    from horsies_ops.reads.throughput import QueueBucket
    from horsies_ops.reads.workers import Snapshot, WorkerRow
    from horsies_tui.source import Source

WINDOW: Final = timedelta(minutes=30)
BUCKETS: Final = 30
HOUR: Final = timedelta(hours=1)
MOST_HELD: Final = 40


async def workers_of(source: Source) -> tuple[WorkerRow, ...]:
    """Those that have not stopped; silent ones are stale by the settings of this side."""
    limit_ms = source.settings.recovery.worker_stale_threshold_ms
    return await source.list_active_workers(timedelta(milliseconds=limit_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDetail:
    """What is in a queue, who serves it, and how it went in the last half hour."""

    name: str
    buckets: tuple[QueueBucket, ...]
    waiting: tuple[Facet, ...]
    """Names of tasks that wait, among the newest."""
    failing: tuple[Facet, ...]
    """Error codes of tasks sent within the hour."""
    servers: tuple[WorkerRow, ...]


async def queue_detail(source: Source, name: str) -> QueueDetail:
    buckets = await source.queue_throughput(WINDOW, BUCKETS)
    waiting = await source.facets(TaskFilter(queues=(name,), statuses=(TaskStatus.PENDING,)))
    failed = await source.facets(TaskFilter(queues=(name,), statuses=(TaskStatus.FAILED,), newer_than=HOUR))
    workers = await workers_of(source)
    return QueueDetail(
        name=name,
        buckets=tuple(bucket for bucket in buckets if bucket.queue == name),
        waiting=waiting.names,
        failing=failed.error_codes,
        servers=tuple(worker for worker in workers if worker.is_alive and name in worker.queues),
    )


def placed(buckets: Sequence[QueueBucket], now: datetime) -> list[QueueBucket | None]:
    """The buckets of one queue from the oldest part of the window to the newest; None where nothing ended."""
    found: list[QueueBucket | None] = [None] * BUCKETS
    for bucket in buckets:
        back = int((now - bucket.at) / (WINDOW / BUCKETS))
        if 0 <= back < BUCKETS:
            found[BUCKETS - 1 - back] = bucket
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDetail:
    """How loaded a worker was in a window, and what it holds."""

    worker_id: UUID
    window: timedelta
    history: tuple[Snapshot, ...]
    held: tuple[TaskSummary, ...]
    """The first ones, the oldest first."""


async def worker_detail(source: Source, worker_id: UUID, window: timedelta) -> WorkerDetail:
    held = TaskFilter(worker_id=str(worker_id), statuses=(TaskStatus.CLAIMED, TaskStatus.RUNNING))
    page = await source.list_tasks(held, order=Order.OLDEST_FIRST, limit=MOST_HELD)
    history = await source.worker_history(worker_id, window)
    return WorkerDetail(worker_id=worker_id, window=window, history=history, held=page.tasks)
