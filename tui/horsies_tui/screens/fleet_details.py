"""Workers and queues looked at closely: what several reads say about one of them, put together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.overview import QueueBucket
from horsies_ops.reads.search import Facet
from horsies_ops.reads.tasks import TaskOrder, TaskSummary
from horsies_ops.reads.workers import SnapshotRow, WorkerRow
from horsies_tui.data.source import DataSource
from horsies_tui.screens.fleet import BUCKET_COUNT, HOUR, THROUGHPUT_WINDOW, load_workers

MOST_HELD: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDetail:
    """What is in a queue, who serves it, and how it went in the last half hour."""

    name: str
    buckets: tuple[QueueBucket, ...]
    pending_names: tuple[Facet, ...]
    """Names of tasks that wait, among the newest."""
    error_codes: tuple[Facet, ...]
    """Error codes of tasks sent within the hour."""
    workers: tuple[WorkerRow, ...]


async def load_queue_detail(source: DataSource, name: str) -> QueueDetail:
    buckets = await source.queue_throughput(THROUGHPUT_WINDOW, BUCKET_COUNT)
    waiting = await source.facets(TaskFilter(queues=(name,), statuses=(TaskStatus.PENDING,)))
    failed = await source.facets(TaskFilter(queues=(name,), statuses=(TaskStatus.FAILED,), newer_than=HOUR))
    workers = await load_workers(source)
    return QueueDetail(
        name=name,
        buckets=tuple(bucket for bucket in buckets if bucket.queue == name),
        pending_names=waiting.names,
        error_codes=failed.error_codes,
        workers=tuple(worker for worker in workers if worker.is_alive and name in worker.queues),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDetail:
    """How loaded a worker was in a window, and what it holds."""

    worker_id: UUID
    window: timedelta
    snapshots: tuple[SnapshotRow, ...]
    tasks: tuple[TaskSummary, ...]
    """The first ones, the oldest first."""


async def load_worker_detail(source: DataSource, worker_id: UUID, window: timedelta) -> WorkerDetail:
    held = TaskFilter(worker_id=str(worker_id), statuses=(TaskStatus.CLAIMED, TaskStatus.RUNNING))
    page = await source.list_tasks(held, order=TaskOrder.OLDEST_FIRST, limit=MOST_HELD)
    history = await source.worker_history(worker_id, window)
    return WorkerDetail(worker_id=worker_id, window=window, snapshots=history, tasks=page.tasks)
