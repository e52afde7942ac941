"""What happened between two instants, for counters that never go back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from horsies.store.db import Database, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    queue: str
    status: str
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Executions that fell between two bounds; part 0 is below the first."""

    part: int
    executions: int
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    kind: str
    decision: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteringQueries:
    bounds: Query[Bounds]
    finished: Query[Finished]
    durations: Query[Durations]
    events: Query[Events]


METERING = load(MeteringQueries, "horsies_ops.reads", "metering")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """What happened until then."""

    until: datetime
    finished: tuple[Finished, ...] = ()
    durations: tuple[Durations, ...] = ()
    events: tuple[Events, ...] = ()


async def metered(database: Database, *, since: datetime | None, bounds_s: Sequence[float]) -> Metered:
    """What happened since the `until` of the call before; without one, only from when on the next will count.

    Nothing is counted twice, and nothing is left out that a statement of ours committed.
    """

    async def read(transaction: Transaction) -> Metered:
        (now,) = await transaction.fetch(METERING.bounds)
        if since is None or since >= now.until:
            return Metered(until=since or now.until)
        span = (since, now.until)
        return Metered(
            until=now.until,
            finished=tuple(await transaction.fetch(METERING.finished, *span)),
            durations=tuple(await transaction.fetch(METERING.durations, *span, list(bounds_s))),
            events=tuple(await transaction.fetch(METERING.events, *span)),
        )

    return await database.run(read)
