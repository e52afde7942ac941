"""The completer: stores the outcomes of attempts in batches and reports those whose claim was lost."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from horsies.codec.canonical_json import utf8_length
from horsies.codec.results import error_document
from horsies.engine import events
from horsies.engine.in_flight import Chunk, CompletedTask, InFlight, InFlightTask, TaskState
from horsies.engine.pool.protocol import EncodedOutcome, parse_details
from horsies.engine.service import Backoff
from horsies.errors import BrokerError
from horsies.model.capacity import Fence
from horsies.model.events import TaskChange
from horsies.model.retry import Cause, stored_policy
from horsies.model.task import TaskAttemptOutcome, TaskStatus
from horsies.model.task_result import OperationalErrorCode, TaskError
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimStore, FinishedAttempt
from horsies.store.connection import StatementFailed

if TYPE_CHECKING:
    from horsies.engine.reporter import Reporter

T = TypeVar("T")
R = TypeVar("R")

MAX_BATCH_ROWS: Final = 500
MAX_BATCH_BYTES: Final = 4_000_000

_ROW_ERROR_CLASSES: Final = ("0A", "21", "22", "23", "54", "XX")
"""SQLSTATE classes caused by the content of a row; other classes concern the statement or the session.

In this order: feature not supported, cardinality, data, integrity constraint, program limit, internal error.
"""

_STORING: Final = int(TaskState.STORING)
_TRANSITION_NAMES = {
    TaskStatus.COMPLETED: "complete",
    TaskStatus.FAILED: "fail",
    TaskStatus.PENDING: "retry",
    TaskStatus.CANCELLED: "cancel running",
}


class UnstoredFailure(NamedTuple):
    """An outcome other than completed that is not stored yet: a failure or a retry."""

    chunk: Chunk
    position: int
    finish: FinishedAttempt
    event_when_stored: events.Event | None = None
    run_ms: float | None = None


UnstoredOutcome: TypeAlias = CompletedTask | UnstoredFailure


def size_bytes(unstored: UnstoredOutcome) -> int:
    return utf8_length(unstored.document if isinstance(unstored, CompletedTask) else unstored.finish.document)


def _row(unstored: UnstoredOutcome) -> ClaimedRow:
    return unstored.chunk.rows[unstored.position]


def _key(unstored: UnstoredOutcome) -> tuple[UUID, int]:
    row = _row(unstored)
    return row.id, row.claim_token


def _claim(unstored: UnstoredOutcome) -> ClaimRef:
    return ClaimRef(*_key(unstored), unstored.chunk.worker_id)


def _outcome(unstored: UnstoredOutcome) -> tuple[TaskAttemptOutcome, str | None]:
    """The outcome and its error code."""
    if isinstance(unstored, CompletedTask):
        return TaskAttemptOutcome.COMPLETED, None
    return unstored.finish.outcome, unstored.finish.error_code


class StoredBatch(NamedTuple):
    """The answer of the database to a batch of outcomes."""

    statuses: dict[tuple[UUID, int], TaskStatus]
    """New statuses by id and claim token, except those of the completed tasks if all of them were stored."""
    are_completed_stored: bool
    late: Collection[UnstoredOutcome] = ()
    """Outcomes whose claim this worker has lost."""

    def status_of(self, unstored: UnstoredOutcome) -> TaskStatus | None:
        if self.are_completed_stored and type(unstored) is CompletedTask:
            return TaskStatus.COMPLETED
        return self.statuses.get(_key(unstored))


class Completer:
    """Stores outcomes until the worker stops. Heartbeats for the tasks continue until their outcomes are stored."""

    name = "completer"

    def __init__(
        self,
        store: ClaimStore,
        in_flight: InFlight,
        reporter: Reporter,
        *,
        fence: Fence,
        backoff: Backoff,
        on_stored: Callable[[], None],
        on_retry: Callable[[float], None],
        on_nodes_finished: Callable[[], None],
    ) -> None:
        self._store = store
        self._in_flight = in_flight
        self._reporter = reporter
        self._fence = fence
        self._on_stored = on_stored
        self._on_retry = on_retry
        self._on_nodes_finished = on_nodes_finished
        self._batcher: WriteBatcher[UnstoredOutcome, StoredBatch] = WriteBatcher(
            self.name,
            self._store_batch,
            on_stored=self._on_batch_stored,
            on_rejected=self._on_row_rejected,
            backoff=backoff,
            size_of=size_bytes,
        )
        self._maybe_stored: set[tuple[UUID, int]] = set()
        """Outcomes whose statement failed, by id and claim token: it may have been executed."""

    @property
    def unstored_ids(self) -> list[str]:
        """Ids of the tasks whose outcomes are not known to be stored."""
        return [str(_row(unstored).id) for unstored in self._batcher.unstored]

    def complete(self, completed: Sequence[CompletedTask]) -> None:
        """Store the results of completed tasks with the next batch."""
        for chunk, position, *_ in completed:
            chunk.states[position] = _STORING
        self._batcher.put(completed)

    def store(
        self,
        task: InFlightTask,
        finish: FinishedAttempt,
        *,
        event_when_stored: events.Event | None = None,
        run_ms: float | None = None,
    ) -> None:
        """Store any other outcome with the next batch; `event_when_stored` is emitted unless the claim was lost."""
        assert task.chunk is not None  # noqa: S101  # only tasks of a chunk have outcomes
        self._put(UnstoredFailure(task.chunk, task.position, finish, event_when_stored, run_ms))

    async def run(self, stop: asyncio.Event) -> None:
        """Store outcomes until `stop` is set and none is left."""
        await self._batcher.run(stop)

    def _put(self, unstored: UnstoredFailure) -> None:
        unstored.chunk.states[unstored.position] = _STORING
        self._batcher.put((unstored,))

    async def _store_batch(self, batch: list[UnstoredOutcome]) -> StoredBatch:
        """Store a batch: one statement for completed tasks, one for the others."""
        sent_at = time.monotonic()
        changes = self._reporter.changes.drain(sent_at)  # published by the same statement, saving a round trip
        completed = [unstored for unstored in batch if type(unstored) is CompletedTask]
        finishes = [unstored.finish for unstored in batch if type(unstored) is UnstoredFailure]
        try:
            # Completed tasks first: if their statement fails, nothing of the batch is stored.
            count = await self._store_completed(completed, () if finishes else changes) if completed else 0
            rows = await self._store.finish(finishes, events=changes) if finishes else []
            self._fence.record_statement(sent_at)
            stored = StoredBatch(
                {(row.id, row.claim_token): TaskStatus(row.status) for row in rows}, count == len(completed)
            )
            if not stored.are_completed_stored or len(rows) < len(finishes):
                stored = await self._look_up_missing(batch, stored)
        except BrokerError:
            self._maybe_stored.update(map(_key, batch))
            raise
        if self._maybe_stored:
            self._maybe_stored.difference_update(map(_key, batch))
        return stored

    async def _store_completed(self, completed: Sequence[CompletedTask], changes: Sequence[str]) -> int:
        rows = [chunk.rows[position] for chunk, position, *_ in completed]
        chunks = {task[0] for task in completed}
        # All tasks of a chunk were claimed for the same child.
        has_moved = any(chunk.child.pid != chunk.rows[0].worker_pid for chunk in chunks)
        return await self._store.complete(
            [row[0] for row in rows],
            [row[1] for row in rows],
            [task[2] for task in completed],
            worker_ids={chunk.worker_id for chunk in chunks},
            pids=[task[0].child.pid for task in completed] if has_moved else (),
            events=changes,
        )

    async def _look_up_missing(self, batch: list[UnstoredOutcome], stored: StoredBatch) -> StoredBatch:
        """Find out which outcomes are stored, now or by an earlier statement whose answer was lost; report the others.

        A completed attempt of a claim can only be stored by its owner. Any other attempt that we did not store may be
        the decision of another process.
        """
        unknown = [unstored for unstored in batch if stored.status_of(unstored) is None]
        recorded = await self._store.recorded_outcomes([_claim(unstored) for unstored in unknown])
        known = {(row.id, row.claim_token): (row.outcome, row.error_code) for row in recorded}
        statuses, late = dict(stored.statuses), list[UnstoredOutcome]()
        for unstored in unknown:
            key = _key(unstored)
            is_recorded = known.get(key) == _outcome(unstored)
            if is_recorded and isinstance(unstored, CompletedTask):
                statuses[key] = TaskStatus.COMPLETED
            elif not is_recorded or key not in self._maybe_stored:
                late.append(unstored)
        await self._emit_late(late)
        return StoredBatch(statuses, are_completed_stored=False, late=late)

    async def _emit_late(self, late: Sequence[UnstoredOutcome]) -> None:
        states = await self._store.current_states([_row(unstored).id for unstored in late]) if late else []
        state_by_id = {row.id: row for row in states}
        for unstored in late:
            row, (outcome, error_code) = _row(unstored), _outcome(unstored)
            current = state_by_id.get(row.id)
            self._reporter.emit(
                events.LateResultRefused(
                    worker_id=str(unstored.chunk.worker_id),
                    task_id=str(row.id),
                    claim_token=row.claim_token,
                    queue_name=row.queue_name,
                    status=current.status if current else None,
                    token_now=current.claim_token if current else None,
                    owner_now=str(current.worker_id) if current and current.worker_id else None,
                    outcome=outcome,
                    error_code=error_code,
                    started_at=current.started_at if current else None,
                    moved_at=(current.terminal_at or current.claimed_at) if current else None,
                )
            )

    def _on_batch_stored(self, batch: list[UnstoredOutcome], stored: StoredBatch) -> None:
        settle = self._in_flight.settle_in_chunk
        moved: dict[tuple[TaskStatus, str], list[UnstoredOutcome]] = {}
        has_nodes = False
        for unstored in batch:
            chunk, position = unstored[0], unstored[1]
            row = chunk.rows[position]
            settle(chunk, position)
            has_nodes = has_nodes or (row.details is not None and parse_details(row.details).is_workflow_task)
            if (status := stored.status_of(unstored)) is not None:
                moved.setdefault((status, row.queue_name), []).append(unstored)
            if type(unstored) is UnstoredFailure and unstored.event_when_stored and unstored not in stored.late:
                self._reporter.emit(unstored.event_when_stored)
        for (status, queue), outcomes in moved.items():
            self._on_moved(status, queue, outcomes)
        if has_nodes:
            self._on_nodes_finished()
        self._on_stored()

    def _on_moved(self, status: TaskStatus, queue: str, outcomes: Sequence[UnstoredOutcome]) -> None:
        """Report outcomes that moved tasks of one queue to the same status."""
        ids = [_row(unstored).id for unstored in outcomes]
        kind = _TRANSITION_NAMES[status]
        self._reporter.changes.add(TaskChange(kind=kind, queue=queue, source=TaskStatus.RUNNING, target=status), ids)
        self._reporter.totals.add_finished(status, len(outcomes))
        if self._reporter.is_enabled_for(events.TaskFinished):
            for unstored in outcomes:
                self._emit_finished(unstored, status)
        if status is TaskStatus.FAILED:
            self._emit_failed(outcomes)
        elif status is TaskStatus.PENDING:
            self._expect_retries(outcomes)

    def _expect_retries(self, retried: Sequence[UnstoredOutcome]) -> None:
        for unstored in retried:
            if isinstance(unstored, UnstoredFailure) and unstored.finish.retry_delay_s is not None:
                self._on_retry(unstored.finish.retry_delay_s)

    def _emit_failed(self, failed: Sequence[UnstoredOutcome]) -> None:
        for unstored in failed:
            self._reporter.totals.add_failed(
                _row(unstored).task_name,
                error_code=_outcome(unstored)[1],
                task_id=str(_row(unstored).id),
                message=unstored.finish.error_message if isinstance(unstored, UnstoredFailure) else None,
            )
        self._reporter.emit_failures(str(failed[0].chunk.worker_id))

    def _emit_finished(self, unstored: UnstoredOutcome, status: TaskStatus) -> None:
        row, finish = _row(unstored), unstored.finish if isinstance(unstored, UnstoredFailure) else None
        details, is_retried = parse_details(row.details), status is TaskStatus.PENDING
        policy = stored_policy(details.task_options) if is_retried else None
        self._reporter.emit(
            events.TaskFinished(
                worker_id=str(unstored.chunk.worker_id),
                task_id=str(row.id),
                claim_token=row.claim_token,
                queue_name=row.queue_name,
                task_name=row.task_name,
                status=status,
                error_code=finish.error_code if finish else None,
                error_message=finish.error_message if finish else None,
                run_ms=unstored.run_ms,
                retry_number=details.retry_count + 1 if is_retried else None,
                max_retries=policy.max_retries if policy else None,
                retry_delay_s=finish.retry_delay_s if finish else None,
            )
        )

    def _on_row_rejected(self, unstored: UnstoredOutcome, error: StatementFailed) -> None:
        finish = rejected_attempt(_claim(unstored), error, pid=unstored.chunk.child.pid)
        self._put(UnstoredFailure(unstored.chunk, unstored.position, finish))


def finished_attempt(task: InFlightTask, outcome: EncodedOutcome) -> FinishedAttempt:
    """Build what is stored for an outcome that a child reported; the policy may turn a failure into a retry."""
    is_completed = outcome.outcome is TaskAttemptOutcome.COMPLETED
    decision = None if is_completed else task.decide_retry(Cause(code=outcome.error_code))
    return FinishedAttempt(
        claim=task.claim,
        outcome=outcome.outcome,
        document=outcome.document,
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        retry_delay_s=decision if isinstance(decision, float) else None,
        pid=task.pid,
    )


def rejected_attempt(claim: ClaimRef, error: StatementFailed, *, pid: int | None) -> FinishedAttempt:
    """Build the failure to store in place of an outcome that the database rejects."""
    code = OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    failure = TaskError(error_code=code, message=f"the database rejected the result: {error.message}")
    return FinishedAttempt(
        claim=claim,
        outcome=TaskAttemptOutcome.WORKER_FAILURE,
        document=error_document(failure),
        error_code=code,
        error_message=failure.message,
        pid=pid,
    )


class WriteBatcher(Generic[T, R]):
    """Sends rows to the database in batches, in order, without losing any.

    Rows that arrive while a statement is running are sent together in the next one, so an idle batcher adds no latency
    and a busy one sends hundreds of rows per statement. `on_stored` gets each stored batch with the statement's result;
    `on_rejected` gets each row that the database will never accept. After a transient error the same batch is sent
    again; `send` must accept a batch that is already stored. Any other error ends `run`, with the rows still in
    `unstored`.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[list[T]], Awaitable[R]],
        *,
        on_stored: Callable[[list[T], R], None],
        on_rejected: Callable[[T, StatementFailed], None],
        backoff: Backoff,
        size_of: Callable[[T], int] | None = None,
        max_rows: int = MAX_BATCH_ROWS,
        max_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self.name = name
        self._send = send
        self._on_stored = on_stored
        self._on_rejected = on_rejected
        self._backoff = backoff
        self._size_of = size_of
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._waiting: deque[T] = deque()
        self._woken = asyncio.Event()

    @property
    def unstored(self) -> tuple[T, ...]:
        """Rows not known to be stored, sent or not."""
        return tuple(self._waiting)

    def put(self, rows: Iterable[T]) -> None:
        """Add rows to the next batch; never waits."""
        self._waiting.extend(rows)
        self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set and no rows are left."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._woken.set())
        try:
            while await self._wait_for_rows(stop):
                await self._send_batch(self._next_batch())
        finally:
            stopping.cancel()

    async def _wait_for_rows(self, stop: asyncio.Event) -> bool:
        while not self._waiting and not stop.is_set():
            self._woken.clear()
            await self._woken.wait()
        return bool(self._waiting)

    def _next_batch(self) -> list[T]:
        """The oldest rows within the limits, at least one."""
        batch: list[T] = []
        remaining_bytes = self._max_bytes
        for row in self._waiting:
            remaining_bytes -= self._size_of(row) if self._size_of else 0
            if batch and (remaining_bytes < 0 or len(batch) == self._max_rows):
                break
            batch.append(row)
        return batch

    async def _send_batch(self, batch: list[T]) -> None:
        """Send the first rows of the queue; on a row error, bisect the batch to find the rejected row."""
        try:
            result = await self._send_with_retry(batch)
        except StatementFailed as error:
            if not is_row_error(error):
                raise
            if len(batch) == 1:
                self._dequeue(batch)
                self._on_rejected(batch[0], error)
                return
            middle = len(batch) // 2
            await self._send_batch(batch[:middle])
            await self._send_batch(batch[middle:])
        else:
            self._dequeue(batch)
            self._on_stored(batch, result)

    async def _send_with_retry(self, batch: list[T]) -> R:
        while True:
            try:
                result = await self._send(batch)
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                if self._backoff.failures:  # checked here to save a call per write
                    self._backoff.reset()
                return result

    def _dequeue(self, batch: list[T]) -> None:
        for _ in batch:
            self._waiting.popleft()


def is_row_error(error: Exception) -> bool:
    """Whether the database rejects a row for its content, so that the others can be stored without it."""
    if not isinstance(error, StatementFailed) or error.retryable:
        return False
    return (error.sqlstate or "").startswith(_ROW_ERROR_CLASSES)
