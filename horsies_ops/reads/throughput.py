"""How much is done, how long it takes, and what goes wrong, over a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A stretch of time that begins `at`; `done` tasks completed in it, `failed` ones failed."""

    at: datetime
    done: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Buckets from the oldest on, and how long the tasks that ended last in the window waited and ran."""

    buckets: tuple[Bucket, ...]
    wait_p50: timedelta | None
    wait_p95: timedelta | None
    run_p50: timedelta | None
    run_p95: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """How many tasks of one name ended with one code."""

    name: str
    code: str
    count: int


async def throughput(database: Database, window: timedelta, buckets: int = 30) -> Throughput:
    """What was done in the last `window`; a bucket with very many tasks is reckoned from a part of it."""
    raise NotImplementedError


async def error_summary(database: Database, window: timedelta) -> tuple[ErrorCount, ...]:
    """What went wrong in the last `window`, the most frequent first; of each code only the newest are counted."""
    raise NotImplementedError
