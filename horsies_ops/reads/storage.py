"""What our tables take up, and what keeps the server from tidying them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStorage:
    """One of our tables; rows are as the server's statistics have them."""

    name: str
    bytes: int
    """With its indexes and what was moved out of line."""
    rows: int
    dead_rows: int
    """Versions of rows that nobody can see any more and that await the next vacuum."""
    last_vacuum_at: datetime | None
    """By hand or by itself, whichever was later."""

    @property
    def dead_share(self) -> float:
        """Between 0 and 1."""
        return self.dead_rows / max(self.rows + self.dead_rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that is under way: until it ends, nothing that became dead after its beginning can be removed."""

    pid: int
    application_name: str
    state: str | None
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyQueue:
    usage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageQueries:
    tables: Query[TableStorage]
    oldest_transaction: Query[OpenTransaction]
    notify_queue: Query[NotifyQueue]


STORAGE = load(StorageQueries, "horsies_ops.reads", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    tables: tuple[TableStorage, ...]
    """The largest first."""
    notify_queue: float
    """How full the queue of notifications is, between 0 and 1; at 1 nothing that notifies can commit."""
    longest_transaction: OpenTransaction | None
    """Of others, on this database."""


async def storage(database: Database) -> Storage:
    """How our tables fare; needs none of them."""
    (queue,) = await database.fetch(STORAGE.notify_queue)
    return Storage(
        tables=tuple(await database.fetch(STORAGE.tables)),
        notify_queue=queue.usage,
        longest_transaction=await database.fetch_one(STORAGE.oldest_transaction),
    )
