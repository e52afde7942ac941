"""What a sweep at an operator's word leaves on record, while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from horsies.store.audit import Done

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from horsies.store.db import Database, Transaction
    from horsies.store.recovery import Noting


class Record(Protocol):
    """The one row of a sweep, true at every moment: what cuts a sweep off does not cut off what is known of it."""

    async def begin(self) -> None:
        """The turn is ours, and nothing has been done yet."""
        ...

    async def add(self, transaction: Transaction, done: Done) -> None:
        """Some of it is done, in this transaction."""
        ...


@dataclass(frozen=True, slots=True)
class Book:
    """Where one sweep notes its deeds; without a record, nowhere."""

    database: Database
    record: Record | None

    async def begin(self) -> None:
        if self.record is not None:
            await self.record.begin()

    @property
    def noting(self) -> Noting | None:
        """For the transactions that move tasks."""
        record = self.record
        if record is None:
            return None

        async def note(transaction: Transaction, task_ids: Sequence[UUID]) -> None:
            await record.add(transaction, Done(matched=len(task_ids), affected=len(task_ids), task_ids=task_ids))

        return note

    async def skipped(self, number: int) -> None:
        """So many were to be moved, and another hand was quicker or the database refused."""
        await self._add(number, Done(matched=number, skipped=number))

    async def healed(self, number: int) -> None:
        await self._add(number, Done(matched=number, affected=number))

    async def _add(self, number: int, done: Done) -> None:
        record = self.record
        if number and record is not None:
            await self.database.run(lambda transaction: record.add(transaction, done))
