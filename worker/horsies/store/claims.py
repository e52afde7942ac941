"""Tasks come into a worker's hands, begin, or are given up before they began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from pydantic import JsonValue

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.model.capacity import QueueCapacity
from horsies.model.task import TaskAttemptOutcome, TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database


# What a worker holds, as every statement that moves its tasks is told.


class ClaimRef(NamedTuple):
    """A task in a worker's hands, under the token of its claim; worth nothing once the row has another."""

    task_id: UUID
    claim_token: int
    worker_id: UUID


class ClaimKeyRow(NamedTuple):
    """A row that was still held as asked."""

    id: UUID
    claim_token: int


class ClaimStatusRow(NamedTuple):
    """A row that was still held as asked, and where it stands since."""

    id: UUID
    claim_token: int
    status: str


def claim_arrays(claims: Sequence[ClaimRef]) -> tuple[list[UUID], list[int], list[UUID]]:
    """The three arrays that guard a statement: ids, tokens, owners."""
    return (
        [hold.task_id for hold in claims],
        [hold.claim_token for hold in claims],
        [hold.worker_id for hold in claims],
    )


def _cancelled(because: str) -> JsonValue:
    error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message=f"not started again: its workflow was {because}")
    return {"err": encode_task_error(error)}


NO_RESTART_RESULTS = canonical_json({mark: _cancelled(mark) for mark in ("paused", "cancelled")})
"""Results of tasks that would start again but must not, by what `no_restart` says; JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a worker can take now.

    The first tasks start at once, one in each child of `pids`; the others are CLAIMED, with a lease where `lease_s` is
    given. At most `limit` in all.
    """

    worker_id: UUID
    hostname: str
    queues: Sequence[QueueCapacity]
    limit: int
    pids: Sequence[int] = ()
    lease_s: float | None = None
    cluster_cap: int | None = None

    @property
    def may_return_fewer(self) -> bool:
        """Whether it may return less than `limit` though there is more: caps, and rooms of single queues."""
        return self.cluster_cap is not None or any(
            queue.cap is not None or queue.capacity < self.limit for queue in self.queues
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
class TaskStart:
    """A claimed task, and the child that it is about to be handed to."""

    claim: ClaimRef
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExpiry:
    """A claimed task that is past its good_until, and the stored result that says so."""

    claim: ClaimRef
    document: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimQueries:
    claim: Query[ClaimedRow]
    start: Query[ClaimKeyRow]
    expire: Query[ClaimKeyRow]
    release: Query[ClaimStatusRow]
    owned: Query[ClaimStatusRow]


CLAIMS = load_queries(ClaimQueries, "horsies.store", "claims")


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
            [queue.capacity for queue in request.queues],
            [queue.cap for queue in request.queues],
            request.limit,
            request.cluster_cap,
            request.lease_s,
            request.worker_id,
            request.hostname,
            request.pids,
        )
        return sorted(rows)

    async def start(self, starts: Sequence[TaskStart], *, hostname: str) -> list[ClaimKeyRow]:
        """Begin claimed tasks whose lease is valid and whose good_until is not over."""
        columns = claim_arrays([start.claim for start in starts])
        return await self.database.fetch(CLAIMS.start, *columns, [start.pid for start in starts], hostname)

    async def expire(self, expiries: Sequence[TaskExpiry]) -> list[ClaimKeyRow]:
        """End claimed tasks that are past their good_until."""
        columns = claim_arrays([expiry.claim for expiry in expiries])
        return await self.database.fetch(CLAIMS.expire, *columns, [expiry.document for expiry in expiries])

    async def release(self, claims: Sequence[ClaimRef]) -> list[ClaimStatusRow]:
        """Give up claimed tasks; they cost nothing and keep their place in the queue."""
        return await self._release(claims, TaskStatus.CLAIMED)

    async def release_running(self, claims: Sequence[ClaimRef]) -> list[ClaimStatusRow]:
        """Give up RUNNING tasks whose code was never begun; as `release`."""
        return await self._release(claims, TaskStatus.RUNNING)

    async def owned(self, worker_id: UUID) -> list[ClaimStatusRow]:
        """Everything CLAIMED or RUNNING that names this worker."""
        return await self.database.fetch(CLAIMS.owned, worker_id)

    async def _release(self, holds: Sequence[ClaimRef], status: TaskStatus) -> list[ClaimStatusRow]:
        return await self.database.fetch(CLAIMS.release, *claim_arrays(holds), status, NO_RESTART_RESULTS)


# Running tasks come to an end, or back for another attempt.


class FinishedAttempt(NamedTuple):
    """How an execution ended, and what shall become of its task.

    `document` is stored if the task ends here. With `retry_delay_s` it is run again instead, that long from now, where
    retries are left, good_until allows and its workflow was neither paused nor cancelled.
    """

    claim: ClaimRef
    outcome: TaskAttemptOutcome
    document: str
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    """Why it failed where the task's own code is not to blame; stays on the row until it completes."""
    retry_delay_s: float | None = None
    poison_document: str | None = None
    """Given for a crash, and only then: stored in place of `document` when this crash is one too many."""
    pid: int | None = None
    """The process that ran it, where it may be another than the one it was started for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcomeRow:
    """An attempt that is on record."""

    id: UUID
    claim_token: int
    outcome: str
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStateRow:
    """Who has a task, and since when: the evidence for an outcome that was refused."""

    id: UUID
    status: str
    claim_token: int
    worker_id: UUID | None
    claimed_at: datetime | None
    started_at: datetime | None
    terminal_at: datetime | None
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishQueries:
    finish: Query[ClaimStatusRow]
    complete: Query[ClaimStatusRow]
    attempts_by_claim: Query[AttemptOutcomeRow]
    current_states: Query[TaskStateRow]


FINISHES = load_queries(FinishQueries, "horsies.store", "finishes")


@dataclass(frozen=True, slots=True)
class FinishStore:
    """Outcomes in one database."""

    database: Database

    async def finish(
        self, finishes: Sequence[FinishedAttempt], *, max_crashes: int, events: Sequence[str] = ()
    ) -> list[ClaimStatusRow]:
        """Store a batch in one statement, or in one for those that completed and one for the others, with messages for
        viewers riding along.

        Returns where each task stands now; PENDING is a retry. One that does not come back was refused: another hand
        moved it first, or the same batch has been stored before (`outcome_of` tells).
        """
        completed = [each for each in finishes if each.outcome is TaskAttemptOutcome.COMPLETED]
        if len(completed) == len(finishes):
            return await self._complete(completed, events)
        # These first: where one is refused, nothing of the batch is stored, as if it were one statement.
        moved = await self._complete(completed, ()) if completed else []
        judged = [each for each in finishes if each.outcome is not TaskAttemptOutcome.COMPLETED]
        return moved + await self.database.fetch(
            FINISHES.finish, *_columns(judged), max_crashes, NO_RESTART_RESULTS, events
        )

    async def _complete(self, finishes: Sequence[FinishedAttempt], events: Sequence[str]) -> list[ClaimStatusRow]:
        return await self.database.fetch(
            FINISHES.complete,
            *claim_arrays([each.claim for each in finishes]),
            [each.document for each in finishes],
            [each.pid for each in finishes],
            events,
        )

    async def recorded_outcomes(self, claims: Sequence[ClaimRef]) -> list[AttemptOutcomeRow]:
        """The attempts on record under exactly these claims."""
        ids, tokens, _ = claim_arrays(claims)
        return await self.database.fetch(FINISHES.attempts_by_claim, ids, tokens)

    async def current_states(self, task_ids: Sequence[UUID]) -> list[TaskStateRow]:
        return await self.database.fetch(FINISHES.current_states, task_ids)


def _columns(finishes: Sequence[FinishedAttempt]) -> tuple[object, ...]:
    return (
        *claim_arrays([each.claim for each in finishes]),
        [each.outcome for each in finishes],
        [each.document for each in finishes],
        [each.error_code for each in finishes],
        [each.error_message for each in finishes],
        [each.failed_reason for each in finishes],
        [each.retry_delay_s for each in finishes],
        [each.poison_document for each in finishes],
        [each.pid for each in finishes],
    )
