"""The operator's hand on one database: every action of `Ops` comes through here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from horsies.errors import Refused
from horsies.model.actions import Action, ActionOptions
from horsies.model.task import TaskStatus
from horsies_ops.actions.applying import apply, look_only
from horsies_ops.actions.operator import operator_at
from horsies_ops.actions.planning import plan
from horsies_ops.actions.selector import Selector

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from horsies.store.audit import Operator
    from horsies.store.db import Database, Transaction
    from horsies_ops.actions.plan import Plan
    from horsies_ops.actions.report import ActionReport, Progress
    from horsies_ops.actions.selector import Which

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Hand:
    """A database, and who changes it."""

    database: Database
    operator: Operator

    @classmethod
    def of(cls, actor: str | None, *, via: str, on: Database) -> Hand:
        return cls(on, operator_at(actor, via))

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Change something in one transaction; a read-only connection is refused before the database has to."""
        self.require_writing()
        return await self.database.run(work)

    def require_writing(self) -> None:
        if self.database.link.read_only:
            raise Refused("this connection is read-only", hint="open it without read_only to act")

    async def act(self, action: Action, which: Which, options: ActionOptions, *, dry_run: bool = False) -> ActionReport:
        """Plan and apply in one go, for those who need no preview."""
        planned = await plan(self.database, action, Selector.of(which), options)
        return await (self.look(planned) if dry_run else self.apply(planned))

    async def apply(
        self,
        planned: Plan,
        *,
        progress: Callable[[Progress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> ActionReport:
        self.require_writing()
        return await apply(self.database, planned, self.operator, progress=progress, stop=stop)

    async def look(self, planned: Plan) -> ActionReport:
        self.require_writing()
        return await look_only(self.database, planned, self.operator)

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        """Take a retry back: cancel those of its new tasks that nobody has claimed yet."""
        if report.action != Action.RETRY:
            raise ValueError(f"only a retry can be taken back, not {report.action}")
        options = ActionOptions(reason=f"retry taken back (audit {report.audit_id})")
        planned = await plan(self.database, Action.CANCEL, Selector.of_ids(report.new_ids), options)
        return await self.apply(planned.only(TaskStatus.PENDING))
