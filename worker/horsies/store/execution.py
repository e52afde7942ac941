"""Running tasks one at a time: claimed, and brought to an end by whoever claimed them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.model.task import TaskAttemptOutcome
from horsies.store.queries import Query, load_queries
from horsies.store.tasks import IdRow  # `load` reads the annotations

if TYPE_CHECKING:
    from horsies.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTask:
    """A task that is RUNNING in our hands; arguments, flags and options are JSON text."""

    id: UUID
    task_name: str
    queue_name: str
    args: str
    kwargs: str
    context: str | None
    """What a workflow adds to the arguments."""
    flags: str
    task_options: str
    claim_token: int
    retry_count: int
    attempts: int
    """Attempts that came to an end before this one."""
    sent_at: datetime
    started_at: datetime
    good_until: datetime | None
    overlap_possible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueTask:
    id: UUID
    good_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Ids that one notification named."""

    ids: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt that failed, as it is told in its row; `failed_reason` where the task's own code is not to blame."""

    outcome: TaskAttemptOutcome
    error_code: str | None
    message: str | None
    failed_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionQueries:
    claim: Query[ClaimedTask]
    complete: Query[IdRow]
    fail: Query[IdRow]
    retry: Query[IdRow]
    overdue: Query[OverdueTask]
    expire: Query[Told]


EXECUTION = load_queries(ExecutionQueries, "horsies.store", "execution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who claims: written into the rows, and asked for in the guard of every later write."""

    worker_id: UUID
    hostname: str
    pid: int

    @classmethod
    def here(cls, worker_id: UUID) -> Owner:
        return cls(worker_id=worker_id, hostname=socket.gethostname(), pid=os.getpid())


@dataclass(frozen=True, slots=True)
class ExecutionStore:
    """Tasks of one database, run by one owner. A write that returns False changed nothing: the task was lost."""

    database: Database
    owner: Owner

    async def claim(self, *, queues: Sequence[str] | None, closed: Sequence[str] = ()) -> ClaimedTask | None:
        """Start the next task that is due in `queues` (None: in any) but those `closed`."""
        owner = self.owner
        return await self.database.fetch_one(
            EXECUTION.claim, queues, closed, owner.worker_id, owner.hostname, owner.pid, f"worker-{owner.pid}"
        )

    async def complete(self, task: ClaimedTask, document: str) -> bool:
        return bool(await self.database.fetch(EXECUTION.complete, *self._guard(task), document))

    async def fail(self, task: ClaimedTask, document: str, failure: Failure) -> bool:
        return bool(await self.database.fetch(EXECUTION.fail, *self._guard(task), document, *_columns(failure)))

    async def retry(self, task: ClaimedTask, due_at: datetime, failure: Failure) -> bool:
        """Put the task back, to be claimed from `due_at`; one retry is spent."""
        return bool(await self.database.fetch(EXECUTION.retry, *self._guard(task), due_at, *_columns(failure)))

    async def overdue(self, *, queues: Sequence[str] | None) -> list[OverdueTask]:
        """At most 500 PENDING tasks past their good_until."""
        return await self.database.fetch(EXECUTION.overdue, queues)

    async def expire(self, documents: Mapping[UUID, str]) -> None:
        """End overdue tasks with the result given for each."""
        await self.database.fetch(EXECUTION.expire, list(documents), list(documents.values()))

    def _guard(self, task: ClaimedTask) -> tuple[object, ...]:
        return task.id, self.owner.worker_id, task.claim_token


def _columns(failure: Failure) -> tuple[object, ...]:
    return failure.outcome, failure.error_code, failure.message, failure.failed_reason
