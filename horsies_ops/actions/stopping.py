"""Running tasks that are requeued: their owners are asked to stop them first, and given a few seconds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from horsies.model.task import TaskStatus
from horsies.store.actions import ActedRow, after_kill, request_kill

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from horsies.store.actions import Target
    from horsies.store.db import Database, Transaction

WAIT_S: Final = 5.0
"""How long owners have; then the row is moved without them, and its next run is told that the old one may live."""
LOOK_EVERY_S: Final = 0.1


class Stopping:
    """Tasks that run, on their way out of their owners' hands. An owner that stops one puts it back itself."""

    def __init__(self, database: Database, targets: Sequence[Target]) -> None:
        self._database = database
        self.targets = targets
        self._awaited: set[UUID] = set()
        self.not_stopped: set[UUID] = {target.id for target in targets}
        """Those that no owner has put back."""

    async def ask(self, transaction: Transaction) -> None:
        marked = await request_kill(transaction, self.targets)
        # Nobody is there to stop what a dead worker left behind.
        self._awaited = {row.id for row in marked if row.has_live_owner}

    async def wait(self) -> None:
        """Until every task that a live worker has is out of its hands, or the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S
        while loop.time() < until and await self._database.run(self._are_some_running):  # noqa: ASYNC110  # other processes set no events
            await asyncio.sleep(LOOK_EVERY_S)

    async def put_back_by_owners(self, transaction: Transaction) -> list[ActedRow]:
        """Those that their owners have put back; the others still run, or ended by themselves."""
        if not self.targets:
            return []
        tokens = {target.id: target.claim_token for target in self.targets}
        return [
            ActedRow(
                id=row.id,
                claim_token=tokens[row.id],
                queue_name=row.queue_name,
                from_status=TaskStatus.RUNNING,
                status=row.status,
                worker_id=None,
                new_id=None,
            )
            for row in await after_kill(transaction, self.targets)
            if row.is_put_back and not row.is_still_running
        ]

    async def _are_some_running(self, transaction: Transaction) -> bool:
        awaited = [target for target in self.targets if target.id in self._awaited]
        return bool(awaited) and any(row.is_still_running for row in await after_kill(transaction, awaited))
