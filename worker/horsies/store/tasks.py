"""Tasks in the database: stored once, looked at by id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from uuid import UUID

from horsies.codec.results import decode_result
from horsies.model.send import CompactPayload, ConflictingTask, SendOutcome, TaskSendPayload, resolve_conflict
from horsies.model.task import TaskAttemptInfo, TaskAttemptOutcome, TaskInfo, TaskStatus
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction
    from horsies.store.recovery import StaleRow


# One statement on its way to the server while the next is being made.


class Pipeline:
    """Statements on one connection, one after the other; the maker is let go as soon as one has left.

    The first that fails stops the rest: its error comes out of the next `put`, or of the end of the block.
    """

    def __init__(self) -> None:
        self._under_way: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if self._under_way is None:
            return
        if failure is not None:
            # The connection is wanted for a rollback, so the statement must be off it.
            self._under_way.cancel()
            await asyncio.wait([self._under_way])
            return
        await self._under_way

    async def put(self, statement: Coroutine[Any, Any, None]) -> None:
        """Send a statement once the one before it is done."""
        try:
            if self._under_way is not None:
                await self._under_way
        except BaseException:
            statement.close()
            raise
        self._under_way = asyncio.create_task(statement)
        # A turn of the loop, in which the statement is written to the connection.
        await asyncio.sleep(0)


MAX_CONFLICT_READS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRow:
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedRow:
    is_notified: bool


class EnqueueResult(NamedTuple):
    """What came of a send, the id of the task that stands for it, and whether workers hear of what it stored."""

    outcome: SendOutcome
    task_id: str
    is_notified: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResultRow:
    """How a task stands; `document` is its stored result, as JSON text."""

    id: UUID
    task_name: str
    status: str
    document: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    id: UUID
    task_name: str
    status: str
    queue_name: str
    priority: int
    retry_count: int
    max_retries: int
    crash_count: int
    flags: str
    sent_at: datetime
    enqueued_at: datetime
    next_retry_at: datetime | None
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    good_until: datetime | None
    worker_id: UUID | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    error_code: str | None
    workflow_id: UUID | None
    retry_of: UUID | None
    failed_reason: str | None
    document: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    task_id: UUID
    attempt: int
    claim_token: int
    outcome: str
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_id: UUID | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueries:
    enqueue: Query[EnqueuedRow]
    enqueue_compact: Query[EnqueuedRow]
    enqueue_without_notify: Query[None]
    enqueue_in_transaction: Query[EnqueuedRow]
    notify_queues: Query[EnqueuedRow]
    conflicts: Query[ConflictingTask]
    enqueue_many: Query[None]
    results: Query[TaskResultRow]
    info: Query[TaskRow]
    attempts: Query[AttemptRow]


TASKS = load_queries(TaskQueries, "horsies.store", "tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBatch:
    """Rows of one bulk send, and the payload whose other fields they all share.

    Each text holds one value a line, for which JSON without white space leaves room: the driver looks at every
    element of an array by itself, and would take as long over four arrays as the server over storing the rows.
    """

    shared: TaskSendPayload
    ids: str
    args: str
    kwargs: str
    shas: str


class TaskStore:
    """Tasks of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._enqueue_plain = database.prepared(TASKS.enqueue_compact)
        self.enqueue_without_notify: Callable[[CompactPayload], Coroutine[Any, Any, object]] = database.prepared(
            TASKS.enqueue_without_notify
        )
        """As `enqueue_plain`, and no worker hears of it."""

    async def enqueue(
        self, payload: TaskSendPayload, *, within: Transaction | None = None, timeout_s: float | None = None
    ) -> EnqueueResult:
        """Store a task, or say what stood in its way.

        Where another open transaction holds the same idempotency key, this waits for it, `timeout_s` at most.
        """
        through, query = (self.database, TASKS.enqueue) if within is None else (within, TASKS.enqueue_in_transaction)
        for _ in range(MAX_CONFLICT_READS):
            stored = await through.fetch_raw(query, *_columns(payload), timeout_s=timeout_s)
            if stored:
                return EnqueueResult(SendOutcome.STORED, payload.task_id, stored[0]["is_announced"])
            rows = await through.fetch(
                TASKS.conflicts, UUID(payload.task_id), payload.task_name, payload.idempotency_key
            )
            outcome, task_id = resolve_conflict(payload, rows)
            if outcome is not SendOutcome.CONFLICT_GONE:
                return EnqueueResult(outcome, task_id)
        return EnqueueResult(SendOutcome.CONFLICT_GONE, payload.task_id)

    async def enqueue_compact(self, send: CompactPayload) -> bool:
        """Store a task on a session where nobody else announces it; whether workers hear of it.

        StatementFailed with UNIQUE_VIOLATION where its id is taken.
        """
        (row,) = await self._enqueue_plain(send)
        return row["is_announced"]

    async def notify_queues(self, queue_names: Iterable[str]) -> None:
        """Tell workers that there is something to do."""
        await self.database.fetch_raw(TASKS.notify_queues, list(queue_names))

    async def enqueue_many(self, batches: Iterable[InsertBatch], *, within: Transaction | None = None) -> None:
        """Store all batches or none, one statement each; `batches` may be gone through more than once."""

        async def store(transaction: Transaction) -> None:
            async with Pipeline() as pipeline:
                for batch in batches:
                    await pipeline.put(transaction.execute(TASKS.enqueue_many, *_batch_columns(batch)))

        await (store(within) if within else self.database.run(store))

    async def results(self, task_ids: Iterable[UUID]) -> list[TaskResultRow]:
        return await self.database.fetch(TASKS.results, list(task_ids))

    async def info(self, task_id: UUID, *, with_document: bool) -> TaskRow | None:
        return await self.database.fetch_one(TASKS.info, task_id, with_document)

    async def attempts(self, task_id: UUID) -> list[AttemptRow]:
        """Executions that came to an end, newest first."""
        return await self.database.fetch(TASKS.attempts, task_id)


def _columns(payload: TaskSendPayload) -> tuple[object, ...]:
    return (
        payload.task_id,
        payload.task_name,
        payload.queue_name,
        payload.priority,
        payload.args,
        payload.kwargs,
        payload.sent_at,
        payload.enqueue_delay_seconds or 0.0,
        payload.good_until,
        payload.max_retries,
        payload.task_options,
        payload.flags,
        payload.idempotency_key,
        payload.command_sha,
        payload.enqueue_sha,
    )


def _batch_columns(batch: InsertBatch) -> tuple[object, ...]:
    like = batch.shared
    return (
        batch.ids,
        batch.args,
        batch.kwargs,
        batch.shas,
        like.task_name,
        like.queue_name,
        like.priority,
        like.sent_at,
        like.enqueue_delay_seconds or 0.0,
        like.good_until,
        like.max_retries,
        like.task_options,
        like.flags,
    )


# Rows of tasks as the library shows them.

_COLUMNS = (
    "task_name",
    "queue_name",
    "priority",
    "retry_count",
    "max_retries",
    "crash_count",
    "sent_at",
    "enqueued_at",
    "claimed_at",
    "started_at",
    "good_until",
    "worker_hostname",
    "worker_pid",
    "worker_process_name",
)


def task_info(
    row: TaskRow, attempts: Sequence[AttemptRow] | None = None, *, include_failed_reason: bool = False
) -> TaskInfo:
    return TaskInfo(
        **_common_fields(row),
        next_retry_at=row.next_retry_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        worker_id=_text(row.worker_id),
        error_code=row.error_code,
        result=None if row.document is None else decode_result(row.document),
        failed_reason=row.failed_reason if include_failed_reason else None,
        attempts=None if attempts is None else [_attempt_info(each) for each in attempts],
    )


def stale_task_info(row: StaleRow) -> TaskInfo:
    """A task that somebody was to run, as hooks of recovery see it."""
    return TaskInfo(**_common_fields(row), worker_id=_text(row.owner_id), failed_reason=row.failed_reason)


def _common_fields(row: TaskRow | StaleRow) -> dict[str, Any]:
    """What every row of a task has."""
    return {
        "task_id": str(row.id),
        "status": TaskStatus(row.status),
        "flags": _flags(row.flags),
        "workflow_id": _text(row.workflow_id),
        "retry_of": _text(row.retry_of),
        **{name: getattr(row, name) for name in _COLUMNS},
    }


def _flags(text: str) -> dict[str, bool]:
    """What is no object, which only a hand can have written, says nothing."""
    flags = json.loads(text)
    return cast("dict[str, bool]", flags) if isinstance(flags, dict) else {}


def _attempt_info(row: AttemptRow) -> TaskAttemptInfo:
    return TaskAttemptInfo(
        task_id=str(row.task_id),
        attempt=row.attempt,
        claim_token=row.claim_token,
        outcome=TaskAttemptOutcome(row.outcome),
        will_retry=row.will_retry,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error_code=row.error_code,
        error_message=row.error_message,
        failed_reason=row.failed_reason,
        worker_id=_text(row.worker_id),
        worker_hostname=row.worker_hostname,
        worker_pid=row.worker_pid,
        worker_process_name=row.worker_process_name,
    )


def _text(identity: UUID | None) -> str | None:
    return None if identity is None else str(identity)


# Queues that operators have paused.


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueName:
    queue_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKnownRow:
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueQueries:
    pause_queue: Query[QueueName]
    resume_queue: Query[QueueName]
    is_queue_known: Query[QueueKnownRow]


QUEUES = load_queries(QueueQueries, "horsies.store", "queues")
