"""The workers that are there, and the last half hour in parts."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from horsies_ops.reads.throughput import QueueBucket
    from horsies_ops.reads.workers import WorkerRow
    from horsies_tui.source import Source

WINDOW: Final = timedelta(minutes=30)
BUCKETS: Final = 30
HOUR: Final = timedelta(hours=1)


async def workers_of(source: Source) -> tuple[WorkerRow, ...]:
    """Those that have not stopped; silent ones are stale by the settings of this side."""
    limit_ms = source.settings.recovery.worker_stale_threshold_ms
    return await source.list_active_workers(timedelta(milliseconds=limit_ms))


def missing(workers: Iterable[WorkerRow]) -> list[tuple[str, int]]:
    """How many of them are silent, stale or lost; what there is none of is left out."""
    return sorted(Counter(worker.standing for worker in workers if not worker.is_alive).items())


def placed(buckets: Sequence[QueueBucket], now: datetime) -> list[QueueBucket | None]:
    """The buckets of one queue from the oldest part of the window to the newest; None where nothing ended."""
    found: list[QueueBucket | None] = [None] * BUCKETS
    for bucket in buckets:
        back = int((now - bucket.at) / (WINDOW / BUCKETS))
        if 0 <= back < BUCKETS:
            found[BUCKETS - 1 - back] = bucket
    return found
