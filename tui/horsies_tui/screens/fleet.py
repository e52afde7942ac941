"""The workers that are there, and the last half hour in parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from horsies_ops.reads.queues import QueueRow
from horsies_tui.data.source import DataSource

if TYPE_CHECKING:
    from horsies_ops.reads.overview import QueueBucket
    from horsies_ops.reads.workers import WorkerRow


THROUGHPUT_WINDOW: Final = timedelta(minutes=30)
BUCKET_COUNT: Final = 30
HOUR: Final = timedelta(hours=1)


async def load_workers(source: DataSource) -> tuple[WorkerRow, ...]:
    """Those that have not stopped; silent ones are stale by the settings of this side."""
    limit_ms = source.settings.recovery.worker_stale_threshold_ms
    return await source.list_active_workers(timedelta(milliseconds=limit_ms))


def count_not_alive(workers: Iterable[WorkerRow]) -> list[tuple[str, int]]:
    """How many of them are silent, stale or lost; what there is none of is left out."""
    return sorted(Counter(worker.display_state for worker in workers if not worker.is_alive).items())


def align_buckets(buckets: Sequence[QueueBucket], now: datetime) -> list[QueueBucket | None]:
    """The buckets of one queue from the oldest part of the window to the newest; None where nothing ended."""
    found: list[QueueBucket | None] = [None] * BUCKET_COUNT
    for bucket in buckets:
        back = int((now - bucket.at) / (THROUGHPUT_WINDOW / BUCKET_COUNT))
        if 0 <= back < BUCKET_COUNT:
            found[BUCKET_COUNT - 1 - back] = bucket
    return found


# How queues and workers are: the rules behind the last column of their lists, and behind what needs attention.

TARGET_WAIT: Final = timedelta(seconds=60)
"""A task that is due should not have to wait longer than this."""

HOT_PERCENT: Final = 85.0


class QueueHealth(StrEnum):
    OK = "ok"
    BACKLOG = "backlog"
    """What is due waits for longer than it should."""
    PAUSED = "paused"
    UNSERVED = "nobody"
    """No live worker takes from it: whatever is sent there stays."""


class WorkerHealth(StrEnum):
    """How a worker stands, in the words of `workers list`; one that runs may be hot besides."""

    RUNNING = "running"
    STARTING = "starting"
    HOT = "hot"
    """Its processor or its memory is nearly used up."""
    DRAINING = "draining"
    SILENT = "silent"
    """Several of its beats are missing: it may be dead."""
    STALE = "stale"
    """Silent for so long that it will be declared lost."""
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
    standing = WorkerHealth(worker.display_state)
    is_hot = max(worker.cpu_percent or 0.0, worker.memory_percent or 0.0) >= HOT_PERCENT
    return WorkerHealth.HOT if is_hot and standing is WorkerHealth.RUNNING else standing


def drain_time(queue: QueueRow) -> timedelta | None:
    """How long what is due would take at the rate of the last minute; None where nothing is going to be done."""
    if not queue.finished_last_minute or queue_health(queue) in (QueueHealth.PAUSED, QueueHealth.UNSERVED):
        return None
    return timedelta(minutes=queue.pending / queue.finished_last_minute)
