"""Claims: claim due tasks, start them, release them, and store the outcomes of their attempts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.model.capacity import QueueCapacity
from horsies.model.task import TaskAttemptOutcome, TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.store.connection import LockTimeout
from horsies.store.database import CLAIM_LOCK, lock_holders
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database


class ClaimRef(NamedTuple):
    """One claim of a task. Every write is guarded by it and has no effect once the row has another token or owner."""

    task_id: UUID
    claim_token: int
    worker_id: UUID


class ClaimKeyRow(NamedTuple):
    """A task whose claim was still valid."""

    id: UUID
    claim_token: int


class ClaimStatusRow(NamedTuple):
    """A task whose claim was still valid, with its new status."""

    id: UUID
    claim_token: int
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """How many tasks a worker can take now, and from which queues; at most `limit` in total.

    The first tasks become RUNNING, one for each child in `pids`; the others CLAIMED, with a lease if `lease_s` is set.
    """

    worker_id: UUID
    hostname: str
    queues: Sequence[QueueCapacity]
    limit: int
    pids: Sequence[int] = ()
    lease_s: float | None = None
    cluster_cap: int | None = None
    only_tasks: Sequence[str] | None = None
    """Names of the tasks to claim; None: all."""
    except_tasks: Sequence[str] | None = None
    """Names of tasks that are not claimed."""
    skip_before: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """By queue: the time before which all due tasks are in `except_tasks`."""
    takes_expired_leases: bool = True
    """Whether to claim tasks with an expired lease too."""

    @property
    def is_capped(self) -> bool:
        return self.cluster_cap is not None or any(queue.cap is not None for queue in self.queues)

    @property
    def may_return_fewer(self) -> bool:
        """Whether a claim may return fewer than `limit` tasks although more are due, because of caps."""
        return self.is_capped or any(queue.capacity < self.limit for queue in self.queues)

    @property
    def is_for_one_child(self) -> bool:
        """Whether the slimmer statement for tasks that all start in one child can be used."""
        has_one_child = len(self.pids) >= self.limit and len(set(self.pids)) == 1
        return has_one_child and not self.is_capped and not self.takes_expired_leases


class ClaimedRow(NamedTuple):
    """A claimed task; arguments and details are JSON text.

    A child receives the row as it is: `Assignment` in the protocol has the same first fields.
    """

    id: UUID
    claim_token: int
    task_name: str
    queue_name: str
    args: str
    kwargs: str
    sent_at: datetime
    details: str | None
    """An object with the fields of `TaskDetails`; None if all have their defaults."""
    worker_pid: int | None
    """The child that a RUNNING task is assigned to; None if the task is CLAIMED."""
    priority: int
    enqueued_at: datetime


_CLAIM_ORDER = attrgetter("priority", "enqueued_at", "id")
READ_AGAIN = 200
"""How many of the newest unknown tasks a claim reads again, in case that known ones were committed among them."""


class FirstKnownRow(NamedTuple):
    """A time before which no due task of a queue has a known name."""

    queue_name: str
    at: datetime


class FinishedAttempt(NamedTuple):
    """The outcome of an attempt.

    `document` is stored if the task ends with it. With `retry_delay_s` the task is retried after that delay instead, if
    retries are left, it would start before good_until and its workflow was neither paused nor cancelled.
    """

    claim: ClaimRef
    outcome: TaskAttemptOutcome
    document: str
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    """Set if the reason lies outside the task's code; kept on the task until it completes."""
    retry_delay_s: float | None = None
    is_crash: bool = False
    """Whether its process died, which counts as a crash of the task."""
    final_code: str | None = None
    """The task's error code, if it differs from that of the attempt: POISON_TASK for the last crash."""
    pid: int | None = None
    """The process that ran it, if it may differ from the one the task was started in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcomeRow:
    """A recorded attempt."""

    id: UUID
    claim_token: int
    outcome: str
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStateRow:
    """Current owner and status of a task whose outcome was refused."""

    id: UUID
    status: str
    claim_token: int
    worker_id: UUID | None
    claimed_at: datetime | None
    started_at: datetime | None
    terminal_at: datetime | None
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimQueries:
    claim: Query[ClaimedRow]
    claim_chunk: Query[ClaimedRow]
    first_known: Query[FirstKnownRow]
    start: Query[ClaimKeyRow]
    record_children: Query[None]
    expire: Query[ClaimKeyRow]
    release: Query[ClaimStatusRow]
    owned: Query[ClaimStatusRow]
    finish: Query[ClaimStatusRow]
    complete: Query[int]
    attempts_by_claim: Query[AttemptOutcomeRow]
    current_states: Query[TaskStateRow]


CLAIMS = load_queries(ClaimQueries, "horsies.store", "claims")


NO_RESTART_RESULTS = canonical_json(
    {
        reason: {
            "err": encode_task_error(
                TaskError(
                    error_code=OutcomeCode.TASK_CANCELLED, message=f"not started again: its workflow was {reason}"
                )
            )
        }
        for reason in ("paused", "cancelled")
    }
)
"""Results of tasks that are not retried or requeued because their workflow was paused or cancelled.

One JSON object, with the values of `no_restart` as keys.
"""


@dataclass(frozen=True, slots=True)
class ClaimStore:
    """Claims, starts, releases and finishes tasks; returns only tasks whose claim was still valid."""

    database: Database

    async def claim(self, request: ClaimRequest) -> list[ClaimedRow]:
        """Claim due tasks by priority, time and id. Caps hold even if many workers claim at once.

        Raises LockTimeout, with the holder in its message, if another session holds the lock of a cap.
        A task with an expired lease is returned CLAIMED even if a child is free.
        """
        queues = [queue.name for queue in request.queues], [queue.capacity for queue in request.queues]
        skip_before = [request.skip_before.get(queue.name) for queue in request.queues]
        search = request.only_tasks, request.except_tasks, skip_before
        if request.is_for_one_child:
            owner = request.worker_id, request.hostname, request.pids[0]
            rows = await self.database.fetch(CLAIMS.claim_chunk, *queues, request.limit, *owner, *search)
        else:
            rows = await self._claim(request, *queues, *search)
        # UPDATE ... RETURNING gives no order, so it is restored here.
        return sorted(rows, key=_CLAIM_ORDER)

    async def _claim(
        self,
        request: ClaimRequest,
        queues: Sequence[str],
        capacities: Sequence[int],
        only_tasks: Sequence[str] | None,
        except_tasks: Sequence[str] | None,
        skip_before: Sequence[datetime | None],
    ) -> list[ClaimedRow]:
        try:
            return await self.database.fetch(
                CLAIMS.claim,
                queues,
                capacities,
                [queue.cap for queue in request.queues],
                request.limit,
                request.cluster_cap,
                request.lease_s,
                request.worker_id,
                request.hostname,
                request.pids,
                only_tasks,
                except_tasks,
                skip_before,
            )
        except LockTimeout as error:
            capped = [f"{CLAIM_LOCK}/{queue.name}" for queue in request.queues if queue.cap is not None]
            holders = await lock_holders(self.database, [CLAIM_LOCK, *capped])
            error.message = "; ".join(map(str, holders)) or error.message
            raise

    async def first_known(self, queues: Sequence[str], unknown: Sequence[str]) -> dict[str, datetime]:
        """By queue: the time before which the names of all due tasks are in `unknown`."""
        return dict(await self.database.fetch(CLAIMS.first_known, queues, unknown, READ_AGAIN))

    async def start(self, pids: Mapping[ClaimRef, int], *, hostname: str) -> list[ClaimKeyRow]:
        """Mark claimed tasks RUNNING, each in the child given, unless its lease or good_until has passed."""
        return await self.database.fetch(CLAIMS.start, *claim_arrays(pids), list(pids.values()), hostname)

    async def record_children(self, pids: Mapping[ClaimRef, int]) -> None:
        """Record which children running tasks were sent to, by pid; a task that has ended is left alone."""
        await self.database.execute(CLAIMS.record_children, *claim_arrays(pids), list(pids.values()))

    async def expire(self, documents: Mapping[ClaimRef, str]) -> list[ClaimKeyRow]:
        """End claimed tasks whose good_until has passed, each with the result given."""
        return await self.database.fetch(CLAIMS.expire, *claim_arrays(documents), list(documents.values()))

    async def release(self, claims: Collection[ClaimRef]) -> list[ClaimStatusRow]:
        """Return claimed tasks to the queue; no retry is spent and they keep their place."""
        return await self._release(claims, TaskStatus.CLAIMED)

    async def release_running(self, claims: Collection[ClaimRef], *, lost_start: bool = False) -> list[ClaimStatusRow]:
        """Like `release`, for RUNNING tasks whose code never started; `lost_start` if their child died."""
        return await self._release(claims, TaskStatus.RUNNING, lost_start=lost_start)

    async def owned(self, worker_id: UUID) -> list[ClaimStatusRow]:
        """All tasks that this worker has claimed or is running."""
        return await self.database.fetch(CLAIMS.owned, worker_id)

    async def _release(
        self, claims: Collection[ClaimRef], status: TaskStatus, *, lost_start: bool = False
    ) -> list[ClaimStatusRow]:
        arguments = *claim_arrays(claims), status, NO_RESTART_RESULTS, lost_start
        return await self.database.fetch(CLAIMS.release, *arguments)

    async def finish(self, finishes: Sequence[FinishedAttempt], *, events: Sequence[str] = ()) -> list[ClaimStatusRow]:
        """Store outcomes other than COMPLETED, and publish `events`.

        Returns the new status of each task; PENDING means it is retried. A task that is not returned was refused:
        its claim was lost, or the same outcome was stored before (see `recorded_outcomes`).
        """
        # The fields of FinishedAttempt are in the order of the statement's parameters.
        claims, *columns = zip(*finishes, strict=True)
        return await self.database.fetch(CLAIMS.finish, *claim_arrays(claims), *columns, NO_RESTART_RESULTS, events)

    async def complete(
        self,
        ids: Sequence[UUID],
        claim_tokens: Sequence[int],
        documents: Sequence[str],
        *,
        worker_ids: Collection[UUID],
        pids: Sequence[int | None] = (),
        events: Sequence[str] = (),
    ) -> int:
        """Like `finish`, for completed tasks, given as columns; returns how many were stored.

        `worker_ids` are the owners of all these claims. `pids` may be left out if all ran where they were started.
        """
        arguments = ids, claim_tokens, list(worker_ids), documents, pids, events
        return await self.database.fetch_single(CLAIMS.complete, *arguments)

    async def recorded_outcomes(self, claims: Sequence[ClaimRef]) -> list[AttemptOutcomeRow]:
        """Recorded attempts of exactly these claims."""
        ids, tokens, _ = claim_arrays(claims)
        return await self.database.fetch(CLAIMS.attempts_by_claim, ids, tokens)

    async def current_states(self, task_ids: Sequence[UUID]) -> list[TaskStateRow]:
        return await self.database.fetch(CLAIMS.current_states, task_ids)


def claim_arrays(claims: Collection[ClaimRef]) -> tuple[list[UUID], list[int], list[UUID]]:
    """The arrays that guard a statement: task ids, claim tokens, worker ids."""
    return (
        [claim.task_id for claim in claims],
        [claim.claim_token for claim in claims],
        [claim.worker_id for claim in claims],
    )
