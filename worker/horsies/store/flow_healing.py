"""What was left lying about by those who died: found without locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.store.failures import StatementFailed
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from horsies.store.db import Database, Transaction

_LOCK_NOT_AVAILABLE: Final = "55P03"


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRun:
    """A run in which something is due, and the case of the specification that it is of."""

    workflow_id: UUID
    stuck_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A task without a node to wait for it."""

    id: UUID
    workflow_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowHealingQueries:
    stuck: Query[StuckRun]
    orphans: Query[Orphan]
    cancel_orphans: Query[Orphan]
    ask: Query[None]
    hurry: Query[None]
    try_quarantined: Query[None]


FLOW_HEALING = load(FlowHealingQueries, "horsies.store", "flow_healing")


async def hurry(transaction: Transaction, *, patience_ms: int) -> None:
    """From now on a lock that another hand keeps longer is an error, of which `is_held` is true."""
    await transaction.execute(FLOW_HEALING.hurry, str(patience_ms))


def is_held(error: BaseException) -> bool:
    """Whether a lock was waited for in vain."""
    return isinstance(error, StatementFailed) and error.sqlstate == _LOCK_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class FlowHealingStore:
    """Loose ends of one database."""

    database: Database

    async def stuck(self, limit: int) -> list[StuckRun]:
        """Runs to be advanced, at most so many of each case."""
        return await self.database.fetch(FLOW_HEALING.stuck, limit)

    async def orphans(self, limit: int) -> list[Orphan]:
        return await self.database.fetch(FLOW_HEALING.orphans, limit)

    async def cancel_orphans(self, task_ids: Collection[UUID], document: str) -> list[Orphan]:
        return await self.database.fetch(FLOW_HEALING.cancel_orphans, list(task_ids), document)

    async def ask(self, workflow_id: UUID) -> None:
        """Have a run asked for, where nothing asks for it yet."""
        await self.database.execute(FLOW_HEALING.ask, workflow_id)

    async def try_quarantined(self) -> None:
        await self.database.execute(FLOW_HEALING.try_quarantined)
