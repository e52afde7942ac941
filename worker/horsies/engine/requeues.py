"""Tasks that an operator had stopped here, on their way back into the queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from horsies.errors import HorsiesError, on_one_line
from horsies.model.task import TaskStatus
from horsies.store.actions import Target, put_back

if TYPE_CHECKING:
    from horsies.engine.backoff import Backoff
    from horsies.engine.held import Desk, Held
    from horsies.store.db import Database

logger = logging.getLogger("horsies.worker")


class Requeues:
    """Puts back what was stopped, once its process is gone: with its attempt, and without spending a retry."""

    def __init__(self, database: Database, desk: Desk, backoff: Backoff) -> None:
        self._database = database
        self._desk = desk
        self._backoff = backoff

    async def put_back(self, held: Held) -> None:
        """Tried until the database has answered; whoever asked may have moved the row meanwhile."""
        held.child = None  # gone; until its row is moved, the worker speaks for the task
        target = Target(id=held.row.id, status=TaskStatus.RUNNING, claim_token=held.row.claim_token)
        try:
            while not await self._is_stored(target):
                pass
        except HorsiesError as error:
            # No longer on our desk and still in our name, it is given back with the next reconciliation.
            logger.warning("task %s was stopped and could not be put back: %s", held.key.task_id, on_one_line(error))
        finally:
            self._desk.drop(held)

    async def _is_stored(self, target: Target) -> bool:
        try:
            await self._database.run(lambda transaction: put_back(transaction, [target]))
        except HorsiesError as error:
            await self._backoff.wait(error)
            return False
        self._backoff.reset()
        return True
