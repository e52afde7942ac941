"""Workers as operators see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from datetime import timedelta

    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReadQueries:
    live: Query[Counted]


WORKER_READS = load(WorkerReadQueries, "horsies_ops.reads", "workers")


async def live_workers(database: Database, *, threshold: timedelta) -> int:
    """How many workers have not stopped and have given a sign of life within `threshold`."""
    (found,) = await database.fetch(WORKER_READS.live, threshold)
    return found.count
