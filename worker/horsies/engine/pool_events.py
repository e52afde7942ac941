"""Handles the events of the child pool: every assigned task ends as a stored outcome, a release or a requeue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from horsies.codec.results import error_document
from horsies.engine import events
from horsies.engine.completer import Completer, finished_attempt
from horsies.engine.dispatcher import ReleaseReason
from horsies.engine.hooks import INTERRUPTION_REASONS
from horsies.engine.in_flight import Assignments, Chunk, ChunkTask, CompletedTask, InFlight, InFlightTask
from horsies.engine.pool.protocol import OUTPUT_LOGGER, EncodedOutcome, LogLine
from horsies.engine.service import Backoff
from horsies.errors import HorsiesError, format_one_line
from horsies.model.retry import (
    MAX_FREE_LOST_STARTS,
    Cause,
    Crash,
    Death,
    Fail,
    Kill,
    KillReason,
    interruption,
    poison_error,
)
from horsies.model.task import TaskAttemptOutcome, TaskStatus
from horsies.model.task_result import OperationalErrorCode
from horsies.store.claims import FinishedAttempt
from horsies.store.database import Database
from horsies.store.operators import Target, requeue
from horsies.store.tasks import TaskStore

if TYPE_CHECKING:
    from horsies.engine.dispatcher import Releases, Wakeup
    from horsies.engine.heartbeat import WorkerIdentity
    from horsies.engine.pool.child import Child, ChildExit
    from horsies.engine.reporter import Reporter
    from horsies.engine.unknown_tasks import UnknownTasks

logger = logging.getLogger("horsies.worker")
output_logger = logging.getLogger(OUTPUT_LOGGER)


@dataclass(eq=False, slots=True, kw_only=True)
class PoolEvents:
    """Implements PoolListener for a worker."""

    assignments: Assignments
    completer: Completer
    in_flight: InFlight
    releases: Releases
    crash_handler: CrashHandler
    requeuer: Requeuer
    reporter: Reporter
    identity: WorkerIdentity
    wakeup: Wakeup
    unknown_tasks: UnknownTasks
    fails_unknown_tasks: bool
    publish_health_now: asyncio.Event
    _resolving: set[asyncio.Task[None]] = field(init=False, default_factory=set[asyncio.Task[None]])

    def on_ready(self, child: Child) -> None:  # noqa: ARG002  # any ready child adds a slot
        if self.unknown_tasks.names:
            self.unknown_tasks.clear()
            self.wakeup.wake_to_claim()
        self.wakeup.wake()

    def on_degraded_changed(self) -> None:
        self.publish_health_now.set()

    def on_fork_server_lost(self, pid: int, why: str) -> None:
        self.reporter.emit(events.ForkServerLost(worker_id=str(self.identity.worker_id), pid=pid, why=why))
        self.publish_health_now.set()
        self.wakeup.wake()

    def on_fork_server_restored(self) -> None:
        self.reporter.emit(events.ForkServerRestored(worker_id=str(self.identity.worker_id)))
        self.publish_health_now.set()
        self.wakeup.wake_to_claim()

    def on_began(self, began: Sequence[tuple[Chunk, int]]) -> None:
        self.assignments.on_began(began)

    def on_completed(self, completed: Sequence[CompletedTask]) -> None:
        stopped: list[CompletedTask] = []
        for task in completed:
            chunk, position, _, run_ms = task
            self.assignments.on_out(chunk, position)
            if chunk.stop_reasons and position in chunk.stop_reasons:
                stopped.append(task)
            else:
                self.assignments.observe(chunk.rows[position], run_ms)
        for task in stopped:
            self._resolve_stopped(task.chunk, task.position)
        self.completer.complete([task for task in completed if task not in stopped] if stopped else completed)
        self.wakeup.wake()

    def on_failed(self, chunk: Chunk, position: int, outcome: EncodedOutcome, run_ms: float) -> None:
        self.assignments.on_out(chunk, position)
        if position in chunk.stop_reasons:
            self._resolve_stopped(chunk, position)
        elif outcome.is_unknown_task:
            self._on_unknown_task(_task(chunk, position), outcome)
        else:
            self.assignments.observe(chunk.rows[position], run_ms)
            task = _task(chunk, position)
            self.completer.store(task, finished_attempt(task, outcome), run_ms=run_ms)
        self.wakeup.wake()

    def _resolve_stopped(self, chunk: Chunk, position: int) -> None:
        """Resolve a task that this worker stopped; the outcome that its child reported is ignored."""
        task = _task(chunk, position)
        kill = Kill(reason=chunk.stop_reasons[position], pid=chunk.child.pid, task_id=task.key.task_id)
        self._resolve_soon(task, kill, None)

    def _on_unknown_task(self, task: InFlightTask, outcome: EncodedOutcome) -> None:
        """Leave the task to workers whose app defines it, unless unknown tasks are configured to fail at once."""
        self.unknown_tasks.report(task.row.task_name)
        if self.fails_unknown_tasks:
            self.completer.store(task, finished_attempt(task, outcome))
        else:
            self.unknown_tasks.exclude(task.row.task_name)
            self.releases.add([task], ReleaseReason.UNKNOWN)
            self.publish_health_now.set()

    def on_recalled(self, child: Child, tasks: Sequence[ChunkTask]) -> None:
        """Release recalled tasks, including those that an operator stopped before they began.

        Another child or worker claims them; rows that this worker no longer owns are skipped.
        """
        for chunk, position in tasks:
            self.assignments.on_out(chunk, position)
        self.releases.add(_task(chunk, position) for chunk, position in tasks)
        if tasks:
            worker_id = str(self.identity.worker_id)
            self.reporter.emit(events.ChunkRecalled(worker_id=worker_id, pid=child.pid, unbegun=len(tasks)))
        self.wakeup.wake_to_claim()

    def on_output(self, child: Child, line: LogLine) -> None:
        """Log what a child logged or printed, under the name of its own logger.

        Only prints are filtered by the worker's level: the loggers of the child have decided already.
        """
        if line.logger != OUTPUT_LOGGER or output_logger.isEnabledFor(line.level):
            with suppress(Exception):  # a logging filter of the app may raise
                output_logger.handle(_to_record(line, pid=child.pid))

    def on_exit(self, child: Child, child_exit: ChildExit) -> None:
        """Resolve the tasks that had begun; release the others, unless that happened too often."""
        death = classify_death(child_exit, self.assignments.remove_child(child))
        is_crash, begun = isinstance(death, Crash), [_task(*task) for task in child_exit.begun]
        for task in (_task(*task) for task in child_exit.unbegun):
            if is_crash and task.details.lost_starts >= MAX_FREE_LOST_STARTS:
                begun.append(task)
            else:
                self.releases.add([task], ReleaseReason.LOST_START if is_crash else None)
        for task in begun:
            self._resolve_soon(task, death, child_exit)
        self.wakeup.wake()

    def _resolve_soon(self, task: InFlightTask, death: Death, child_exit: ChildExit | None) -> None:
        resolving = asyncio.create_task(self._resolve(task, death, child_exit))
        self._resolving.add(resolving)
        resolving.add_done_callback(self._resolving.discard)

    async def _resolve(self, task: InFlightTask, death: Death, child_exit: ChildExit | None) -> None:
        if child_exit is not None:
            self.crash_handler.emit_child_died(task, death, child_exit)
        try:
            # Only the task that caused a kill is dropped or requeued; the attempts of other tasks in its child fail.
            match death:
                case Kill(reason=KillReason.ROW_LOST, task_id=cause_id) if cause_id == task.key.task_id:
                    self.in_flight.settle(task)
                case Kill(reason=KillReason.REQUEUED, task_id=cause_id) if cause_id == task.key.task_id:
                    await self.requeuer.requeue(task)
                case _:
                    await self.crash_handler.fail_attempt(task, death)
        except Exception:
            # Without an entry in flight it sends no more heartbeats, and recovery takes it.
            logger.exception("cannot decide how a task ended", extra={"task_id": task.key.task_id})
            self.in_flight.settle(task)
        self.wakeup.wake()


def _to_record(line: LogLine, *, pid: int) -> logging.LogRecord:
    label = {} if line.task is None else line.task._asdict()
    attributes = {
        **line.fields,
        **label,
        "pid": pid,
        "name": line.logger,
        "levelno": line.level,
        "levelname": logging.getLevelName(line.level),
        "msg": line.message,
        "exc_text": line.exception,
    }
    return logging.makeLogRecord(attributes)


def _task(chunk: Chunk, position: int) -> InFlightTask:
    return InFlightTask(chunk.rows[position], chunk.worker_id, chunk, position)


def classify_death(child_exit: ChildExit, kill: Kill | None) -> Death:
    """A crash, or a kill by this worker; without a recorded reason the worker was shutting down."""
    if not child_exit.cause.is_crash:
        return kill or Kill(reason=KillReason.SHUTDOWN, pid=child_exit.pid)
    return Crash(
        cause=child_exit.cause,
        pid=child_exit.pid,
        why=child_exit.why,
        signal=child_exit.signal,
        exit_status=child_exit.exit_status,
    )


@dataclass(eq=False, slots=True)
class CrashHandler:
    """Fails the attempts of tasks that were running in a child that exited, or that this worker stopped."""

    completer: Completer
    tasks: TaskStore
    reporter: Reporter
    _: KW_ONLY
    max_crashes: int
    on_attempt_failed: Callable[[InFlightTask, Cause], None]

    async def fail_attempt(self, task: InFlightTask, death: Death) -> None:
        """Decide whether the task is retried, and pass the outcome to the completer."""
        cause, error = interruption(death, task_id=task.key.task_id, timeout_ms=task.timeout_ms)
        decision = task.decide_retry(cause, max_crashes=self.max_crashes)
        final_error, poisoned = error, None
        if isinstance(decision, Fail) and decision.code == OperationalErrorCode.POISON_TASK:
            causes = (*await self._earlier_crashes(task), error.message or "")
            final_error = poison_error(error, crash_count=task.details.crash_count + 1, causes=causes)
            poisoned = _poison_event(task, causes)
        reason = INTERRUPTION_REASONS.get(cause)
        failed_reason = None
        if reason is not None:
            failed_reason = reason.failed_reason if isinstance(decision, float) else error.message
        self.on_attempt_failed(task, cause)
        finish = FinishedAttempt(
            claim=task.claim,
            outcome=TaskAttemptOutcome.FAILED,
            document=error_document(final_error),
            error_code=error.error_code,
            error_message=error.message,
            failed_reason=failed_reason,
            retry_delay_s=decision if isinstance(decision, float) else None,
            is_crash=cause.is_crash,
            final_code=final_error.error_code,
            pid=task.pid,
        )
        self.completer.store(task, finish, event_when_stored=poisoned)

    async def _earlier_crashes(self, task: InFlightTask) -> tuple[str, ...]:
        """Error messages of earlier crashes, oldest first; none if the database does not answer.

        They only add detail to the error, so the outcome does not wait for them.
        """
        if task.details.crash_count == 0:
            return ()
        try:
            return await self.tasks.crash_messages(task.row.id)
        except HorsiesError:
            return ()

    def emit_child_died(self, task: InFlightTask, death: Death, child_exit: ChildExit) -> None:
        if not isinstance(death, Crash):
            return
        self.reporter.emit(
            events.ChildDied(
                worker_id=str(task.claim.worker_id),
                task_id=task.key.task_id,
                claim_token=task.key.claim_token,
                queue_name=task.row.queue_name,
                pid=child_exit.pid,
                cause=death.cause,
                signal=child_exit.signal,
                exit_status=child_exit.exit_status,
            )
        )


def _poison_event(task: InFlightTask, causes: tuple[str, ...]) -> events.TaskPoisoned:
    return events.TaskPoisoned(
        worker_id=str(task.claim.worker_id),
        task_id=task.key.task_id,
        claim_token=task.key.claim_token,
        queue_name=task.row.queue_name,
        crash_count=task.details.crash_count + 1,
        causes=causes,
    )


@dataclass(eq=False, slots=True)
class Requeuer:
    """Requeues running tasks for an operator, after they have stopped; records an attempt, uses no retry."""

    database: Database
    in_flight: InFlight
    backoff: Backoff

    async def requeue(self, task: InFlightTask) -> None:
        """Requeue, retrying while the database is unavailable; a row that has changed meanwhile is left alone."""
        target = Target(id=task.row.id, status=TaskStatus.RUNNING, claim_token=task.row.claim_token)
        try:
            while not await self._try_requeue(target):
                pass
        except HorsiesError as error:
            # No longer in flight but still claimed by this worker, it is released by the next reconciliation.
            fields = {"task_id": task.key.task_id, "error": format_one_line(error)}
            logger.warning("cannot requeue a stopped task", extra=fields)
        finally:
            self.in_flight.settle(task)

    async def _try_requeue(self, target: Target) -> bool:
        try:
            await self.database.run(lambda transaction: requeue(transaction, [target]))
        except HorsiesError as error:
            await self.backoff.wait(error)
            return False
        self.backoff.reset()
        return True
