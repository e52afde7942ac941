"""Runs are paused, resumed, ended early and begun again, each with all runs below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.store.connection import StatementFailed
from horsies.store.queries import Query, load
from horsies.store.workflows import DueRun  # noqa: TC001  # `load` reads the annotations

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from horsies.store.database import Database, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """The results of tasks that are taken back: as they are stored, by what they say."""

    cancelled: str
    expired: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retriable:
    """A run of a tree that would go on, and how many of its nodes would begin again."""

    id: UUID
    status: str
    lost_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetNode:
    """A node that begins again, and the task that it had."""

    workflow_id: UUID
    node_id: str
    task_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStanding:
    id: UUID
    status: str
    is_root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunId:
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControlQueries:
    lock_tree: Query[DueRun]
    pause: Query[Told]
    go_on: Query[None]
    end_early: Query[Told]
    retriable: Query[Retriable]
    reset_nodes: Query[ResetNode]
    standing: Query[RunStanding]
    long_paused: Query[RunId]


FLOW_CONTROL = load(FlowControlQueries, "horsies.store", "flow_control")


@dataclass(frozen=True, slots=True)
class TreeWrites:
    """A run and those below it, inside one transaction that holds all their locks."""

    transaction: Transaction

    async def standing(self, workflow_id: UUID) -> RunStanding | None:
        """How a run stands, before anything is locked; None where there is no such run."""
        return next(iter(await self.transaction.fetch(FLOW_CONTROL.standing, workflow_id)), None)

    async def lock(self, workflow_id: UUID) -> list[DueRun]:
        """Lock the tree below a run, and the run; none where there is no such run."""
        runs = await self.transaction.fetch(FLOW_CONTROL.lock_tree, workflow_id)
        while len(again := await self.transaction.fetch(FLOW_CONTROL.lock_tree, workflow_id)) > len(runs):
            runs = again
        return again

    async def pause(
        self, runs: Collection[UUID], results: TakenBack, *, because_of: tuple[UUID, int] | None = None
    ) -> None:
        """Pause these runs; the error of one is that of the node that is to blame, where there is one."""
        blamed, index = because_of or (None, None)
        await self.transaction.fetch(FLOW_CONTROL.pause, list(runs), blamed, index, results.cancelled, results.expired)

    async def go_on(self, runs: Collection[UUID], *, is_new_generation: bool = False) -> None:
        await self.transaction.execute(FLOW_CONTROL.go_on, list(runs), is_new_generation)

    async def end_early(
        self, runs: Collection[UUID], status: str, error: str, results: TakenBack, *, kill: bool = False
    ) -> None:
        await self.transaction.fetch(
            FLOW_CONTROL.end_early, list(runs), status, error, results.cancelled, results.expired, kill
        )

    async def retriable(self, workflow_id: UUID) -> list[Retriable]:
        return await self.transaction.fetch(FLOW_CONTROL.retriable, workflow_id)

    async def reset_nodes(self, runs: Collection[UUID]) -> list[ResetNode]:
        return await self.transaction.fetch(FLOW_CONTROL.reset_nodes, list(runs))


async def long_paused(database: Database, *, longer_than_s: float, limit: int) -> list[UUID]:
    """Runs that have been paused for so long, the longest first."""
    return [row.id for row in await database.fetch(FLOW_CONTROL.long_paused, longer_than_s, limit)]


# What was left lying about by those who died: found without locks.

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
