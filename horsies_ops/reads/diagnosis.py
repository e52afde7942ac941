"""What the doctor asks the database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.model.recovery.published import FleetMember
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    worker_id: UUID
    hostname: str
    state: str
    last_heartbeat_at: datetime
    recovery_config: str
    health: str
    at: datetime


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
    fleet: Query[MemberRow]
    orphans: Query[Orphans]
    outbox: Query[Outbox]
    oldest: Query[Oldest]
    search_path: Query[SearchPath]


DIAGNOSIS = load(DiagnosisQueries, "horsies_ops.reads", "diagnosis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Workers that have neither stopped nor been declared lost, and the database's time at which they were seen."""

    members: tuple[FleetMember, ...]
    at: datetime | None

    @property
    def live(self) -> tuple[FleetMember, ...]:
        """Those that have given a sign of life within their own threshold."""
        return tuple(each for each in self.members if self.at is not None and each.is_fresh(self.at))


async def fleet(database: Database) -> Fleet:
    rows = await database.fetch(DIAGNOSIS.fleet)
    members = tuple(
        FleetMember(
            worker_id=row.worker_id,
            state=row.state,
            last_heartbeat_at=row.last_heartbeat_at,
            stored_config=json.loads(row.recovery_config),
            health=json.loads(row.health),
        )
        for row in rows
    )
    return Fleet(members=members, at=rows[0].at if rows else None)


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
