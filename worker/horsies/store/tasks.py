"""Task rows: enqueue, idempotency conflicts, results, attempts, and paused queues."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from horsies.model.send import BulkPayload, ConflictingTask, SendOutcome, TaskSendPayload, resolve_conflict
from horsies.model.task import TaskAttemptInfo, TaskInfo
from horsies.model.task_result import OperationalErrorCode
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Executor


MAX_CONFLICT_READS = 5
"""How often an enqueue is repeated if the conflicting task is deleted before it is read."""
BATCH_ROWS = 1000
BATCH_CHARACTERS = 32_000_000
"""Arguments in one bulk statement; the client and the server each hold several copies of its text in memory."""


class Notify(StrEnum):
    """Whether the INSERT of a task notifies workers when it is committed."""

    ALWAYS = "always"
    UNLESS_CONTENDED = "unless contended"
    """Not if another send to the queue is notifying at this moment. Only for a transaction that commits at once."""
    NEVER = "never"


class EnqueueResult(NamedTuple):
    """Outcome of a send. `task_id` is the stored task or the existing one it conflicts with."""

    outcome: SendOutcome
    task_id: str
    is_notified: bool = False
    """Whether workers are notified of the task when it is committed."""


class TaskResultRow(NamedTuple):
    """Status of a task; `document` is its stored result as JSON text."""

    id: str
    task_name: str
    status: str
    document: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueries:
    enqueue: Query[bool]
    notify_queues: Query[bool]
    conflicts: Query[ConflictingTask]
    enqueue_many: Query[None]
    results: Query[TaskResultRow]
    info: Query[TaskInfo]
    attempts: Query[TaskAttemptInfo]
    pause_queue: Query[str]
    resume_queue: Query[str]
    is_queue_known: Query[bool]


TASKS = load_queries(TaskQueries, "horsies.store", "tasks")


@dataclass(frozen=True, slots=True)
class TaskStore:
    """Tasks, in a database or in a transaction."""

    executor: Executor

    async def enqueue(
        self,
        payload: TaskSendPayload,
        *,
        notify: Notify = Notify.ALWAYS,
        timeout_s: float | None = None,
    ) -> EnqueueResult:
        """Insert a task, or find the one that its id or idempotency key conflicts with.

        If another open transaction holds the same idempotency key, waits up to `timeout_s` for it to end.
        """
        for _ in range(MAX_CONFLICT_READS):
            stored = await self.executor.fetch_raw(TASKS.enqueue, *payload, notify, timeout_s=timeout_s)
            if stored:
                return EnqueueResult(SendOutcome.STORED, payload.task_id, stored[0]["is_notified"])
            rows = await self.executor.fetch(
                TASKS.conflicts, UUID(payload.task_id), payload.task_name, payload.idempotency_key
            )
            outcome, task_id = resolve_conflict(payload, rows)
            if outcome is not SendOutcome.CONFLICT_GONE:
                return EnqueueResult(outcome, task_id)
            # The conflicting task was deleted in between: try to insert again.
        return EnqueueResult(SendOutcome.CONFLICT_GONE, payload.task_id)

    async def notify_queues(self, queue_names: Iterable[str]) -> None:
        await self.executor.execute(TASKS.notify_queues, list(queue_names))

    async def enqueue_many(self, bulk: BulkPayload) -> None:
        """Insert the tasks of one bulk send, in a transaction; raises UNIQUE_VIOLATION if they are already stored."""
        async with Pipeline() as pipeline:
            for rows in batch_slices(bulk):
                await pipeline.put(self.executor.execute(TASKS.enqueue_many, *_batch_columns(bulk, rows)))

    def results(self, task_ids: Sequence[str]) -> Coroutine[Any, Any, list[TaskResultRow]]:
        """Status and result of those of these tasks that exist."""
        return self.executor.fetch(TASKS.results, ",".join(task_ids))

    async def info(
        self,
        task_id: UUID,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> TaskInfo | None:
        info = await self.executor.fetch_one(TASKS.info, task_id, include_result, include_failed_reason)
        return replace(info, attempts=await self.attempts(task_id)) if info and include_attempts else info

    async def attempts(self, task_id: UUID) -> list[TaskAttemptInfo]:
        """Finished attempts, newest first."""
        return await self.executor.fetch(TASKS.attempts, task_id)

    async def crash_messages(self, task_id: UUID) -> tuple[str, ...]:
        """Error messages of the attempts that crashed, oldest first."""
        attempts = reversed(await self.attempts(task_id))
        crashed = OperationalErrorCode.WORKER_CRASHED
        return tuple(row.error_message or "" for row in attempts if row.error_code == crashed)


def batch_slices(bulk: BulkPayload) -> Iterator[slice]:
    """Split the rows into batches within both limits; a single row over the character limit is a batch of its own."""
    start = characters = 0
    for index, (args, kwargs) in enumerate(zip(bulk.args, bulk.kwargs, strict=True)):
        length = len(args) + len(kwargs)
        if index - start == BATCH_ROWS or (characters + length > BATCH_CHARACTERS and index > start):
            yield slice(start, index)
            start, characters = index, 0
        characters += length
    if start < len(bulk.args):
        yield slice(start, len(bulk.args))


def _batch_columns(bulk: BulkPayload, rows: slice) -> tuple[object, ...]:
    """The parameters of `enqueue_many`.

    The four columns that differ are texts with one value per line (canonical JSON contains no newline). Passing arrays
    instead would take the driver as long to encode as the server needs to insert the rows.
    """
    shared, args, kwargs = bulk.first, bulk.args[rows], bulk.kwargs[rows]
    return (
        "\n".join(bulk.task_ids[rows]),
        "\n".join(args),
        "\n".join(kwargs),
        "\n".join(map(bulk.enqueue_sha, args, kwargs)),
        shared.task_name,
        shared.queue_name,
        shared.priority,
        shared.sent_at,
        shared.enqueue_delay_seconds or 0.0,
        shared.good_until,
        shared.max_retries,
        shared.task_options,
        shared.flags,
    )


class Pipeline:
    """Sends statements one after the other on one connection while the caller prepares the next one.

    The first statement that fails stops the rest; its error is raised by the next `put` or at the end of the block.
    """

    def __init__(self) -> None:
        self._in_progress: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if self._in_progress is None:
            return
        if error_type is not None:
            # The caller rolls back on the same connection, so the statement must be off it first.
            self._in_progress.cancel()
            await asyncio.wait([self._in_progress])
            return
        await self._in_progress

    async def put(self, statement: Coroutine[Any, Any, None]) -> None:
        """Start a statement once the previous one has finished."""
        try:
            if self._in_progress is not None:
                await self._in_progress
        except BaseException:
            statement.close()  # it will never run, and Python would warn about a coroutine that was not awaited
            raise
        self._in_progress = asyncio.create_task(statement)
        # Yield once, so that the statement is written to the socket before the caller continues.
        await asyncio.sleep(0)
