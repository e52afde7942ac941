"""How queues and workers are: the rules behind the last column of their lists, and behind what needs attention."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from horsies_ops.reads.queues import QueueRow
    from horsies_ops.reads.workers import WorkerRow

TARGET_WAIT: Final = timedelta(seconds=60)
"""A task that is due should not have to wait longer than this."""

HOT_PERCENT: Final = 85.0


class QueueHealth(StrEnum):
    OK = "ok"
    BACKLOG = "backlog"
    """What is due waits for longer than it should."""
    PAUSED = "paused"
    NOBODY = "nobody"
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
        return QueueHealth.NOBODY
    is_late = queue.oldest_due_age is not None and queue.oldest_due_age > TARGET_WAIT
    return QueueHealth.BACKLOG if is_late else QueueHealth.OK


def worker_health(worker: WorkerRow) -> WorkerHealth:
    standing = WorkerHealth(worker.standing)
    is_hot = max(worker.cpu_percent or 0.0, worker.memory_percent or 0.0) >= HOT_PERCENT
    return WorkerHealth.HOT if is_hot and standing is WorkerHealth.RUNNING else standing


def drain_time(queue: QueueRow) -> timedelta | None:
    """How long what is due would take at the rate of the last minute; None where nothing is going to be done."""
    if not queue.finished_last_minute or queue_health(queue) in (QueueHealth.PAUSED, QueueHealth.NOBODY):
        return None
    return timedelta(minutes=queue.pending / queue.finished_last_minute)
