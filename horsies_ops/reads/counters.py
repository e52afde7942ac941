"""Increments of the Prometheus counters: what finished, how long it took and which events occurred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from horsies.store.database import Database, Transaction
from horsies.store.queries import Query, load_queries


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterIncrements:
    """What happened up to `until`, since the previous read."""

    until: datetime
    finished: tuple[FinishedCount, ...] = ()
    durations: tuple[DurationBucket, ...] = ()
    events: tuple[EventCount, ...] = ()


class FinishedCount(NamedTuple):
    queue: str
    status: str
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationBucket:
    """Attempts whose duration fell between two bounds; index 0 is below the first bound."""

    index: int
    attempts: int
    total_s: float


class EventCount(NamedTuple):
    kind: str
    decision: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterQueries:
    cutoff: Query[datetime]
    finished: Query[FinishedCount]
    durations: Query[DurationBucket]
    events: Query[EventCount]


COUNTERS = load_queries(CounterQueries, "horsies_ops.reads", "counters")


async def read_increments(
    database: Database, *, since: datetime | None, bucket_bounds_s: Sequence[float]
) -> CounterIncrements:
    """Return what happened since the `until` of the previous call; without `since`, only an `until` to start from.

    Counts no row twice and misses none, even if one of our transactions commits late.
    """

    async def read(transaction: Transaction) -> CounterIncrements:
        until = await transaction.fetch_single(COUNTERS.cutoff)
        # An open transaction may hold the cutoff back; `until` never decreases.
        if since is None or since >= until:
            return CounterIncrements(until=since or until)
        interval = (since, until)
        return CounterIncrements(
            until=until,
            finished=tuple(await transaction.fetch(COUNTERS.finished, *interval)),
            durations=tuple(await transaction.fetch(COUNTERS.durations, *interval, list(bucket_bounds_s))),
            events=tuple(await transaction.fetch(COUNTERS.events, *interval)),
        )

    return await database.run(read)
