"""Run tasks one at a time in the calling process; used by `horsies.testing.drain`."""

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

if TYPE_CHECKING:
    from horsies.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTask:
    """A RUNNING task of this owner; arguments, flags and options are JSON text."""

    id: UUID
    task_name: str
    queue_name: str
    args: str
    kwargs: str
    context: str | None
    """Workflow context (JSON) that is injected into the call."""
    flags: str
    task_options: str
    claim_token: int
    retry_count: int
    attempts: int
    """Number of earlier attempts."""
    sent_at: datetime
    started_at: datetime
    good_until: datetime | None
    overlap_possible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueTask:
    id: UUID
    good_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneNotificationRow:
    """Task ids of one notification, separated by commas."""

    ids: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """Columns of a failed attempt; `failed_reason` is set if the cause is outside the task's code."""

    outcome: TaskAttemptOutcome
    error_code: str | None
    message: str | None
    failed_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionQueries:
    claim: Query[ClaimedTask]
    complete: Query[UUID]
    fail: Query[UUID]
    retry: Query[UUID]
    overdue: Query[OverdueTask]
    expire: Query[DoneNotificationRow]


EXECUTION = load_queries(ExecutionQueries, "horsies.store", "execution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that claims: stored in the task, and checked by the guard of every later write."""

    worker_id: UUID
    hostname: str
    pid: int

    @classmethod
    def current_process(cls, worker_id: UUID) -> Owner:
        return cls(worker_id=worker_id, hostname=socket.gethostname(), pid=os.getpid())


@dataclass(frozen=True, slots=True)
class ExecutionStore:
    """Claims and finishes tasks for one owner. A write that returns False changed nothing: the claim was lost."""

    database: Database
    owner: Owner

    async def claim(self, *, queues: Sequence[str] | None, excluded: Sequence[str] = ()) -> ClaimedTask | None:
        """Start the next due task of `queues` (None: all queues), except queues in `excluded`."""
        owner = self.owner
        return await self.database.fetch_one(
            EXECUTION.claim, queues, excluded, owner.worker_id, owner.hostname, owner.pid, f"worker-{owner.pid}"
        )

    async def complete(self, task: ClaimedTask, document: str) -> bool:
        return bool(await self.database.fetch(EXECUTION.complete, *self._guard(task), document))

    async def fail(self, task: ClaimedTask, document: str, failure: FailedAttempt) -> bool:
        return bool(await self.database.fetch(EXECUTION.fail, *self._guard(task), document, *_failure_columns(failure)))

    async def retry(self, task: ClaimedTask, due_at: datetime, failure: FailedAttempt) -> bool:
        """Requeue the task for `due_at`; spends one retry."""
        return bool(await self.database.fetch(EXECUTION.retry, *self._guard(task), due_at, *_failure_columns(failure)))

    async def overdue(self, *, queues: Sequence[str] | None) -> list[OverdueTask]:
        """PENDING tasks past their good_until, at most 500."""
        return await self.database.fetch(EXECUTION.overdue, queues)

    async def expire(self, documents: Mapping[UUID, str]) -> None:
        """End overdue tasks, each with the result given."""
        await self.database.fetch(EXECUTION.expire, list(documents), list(documents.values()))

    def _guard(self, task: ClaimedTask) -> tuple[object, ...]:
        return task.id, self.owner.worker_id, task.claim_token


def _failure_columns(failure: FailedAttempt) -> tuple[object, ...]:
    return failure.outcome, failure.error_code, failure.message, failure.failed_reason
