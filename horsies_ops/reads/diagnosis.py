"""What the doctor asks the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from datetime import timedelta

    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Nodes whose outcome is stored and whose run has not been advanced yet."""

    waiting: int
    quarantined: int
    """Those that failed so often that they are tried only now and then."""
    oldest: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Oldest:
    category: str
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPath:
    search_path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisQueries:
    orphans: Query[Orphans]
    outbox: Query[Outbox]
    oldest: Query[Oldest]
    search_path: Query[SearchPath]


DIAGNOSIS = load(DiagnosisQueries, "horsies_ops.reads", "diagnosis")


async def orphans(database: Database) -> int:
    """How many claimed and running tasks have an owner that is gone."""
    (found,) = await database.fetch(DIAGNOSIS.orphans)
    return found.tasks


async def outbox(database: Database) -> Outbox:
    (found,) = await database.fetch(DIAGNOSIS.outbox)
    return found


async def oldest(database: Database) -> dict[str, timedelta]:
    """How long ago the oldest row that retention may take came to its end, by category."""
    return {row.category: row.age for row in await database.fetch(DIAGNOSIS.oldest)}


async def search_path(database: Database) -> str:
    """The search path of a session in which nobody has set one."""
    (found,) = await database.fetch(DIAGNOSIS.search_path)
    return found.search_path or ""
