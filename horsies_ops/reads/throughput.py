"""How much is done, how long it takes, and what goes wrong, over a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from horsies.store.db import Database


MOST_OF_A_BUCKET: Final = 2_000
MOST_TIMED: Final = 5_000
MOST_OF_A_CODE: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A stretch of time that begins `at`; `done` tasks completed in it, `failed` ones failed."""

    at: datetime
    done: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBucket:
    """The same for one queue, where anything of it ended; `longest_wait` is None where nothing of that had begun."""

    queue: str
    at: datetime
    done: int
    failed: int
    longest_wait: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long tasks waited and ran in their last attempt: half of them at most p50, nearly all at most p95."""

    wait_p50: timedelta | None
    wait_p95: timedelta | None
    run_p50: timedelta | None
    run_p95: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Buckets from the oldest on, the last one still open, and the times of what ended last in the window."""

    buckets: tuple[Bucket, ...]
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """How many tasks of one name ended in one way, and how many of them within the last hour."""

    name: str
    code: str
    status: str
    count: int
    last_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputQueries:
    buckets: Query[Bucket]
    queues: Query[QueueBucket]
    times: Query[Times]
    errors: Query[ErrorCount]


THROUGHPUT = load(ThroughputQueries, "horsies_ops.reads", "throughput")


async def throughput(database: Database, window: timedelta, buckets: int = 30) -> Throughput:
    """What was done in the last `window`; a bucket with very many tasks is reckoned from a part of it."""
    rows = await database.fetch(THROUGHPUT.buckets, *_parts(window, buckets))
    (times,) = await database.fetch(THROUGHPUT.times, window, MOST_TIMED)
    return Throughput(buckets=tuple(rows), times=times)


async def queue_throughput(database: Database, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
    """The same queue by queue, on the same boundaries; buckets in which nothing ended are left out."""
    return tuple(await database.fetch(THROUGHPUT.queues, *_parts(window, buckets)))


def _parts(window: timedelta, buckets: int) -> tuple[timedelta, int, int]:
    if buckets < 1:
        raise ValueError("buckets must be at least 1")
    return window / buckets, buckets, MOST_OF_A_BUCKET


async def error_summary(database: Database, window: timedelta) -> tuple[ErrorCount, ...]:
    """What went wrong in the last `window`, the most frequent first; of each code only the newest are counted."""
    return tuple(await database.fetch(THROUGHPUT.errors, window, MOST_OF_A_CODE))
