"""The database's clock, and how long it takes to ask for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockQueries:
    now: Query[Instant]


CLOCK = load(ClockQueries, "horsies_ops.reads", "clock")


async def clock(database: Database) -> datetime:
    """What time it is for the database."""
    (instant,) = await database.fetch(CLOCK.now)
    return instant.at


async def ping(database: Database) -> timedelta:
    """How long an answer takes."""
    asked = time.perf_counter()
    await database.fetch(CLOCK.now)
    return timedelta(seconds=time.perf_counter() - asked)
