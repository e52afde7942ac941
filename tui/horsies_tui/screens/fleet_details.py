"""Workers and queues looked at closely: what several reads say about one of them, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import Order
from horsies_tui.screens.fleet import BUCKETS, HOUR, WINDOW, workers_of

if TYPE_CHECKING:
    from datetime import timedelta
    from uuid import UUID

    from horsies_ops.reads.overview import QueueBucket
    from horsies_ops.reads.search import Facet
    from horsies_ops.reads.tasks import TaskSummary
    from horsies_ops.reads.workers import Snapshot, WorkerRow
    from horsies_tui.data.source import Source

MOST_HELD: Final = 40


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
