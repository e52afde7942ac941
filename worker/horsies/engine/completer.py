"""Outcomes on their way into the database: one lane, and what becomes of those that are refused."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.engine.heartbeat import SelfFence
from horsies.engine.in_flight import InFlight, InFlightTask, Phase
from horsies.engine.pool.protocol import AttemptKey, EncodedOutcome, Stream
from horsies.engine.service import Backoff
from horsies.errors import BrokerError, HorsiesError, format_one_line
from horsies.model import events
from horsies.model.crash import (
    AssignedTask,
    Crash,
    Death,
    DropTask,
    FailAttempt,
    Kill,
    KillReason,
    ReleaseTask,
    RequeueTask,
    Resolution,
    resolve_task,
    retry_delay_s,
)
from horsies.model.task import TaskAttemptOutcome, TaskStatus
from horsies.model.task_result import OperationalErrorCode, TaskError
from horsies.store.claims import ClaimStatusRow, FinishedAttempt, FinishStore
from horsies.store.connection import StatementFailed
from horsies.store.database import Database
from horsies.store.operators import Target, requeue
from horsies.store.tasks import TaskStore

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child, ChildExit
    from horsies.engine.reporter import Reporter
    from horsies.engine.worker import Parts


# Lanes: many rows, few statements, no timers.
#
# While one statement is on its way, whatever arrives waits and leaves together in the next one. An idle lane sends at
# once, a busy one hundreds of rows at a time.

T = TypeVar("T")
R = TypeVar("R")

MAX_BATCH_ROWS: Final = 500
MAX_BATCH_BYTES: Final = 4_000_000

_ROW_ERROR_CLASSES: Final = ("0A", "21", "22", "23", "54", "XX")
"""Classes of SQLSTATE with which a server refuses what a row holds. Others speak of the statement or the session."""


def is_row_error(error: Exception) -> bool:
    """Whether the server refused some row for good, so that the others may pass without it."""
    if not isinstance(error, StatementFailed) or error.retryable:
        return False
    return (error.sqlstate or "").startswith(_ROW_ERROR_CLASSES)


class WriteBatcher(Generic[T, R]):
    """Rows of one kind on their way to the database: none lost, none twice in our hands, in the order they were put.

    `answered` gets each batch that passed with what the statement returned, `refused` each row that the server will
    never take. A batch that found no database is sent again as it was, by `backoff`; only the sender knows
    whether the first time was stored after all. Any other error ends the lane, its rows still in `waiting`.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[list[T]], Awaitable[list[R]]],
        *,
        on_stored: Callable[[list[T], list[R]], None],
        on_refused: Callable[[T, StatementFailed], None],
        backoff: Backoff,
        size_of: Callable[[T], int] | None = None,
        max_rows: int = MAX_BATCH_ROWS,
        max_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self.name = name
        self._send = send
        self._answered = on_stored
        self._refused = on_refused
        self._backoff = backoff
        self._size_of = size_of
        self._largest_rows = max_rows
        self._largest_bytes = max_bytes
        self._waiting: deque[T] = deque()
        self._woken = asyncio.Event()

    @property
    def unstored(self) -> tuple[T, ...]:
        """What is not known to be stored, on its way or not; what is left after `run` was given up."""
        return tuple(self._waiting)

    def put(self, rows: Iterable[T]) -> None:
        """Let rows leave with the next statement; never waits."""
        self._waiting.extend(rows)
        self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until stop is set and nothing waits any more."""
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
        """The rows that waited longest, within the limits; one row always fits."""
        batch: list[T] = []
        room_bytes = self._largest_bytes
        for row in self._waiting:
            room_bytes -= self._size_of(row) if self._size_of else 0
            if batch and (room_bytes < 0 or len(batch) == self._largest_rows):
                break
            batch.append(row)
        return batch

    async def _send_batch(self, batch: list[T]) -> None:
        """Send rows from the head of the line, halved and halved again where one of them is refused."""
        try:
            answer = await self._send_with_retry(batch)
        except StatementFailed as error:
            if not is_row_error(error):
                raise
            await self._isolate_refused_row(batch, error)
        else:
            self._dequeue(batch)
            self._answered(batch, answer)

    async def _isolate_refused_row(self, batch: list[T], error: StatementFailed) -> None:
        if len(batch) == 1:
            self._dequeue(batch)
            self._refused(batch[0], error)
            return
        middle = len(batch) // 2
        await self._send_batch(batch[:middle])
        await self._send_batch(batch[middle:])

    async def _send_with_retry(self, batch: list[T]) -> list[R]:
        while True:
            try:
                answer = await self._send(batch)
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                self._backoff.reset()
                return answer

    def _dequeue(self, batch: list[T]) -> None:
        for _ in batch:
            self._waiting.popleft()


_TRANSITION_NAMES = {
    TaskStatus.COMPLETED: "complete",
    TaskStatus.FAILED: "fail",
    TaskStatus.PENDING: "retry",
    TaskStatus.CANCELLED: "cancel a run",
}


class UnstoredOutcome:
    """A held task with the row that stores its end, and what is to be told once it is stored; `is_again` once that may
    have happened unheard."""

    __slots__ = ("event_when_stored", "finish", "task", "was_sent")

    def __init__(self, held: InFlightTask, finish: FinishedAttempt, then_tell: events.Event | None = None) -> None:
        self.task = held
        self.finish = finish
        self.event_when_stored = then_tell
        self.was_sent = False

    @property
    def size_bytes(self) -> int:
        return len(self.finish.document)


class Completer:
    """Stores outcomes for as long as the worker lives; beats for their rows go on meanwhile."""

    name = "outcomes"

    def __init__(
        self,
        store: FinishStore,
        desk: InFlight,
        reporter: Reporter,
        *,
        gate: SelfFence,
        backoff: Backoff,
        max_crashes: int,
        on_stored: Callable[[], None],
        on_retry: Callable[[float], None],
        on_nodes_finished: Callable[[], None],
        on_unknown_task: Callable[[str], None],
    ) -> None:
        self._store = store
        self._desk = desk
        self._reporter = reporter
        self._gate = gate
        self._max_crashes = max_crashes
        self._stored = on_stored
        self._retried = on_retry
        self._nodes_ended = on_nodes_finished
        self._unknown = on_unknown_task
        self._lane: WriteBatcher[UnstoredOutcome, ClaimStatusRow] = WriteBatcher(
            self.name,
            self._store_batch,
            on_stored=self._on_stored,
            on_refused=self._on_refused,
            backoff=backoff,
            size_of=lambda ended: ended.size_bytes,
        )
        self._late: list[UnstoredOutcome] = []

    @property
    def unstored_count(self) -> int:
        return len(self._lane.unstored)

    def complete(self, held: InFlightTask, ending: EncodedOutcome) -> None:
        """A child has reported how a task ended."""
        delay_s = None
        if ending.outcome is not TaskAttemptOutcome.COMPLETED:
            delay_s = retry_delay_s(held.retry_policy, held.row.retry_count, ending.error_code, jitter=random.random())  # noqa: S311  # spreads retries, guards nothing
            if ending.error_code == OperationalErrorCode.WORKER_RESOLUTION_ERROR:
                self._unknown(held.row.task_name)
        finish = FinishedAttempt(
            claim=held.claim,
            outcome=ending.outcome,
            document=ending.document.decode(),
            error_code=ending.error_code,
            error_message=ending.error_message,
            retry_delay_s=delay_s,
            pid=_pid_of(held),
        )
        self._enqueue(held, finish)

    def complete_interrupted(
        self, held: InFlightTask, failure: FailAttempt, *, then_tell: events.Event | None = None
    ) -> None:
        """A task was interrupted; where it was a crash, the statement knows whether it was one too many.

        `then_tell` is told when that is stored, and never where it is refused.
        """
        finish = FinishedAttempt(
            claim=held.claim,
            outcome=TaskAttemptOutcome.FAILED,
            document=_error_document(failure.error),
            error_code=failure.error.error_code,
            error_message=failure.error.message,
            failed_reason=failure.failed_reason,
            retry_delay_s=failure.retry_delay_s,
            poison_document=None if failure.poison_error is None else _error_document(failure.poison_error),
            pid=_pid_of(held),
        )
        self._enqueue(held, finish, then_tell)

    async def run(self, stop: asyncio.Event) -> None:
        await self._lane.run(stop)

    def _enqueue(self, held: InFlightTask, finish: FinishedAttempt, then_tell: events.Event | None = None) -> None:
        held.cancel_timer()
        held.phase = Phase.STORING
        self._lane.put([UnstoredOutcome(held, finish, then_tell)])

    async def _store_batch(self, batch: list[UnstoredOutcome]) -> list[ClaimStatusRow]:
        sent_at = time.monotonic()
        messages = self._reporter.changes.drain(sent_at)
        is_again = [ended.was_sent for ended in batch]
        for ended in batch:
            ended.was_sent = True
        rows = await self._store.finish(
            [ended.finish for ended in batch], max_crashes=self._max_crashes, events=messages
        )
        self._gate.record_statement(sent_at)
        await self._check_missing(batch, rows, is_again)
        return rows

    async def _check_missing(
        self, batch: list[UnstoredOutcome], rows: list[ClaimStatusRow], is_again: list[bool]
    ) -> None:
        """Find out what became of rows that did not come back: stored unheard the first time, or moved by another."""
        returned = {(row.id, row.claim_token) for row in rows}
        missing = [
            (ended, again)
            for ended, again in zip(batch, is_again, strict=True)
            if (ended.task.row.id, ended.task.row.claim_token) not in returned
        ]
        repeated = [ended for ended, again in missing if again]
        known = await self._store.recorded_outcomes([ended.finish.claim for ended in repeated]) if repeated else []
        stored = {(row.id, row.claim_token, row.outcome, row.error_code) for row in known}
        self._late = [ended for ended, _ in missing if _attempt_of(ended) not in stored]
        if self._late:
            await self._emit_late()

    async def _emit_late(self) -> None:
        standing = {
            row.id: row for row in await self._store.current_states([ended.task.row.id for ended in self._late])
        }
        for ended in self._late:
            held, now = ended.task, standing.get(ended.task.row.id)
            self._reporter.emit(
                events.LateResultRefused(
                    worker_id=str(held.claim.worker_id),
                    task_id=held.key.task_id,
                    claim_token=held.key.claim_token,
                    queue_name=held.row.queue_name,
                    status=now.status if now else None,
                    token_now=now.claim_token if now else None,
                    owner_now=str(now.worker_id) if now and now.worker_id else None,
                    outcome=ended.finish.outcome,
                    error_code=ended.finish.error_code,
                    started_at=now.started_at if now else None,
                    moved_at=(now.terminal_at or now.claimed_at) if now else None,
                )
            )

    def _on_stored(self, batch: list[UnstoredOutcome], rows: list[ClaimStatusRow]) -> None:
        moved = {(row.id, row.claim_token): row.status for row in rows}
        is_told = self._reporter.is_enabled_for(events.TaskFinished)
        ids: dict[tuple[str, str], list[str]] = {}
        for ended in batch:
            held = ended.task
            self._desk.remove(held)
            if ended.event_when_stored is not None and ended not in self._late:
                self._reporter.emit(ended.event_when_stored)
            status = moved.get((held.row.id, held.row.claim_token))
            if status is not None:
                ids.setdefault((status, held.row.queue_name), []).append(held.key.task_id)
                if ended.finish.retry_delay_s is not None and status == TaskStatus.PENDING:
                    self._retried(ended.finish.retry_delay_s)
                if is_told:
                    self._emit_finished(ended, TaskStatus(status))
        for (name, queue), theirs in ids.items():
            status = TaskStatus(name)
            self._reporter.record_change(_TRANSITION_NAMES[status], queue, TaskStatus.RUNNING, status, theirs)
            self._reporter.totals.add_finished(status, len(theirs))
            if status is TaskStatus.FAILED:
                self._report_failed(batch, frozenset(theirs))
        if any(ended.task.row.is_workflow_task for ended in batch):
            self._nodes_ended()
        self._stored()

    def _report_failed(self, batch: list[UnstoredOutcome], failed: Container[str]) -> None:
        for ended in batch:
            held = ended.task
            if held.key.task_id in failed:
                self._reporter.totals.add_failed(
                    held.row.task_name,
                    error_code=ended.finish.error_code,
                    task_id=held.key.task_id,
                    message=ended.finish.error_message,
                )
        self._reporter.emit_failures(str(batch[0].task.claim.worker_id))

    def _emit_finished(self, ended: UnstoredOutcome, status: TaskStatus) -> None:
        held = ended.task
        self._reporter.emit(
            events.TaskFinished(
                worker_id=str(held.claim.worker_id),
                task_id=held.key.task_id,
                claim_token=held.key.claim_token,
                queue_name=held.row.queue_name,
                task_name=held.row.task_name,
                status=status,
                error_code=ended.finish.error_code,
                run_ms=None,
            )
        )

    def _on_refused(self, ended: UnstoredOutcome, error: StatementFailed) -> None:
        """The server will never take this row: its task has failed for that, and the others pass."""
        code = OperationalErrorCode.WORKER_SERIALIZATION_ERROR
        failure = TaskError(error_code=code, message=f"the server refused the result: {error.message}")
        finish = FinishedAttempt(
            claim=ended.task.claim,
            outcome=TaskAttemptOutcome.WORKER_FAILURE,
            document=_error_document(failure),
            error_code=code,
            error_message=failure.message,
            pid=ended.finish.pid,
        )
        self._lane.put([UnstoredOutcome(ended.task, finish)])


def _attempt_of(ended: UnstoredOutcome) -> tuple[object, ...]:
    hold, finish = ended.finish.claim, ended.finish
    return hold.task_id, hold.claim_token, finish.outcome, finish.error_code


def _pid_of(held: InFlightTask) -> int | None:
    return None if held.child is None else held.child.pid


def _error_document(error: TaskError) -> str:
    return canonical_json({"err": encode_task_error(error)})


# What is written for the tasks of a child that has ended.


class CrashHandler:
    """Turns deaths of children into outcomes of their tasks."""

    def __init__(
        self,
        outcomes: Completer,
        tasks: TaskStore,
        reporter: Reporter,
        *,
        max_crashes: int,
        on_attempt_failed: Callable[[InFlightTask, FailAttempt], None],
    ) -> None:
        self._outcomes = outcomes
        self._settled = on_attempt_failed
        self._tasks = tasks
        self._reporter = reporter
        self._max_crashes = max_crashes

    def resolve(self, held: InFlightTask, death: Death, *, earlier: tuple[str, ...] = ()) -> Resolution:
        """Store what becomes of a task that had begun; the fate says whether there was anything to store."""
        task = AssignedTask(
            task_id=held.key.task_id,
            has_begun=True,
            retry_policy=held.retry_policy,
            retry_count=held.row.retry_count,
            crash_count=held.row.crash_count,
            timeout_ms=held.timeout_ms,
            earlier_crashes=earlier,
        )
        # Jitter spreads retries; it guards nothing.
        fate = resolve_task(task, death, jitter=random.random())  # noqa: S311
        if isinstance(fate, FailAttempt):
            self._settled(held, fate)
            is_poison = fate.poison_error is not None and held.row.crash_count + 1 >= self._max_crashes
            poisoned = _poison_event(held, (*earlier, fate.error.message or "")) if is_poison else None
            self._outcomes.complete_interrupted(held, fate, then_tell=poisoned)
        return fate

    async def earlier_crashes(self, held: InFlightTask) -> tuple[str, ...]:
        """What earlier attempts died of, oldest first; asked only where this crash may be the last one allowed."""
        if held.row.crash_count == 0 or held.row.crash_count + 1 < self._max_crashes:
            return ()
        crashed = OperationalErrorCode.WORKER_CRASHED
        attempts = await self._tasks.attempts(held.row.id)
        return tuple(row.error_message or "" for row in reversed(attempts) if row.error_code == crashed)

    def emit_child_died(self, held: InFlightTask, death: Death, died: ChildExit) -> None:
        if not isinstance(death, Crash):
            return
        self._reporter.emit(
            events.ChildDied(
                worker_id=str(held.claim.worker_id),
                task_id=held.key.task_id,
                claim_token=held.key.claim_token,
                queue_name=held.row.queue_name,
                pid=died.pid,
                cause=death.cause,
                signal=died.signal,
                exit_status=died.exit_status,
            )
        )


def _poison_event(held: InFlightTask, causes: tuple[str, ...]) -> events.TaskPoisoned:
    return events.TaskPoisoned(
        worker_id=str(held.claim.worker_id),
        task_id=held.key.task_id,
        claim_token=held.key.claim_token,
        queue_name=held.row.queue_name,
        crash_count=held.row.crash_count + 1,
        causes=causes,
    )


def classify_death(died: ChildExit, kill: Kill | None) -> Death:
    """The death as the rules know it; `kill` is what this worker had decided about the child, if anything."""
    if not died.cause.is_crash:
        return kill or Kill(reason=KillReason.SHUTDOWN, pid=died.pid)
    return Crash(cause=died.cause, pid=died.pid, why=died.why, signal=died.signal, exit_status=died.exit_status)


# Tasks that an operator had stopped here, on their way back into the queue.

logger = logging.getLogger("horsies.worker")


class Requeuer:
    """Puts back what was stopped, once its process is gone: with its attempt, and without spending a retry."""

    def __init__(self, database: Database, desk: InFlight, backoff: Backoff) -> None:
        self._database = database
        self._desk = desk
        self._backoff = backoff

    async def requeue(self, held: InFlightTask) -> None:
        """Tried until the database has answered; whoever asked may have moved the row meanwhile."""
        held.child = None  # gone; until its row is moved, the worker speaks for the task
        target = Target(id=held.row.id, status=TaskStatus.RUNNING, claim_token=held.row.claim_token)
        try:
            while not await self._try_requeue(target):
                pass
        except HorsiesError as error:
            # No longer on our desk and still in our name, it is given back with the next reconciliation.
            logger.warning(
                "task %s was stopped and could not be put back: %s", held.key.task_id, format_one_line(error)
            )
        finally:
            self._desk.remove(held)

    async def _try_requeue(self, target: Target) -> bool:
        try:
            await self._database.run(lambda transaction: requeue(transaction, [target]))
        except HorsiesError as error:
            await self._backoff.wait(error)
            return False
        self._backoff.reset()
        return True


# What children report, and what follows from it for their tasks.

output_logger = logging.getLogger("horsies.task")


class PoolEvents:
    """Hears the pool. Every task that was handed over ends as an outcome, is settled, or is given back."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._resolving: set[asyncio.Task[None]] = set()

    def on_ready(self, child: Child) -> None:
        self._parts.assignments.for_child(child)
        self._parts.wake()

    def on_began(self, child: Child, key: AttemptKey) -> None:
        self._parts.assignments.on_began(child, key)

    def on_ended(self, child: Child, key: AttemptKey, ending: EncodedOutcome) -> None:
        held = self._parts.assignments.remove(child, key)
        if held is not None and held.stop_reason is not None:
            self._resolve_soon(held, Kill(reason=held.stop_reason, pid=child.pid, task_id=key.task_id), None)
        elif held is not None:
            self._parts.assignments.record_duration(held, ending.run_ms)
            self._parts.completer.complete(held, ending)
        self._parts.wake()

    def on_recalled(self, child: Child, keys: Sequence[AttemptKey]) -> None:
        """Nothing of these has run: what was to be stopped goes back, the rest starts anew where a child is idle."""
        hands = self._parts.assignments
        taken = [held for key in keys if (held := hands.remove(child, key)) is not None]
        # A row that is no longer ours is refused there; one that an operator wants again is not to begin here first.
        self._parts.releases.add(held for held in taken if not _may_begin(held))
        others = [other for other in self._parts.capacity.available_children() if other is not child]
        self._reassign([held for held in taken if _may_begin(held)], others)
        if taken:
            worker_id = str(self._parts.identity.worker_id)
            self._parts.reporter.emit(events.ChunkRecalled(worker_id=worker_id, pid=child.pid, unbegun=len(taken)))
        self._parts.wake()

    def _reassign(self, helds: Sequence[InFlightTask], children: Sequence[Child]) -> None:
        """One to each child that is idle, the others back into the queue."""
        hands, returns = self._parts.assignments, self._parts.releases
        idle = (
            [] if self._parts.capacity.is_closed else [child for child in children if not hands.for_child(child).tasks]
        )
        for held, child in zip(helds, idle, strict=False):
            held.stop_reason = None  # it was late through no fault of its own, and its time counts anew
            returns.add(hands.assign(child, [held]))
        returns.add(helds[len(idle) :])

    def on_output(self, child: Child, key: AttemptKey | None, stream: Stream, line: str) -> None:
        level = logging.WARNING if stream == "stderr" else logging.INFO
        output_logger.log(level, "%s", line, extra={"task_id": key.task_id if key else None, "pid": child.pid})

    def on_exit(self, child: Child, death: ChildExit) -> None:
        occupancy = self._parts.assignments.remove_child(child)
        for key in death.unbegun:
            if (held := occupancy.tasks.get(key)) is not None:
                held.cancel_timer()
                self._parts.releases.add([held])
        begun = [held for key in death.begun if (held := occupancy.tasks.get(key)) is not None]
        verdict = classify_death(death, occupancy.kill)
        for held in begun:
            held.cancel_timer()
            self._resolve_soon(held, verdict, death)
        self._parts.wake()

    def _resolve_soon(self, held: InFlightTask, verdict: Death, death: ChildExit | None) -> None:
        task = asyncio.create_task(self._resolve(held, verdict, death))
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    async def _resolve(self, held: InFlightTask, verdict: Death, death: ChildExit | None) -> None:
        settling = self._parts.crash_handler
        earlier = await self._earlier_crashes(held)
        if death is not None:
            settling.emit_child_died(held, verdict, death)
        match settling.resolve(held, verdict, earlier=earlier):
            case ReleaseTask():
                self._parts.releases.add([held])
            case DropTask():
                self._parts.in_flight.remove(held)
            case RequeueTask():
                await self._parts.requeuer.requeue(held)
            case FailAttempt():
                pass  # its outcome is on the way
        self._parts.wake()

    async def _earlier_crashes(self, held: InFlightTask) -> tuple[str, ...]:
        try:
            return await self._parts.crash_handler.earlier_crashes(held)
        except HorsiesError:
            return ()  # the causes are for people; the verdict does not wait for them


def _may_begin(held: InFlightTask) -> bool:
    return held.stop_reason is None or held.stop_reason is KillReason.TIMEOUT
