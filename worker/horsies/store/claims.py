"""Tasks come into a worker's hands, begin, or are given up before they began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from horsies.model.task import TaskStatus
from horsies.store.queries import Query, load
from horsies.store.work import CANCELLED_DOCUMENTS, HeldRow, MovedRow, hold_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.model.claiming import QueueRoom
    from horsies.store.db import Database
    from horsies.store.work import Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a worker can take now.

    The first tasks start at once, one in each child of `pids`; the others are CLAIMED, with a lease where `lease_s` is
    given. At most `limit` in all.
    """

    worker_id: UUID
    hostname: str
    queues: Sequence[QueueRoom]
    limit: int
    pids: Sequence[int] = ()
    lease_s: float | None = None
    cluster_cap: int | None = None

    @property
    def is_held_back(self) -> bool:
        """Whether it may return less than `limit` though there is more: caps, and rooms of single queues."""
        return self.cluster_cap is not None or any(
            queue.cap is not None or queue.room < self.limit for queue in self.queues
        )


class ClaimedRow(NamedTuple):
    """A task as its claim left it; payload, context, options and flags are JSON text."""

    place: int
    """From 1, in the order of priority, time and id over all queues."""
    id: UUID
    claim_token: int
    status: str
    task_name: str
    queue_name: str
    args: str
    kwargs: str
    context: str | None
    task_options: str
    flags: str
    retry_count: int
    max_retries: int
    attempts: int
    """Attempts that came to an end before this one."""
    crash_count: int
    sent_at: datetime
    good_until: datetime | None
    overlap_possible: bool
    is_workflow_task: bool
    worker_pid: int | None
    """The child that a RUNNING task belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A claimed task, and the child that it is about to be handed to."""

    hold: Hold
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """A claimed task that is past its good_until, and the stored result that says so."""

    hold: Hold
    document: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimQueries:
    claim: Query[ClaimedRow]
    start: Query[HeldRow]
    expire: Query[HeldRow]
    put_back: Query[MovedRow]
    owned: Query[MovedRow]


CLAIMS = load(ClaimQueries, "horsies.store", "claims")


@dataclass(frozen=True, slots=True)
class ClaimStore:
    """Claims in one database. Rows that a method does not return were moved by another hand, or may not move so."""

    database: Database

    async def claim(self, request: ClaimRequest) -> list[ClaimedRow]:
        """Take what is due, in claim order; no cap is ever exceeded, however many workers claim at once.

        A lapsed lease comes back CLAIMED even where a child was named for it, and so does a node of a workflow while
        another hand holds it.
        """
        rows = await self.database.fetch(
            CLAIMS.claim,
            [queue.name for queue in request.queues],
            [queue.room for queue in request.queues],
            [queue.cap for queue in request.queues],
            request.limit,
            request.cluster_cap,
            request.lease_s,
            request.worker_id,
            request.hostname,
            request.pids,
        )
        return sorted(rows)

    async def start(self, starts: Sequence[Start], *, hostname: str) -> list[HeldRow]:
        """Begin claimed tasks whose lease is valid and whose good_until is not over."""
        columns = hold_columns([start.hold for start in starts])
        return await self.database.fetch(CLAIMS.start, *columns, [start.pid for start in starts], hostname)

    async def expire(self, expiries: Sequence[Expiry]) -> list[HeldRow]:
        """End claimed tasks that are past their good_until."""
        columns = hold_columns([expiry.hold for expiry in expiries])
        return await self.database.fetch(CLAIMS.expire, *columns, [expiry.document for expiry in expiries])

    async def release(self, holds: Sequence[Hold]) -> list[MovedRow]:
        """Give up claimed tasks; they cost nothing and keep their place in the queue."""
        return await self._put_back(holds, TaskStatus.CLAIMED)

    async def give_back(self, holds: Sequence[Hold]) -> list[MovedRow]:
        """Give up RUNNING tasks whose code was never begun; as `release`."""
        return await self._put_back(holds, TaskStatus.RUNNING)

    async def owned(self, worker_id: UUID) -> list[MovedRow]:
        """Everything CLAIMED or RUNNING that names this worker."""
        return await self.database.fetch(CLAIMS.owned, worker_id)

    async def _put_back(self, holds: Sequence[Hold], status: TaskStatus) -> list[MovedRow]:
        return await self.database.fetch(CLAIMS.put_back, *hold_columns(holds), status, CANCELLED_DOCUMENTS)
