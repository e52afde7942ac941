"""A database on which sweeps are tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.sweep import sweep
from tests.support.silence import BY_HAND, one

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.recovery.report import SweepReport
    from horsies.store.database import Database
    from tests.support.work import Connection


@dataclass(frozen=True)
class Field:
    """A database with one worker that lives, listens and owns nothing."""

    url: str
    database: Database
    connection: Connection

    async def sweep(self, **options: Any) -> SweepReport:
        return await sweep(self.database, SweepOptions(**options), judge=BY_HAND)

    async def row(self, task_id: UUID, *columns: str) -> tuple[Any, ...]:
        return await one(self.connection, task_id, *columns)

    async def events(self) -> Counter[str]:
        return Counter(row["kind"] for row in await self.connection.fetch("SELECT kind FROM horsies_events"))
