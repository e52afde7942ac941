"""Health rules of queues and workers, and reads that several screens share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from horsies_ops.source import DataSource

# Only for type checking: they import the database driver, which the first screen must not wait for.
if TYPE_CHECKING:
    from horsies_ops.reads.overview import QueueBucket, QueueRow
    from horsies_ops.reads.workers import WorkerRow

THROUGHPUT_WINDOW: Final = timedelta(minutes=30)
BUCKET_COUNT: Final = 30
HOUR: Final = timedelta(hours=1)

TARGET_WAIT: Final = timedelta(seconds=60)
"""A queue whose oldest due task waits longer than this has a backlog."""

HOT_PERCENT: Final = 85.0
"""CPU or memory use from which a worker is shown as hot."""


# Health of queues and workers


class QueueHealth(StrEnum):
    OK = "ok"
    BACKLOG = "backlog"
    """Due tasks wait longer than TARGET_WAIT."""
    PAUSED = "paused"
    UNSERVED = "unserved"
    """No live worker serves the queue; its tasks will wait."""


class WorkerHealth(StrEnum):
    """The states of `horsies workers list`, plus HOT for a running worker short of CPU or memory."""

    RUNNING = "running"
    STARTING = "starting"
    HOT = "hot"
    DEGRADED = "degraded"
    """It cannot start all its children, has lost its fork server, or receives no notifications."""
    DRAINING = "draining"
    LATE = "late"
    """A heartbeat is overdue."""
    SILENT = "silent"
    """Several heartbeats are missing: it may be dead."""
    STALE = "stale"
    """Silent for so long that it is about to be declared lost."""
    LOST = "lost"
    STOPPED = "stopped"


def queue_health(queue: QueueRow) -> QueueHealth:
    if queue.is_paused:
        return QueueHealth.PAUSED
    if not queue.served_by:
        return QueueHealth.UNSERVED
    is_late = queue.oldest_due_age is not None and queue.oldest_due_age > TARGET_WAIT
    return QueueHealth.BACKLOG if is_late else QueueHealth.OK


def worker_health(worker: WorkerRow) -> WorkerHealth:
    health = WorkerHealth(worker.display_state)
    is_hot = max(worker.cpu_percent or 0.0, worker.memory_percent or 0.0) >= HOT_PERCENT
    return WorkerHealth.HOT if is_hot and health is WorkerHealth.RUNNING else health


def drain_time(queue: QueueRow) -> timedelta | None:
    """Return how long the due tasks take at the last minute's rate; None if the queue makes no progress."""
    if not queue.finished_last_minute or queue_health(queue) in (QueueHealth.PAUSED, QueueHealth.UNSERVED):
        return None
    return timedelta(minutes=queue.pending / queue.finished_last_minute)


def count_without_heartbeat(workers: Iterable[WorkerRow]) -> list[tuple[str, int]]:
    """Count late, silent, stale and lost workers by state."""
    return sorted(Counter(worker.display_state for worker in workers if not _is_alive(worker)).items())


def count_alive(workers: Iterable[WorkerRow]) -> int:
    """Count the workers whose last heartbeat is not overdue."""
    return sum(map(_is_alive, workers))


def _is_alive(worker: WorkerRow) -> bool:
    return worker.is_responsive and not worker.is_late


# Reads


async def load_workers(source: DataSource) -> tuple[WorkerRow, ...]:
    """Return all workers that have not stopped; local settings decide which silent ones are stale."""
    return await source.list_active_workers()


def align_buckets(buckets: Sequence[QueueBucket], now: datetime) -> list[QueueBucket | None]:
    """Return one queue's buckets for the whole window, oldest first; None where no task finished."""
    aligned: list[QueueBucket | None] = [None] * BUCKET_COUNT
    for bucket in buckets:
        steps_back = int((now - bucket.at) / (THROUGHPUT_WINDOW / BUCKET_COUNT))
        if 0 <= steps_back < BUCKET_COUNT:
            aligned[BUCKET_COUNT - 1 - steps_back] = bucket
    return aligned
