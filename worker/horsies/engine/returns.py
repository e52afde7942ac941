"""Giving back what is ours in the table and never began here: no attempt, no retry, no crash."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from horsies.engine.held import Held, Phase
from horsies.engine.messages import Key
from horsies.model.task import TaskStatus
from horsies.store.fleet import WorkerState
from horsies.store.work import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from horsies.engine.parts import Parts
    from horsies.store.work import MovedRow


class Returns:
    """What is to be given back, and what is found to be ours without our knowing."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._unbegun: list[Held] = []
        self._reconciled_at = time.monotonic()

    def add(self, helds: Iterable[Held]) -> None:
        """RUNNING in the table, and handed to nobody who has begun it."""
        self._unbegun += helds

    async def give_back(self) -> None:
        """Store what was added; kept for the next time where the database does not answer."""
        back = list(self._unbegun)
        if not back:
            return
        rows = await self._parts.claims.give_back([held.hold for held in back])
        del self._unbegun[: len(back)]
        self._tell(TaskStatus.RUNNING, back, rows)
        for held in back:
            self._parts.desk.drop(held)

    async def release_waiting(self) -> None:
        """Give up claims that wait for a place."""
        waiting = self._parts.desk.all(Phase.WAITING)
        if waiting:
            rows = await self._parts.claims.release([held.hold for held in waiting])
            self._tell(TaskStatus.CLAIMED, waiting, rows)
        for held in waiting:
            self._parts.desk.drop(held)

    async def reconcile_in_time(self) -> None:
        """Once per check interval: a statement that was given up may have been carried out long after."""
        if (time.monotonic() - self._reconciled_at) * 1000 >= self._parts.app.recovery.check_interval_ms:
            await self.reconcile()

    async def reconcile(self) -> None:
        """Give back what names this worker and was never handed over: the answer to its claim or start was lost.

        A former id under which nothing is held any more has stopped.
        """
        parts, identity = self._parts, self._parts.identity
        for worker_id in (*identity.former_ids, identity.worker_id):
            sent_at = time.monotonic()
            rows = await parts.claims.owned(worker_id)
            parts.gate.passed(sent_at)
            await self._put_back([row for row in rows if self._is_unheard(row)], worker_id)
            if not rows and worker_id in identity.former_ids:
                await parts.fleet.set_state(worker_id, WorkerState.STOPPED)
                identity.former_ids.remove(worker_id)
        self._reconciled_at = time.monotonic()

    def _tell(self, source: TaskStatus, helds: Iterable[Held], rows: Sequence[MovedRow]) -> None:
        status = {(row.id, row.claim_token): TaskStatus(row.status) for row in rows}
        for target in set(status.values()):
            moved = [held for held in helds if status.get((held.row.id, held.row.claim_token)) is target]
            self._parts.reporter.moved_unbegun(moved, source, target)

    def _is_unheard(self, row: MovedRow) -> bool:
        held = self._parts.desk.get(_key(row))
        return held is None or (held.phase is Phase.WAITING and row.status == TaskStatus.RUNNING)

    async def _put_back(self, rows: Sequence[MovedRow], worker_id: UUID) -> None:
        claims, desk = self._parts.claims, self._parts.desk
        if claimed := [_hold(row, worker_id) for row in rows if row.status == TaskStatus.CLAIMED]:
            await claims.release(claimed)
        if running := [_hold(row, worker_id) for row in rows if row.status == TaskStatus.RUNNING]:
            await claims.give_back(running)
        for row in rows:
            if (held := desk.get(_key(row))) is not None:
                desk.drop(held)


def _key(row: MovedRow) -> Key:
    return Key(str(row.id), row.claim_token)


def _hold(row: MovedRow, worker_id: UUID) -> Hold:
    return Hold(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)
