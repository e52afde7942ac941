"""Handles the events of the child pool: every assigned task ends as a stored outcome, a release or a requeue."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from horsies.engine import events
from horsies.engine.completer import Completer
from horsies.engine.in_flight import InFlight, InFlightTask
from horsies.engine.pool.protocol import AttemptKey, EncodedOutcome, Stream
from horsies.engine.service import Backoff
from horsies.errors import HorsiesError, format_one_line
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
)
from horsies.model.task import TaskStatus
from horsies.model.task_result import OperationalErrorCode
from horsies.store.database import Database
from horsies.store.operators import Target, requeue
from horsies.store.tasks import TaskStore

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child, ChildExit
    from horsies.engine.reporter import Reporter
    from horsies.engine.worker import Parts

logger = logging.getLogger("horsies.worker")
output_logger = logging.getLogger("horsies.task")


class PoolEvents:
    """Implements PoolListener for a worker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._resolving: set[asyncio.Task[None]] = set()

    def on_ready(self, child: Child) -> None:
        self._parts.assignments.for_child(child)
        self._parts.wake()

    def on_began(self, child: Child, key: AttemptKey) -> None:
        self._parts.assignments.on_began(child, key)

    def on_ended(self, child: Child, key: AttemptKey, outcome: EncodedOutcome) -> None:
        task = self._parts.assignments.remove(child, key)
        if task is not None and task.stop_reason is not None:
            self._resolve_soon(task, Kill(reason=task.stop_reason, pid=child.pid, task_id=key.task_id), None)
        elif task is not None:
            self._parts.assignments.record_duration(task, outcome.run_ms)
            self._parts.completer.complete(task, outcome)
        self._parts.wake()

    def on_recalled(self, child: Child, keys: Sequence[AttemptKey]) -> None:
        """Assign recalled tasks to idle children; release the rest, and all that were recalled to be stopped."""
        assignments, releases = self._parts.assignments, self._parts.releases
        recalled = [task for key in keys if (task := assignments.remove(child, key)) is not None]
        # These must not begin any more, for example because an operator requeued them. The release skips rows that are
        # no longer ours.
        releases.add(task for task in recalled if not _may_begin(task))
        startable = [task for task in recalled if _may_begin(task)]
        others = [other for other in self._parts.capacity.available_children() if other is not child]
        is_closed = self._parts.capacity.is_closed
        idle = [] if is_closed else [other for other in others if not assignments.for_child(other).tasks]
        for task, other in zip(startable, idle, strict=False):
            task.stop_reason = None  # the timeout starts again: it expired while the task was waiting
            releases.add(assignments.assign(other, [task]))
        releases.add(startable[len(idle) :])
        if recalled:
            worker_id = str(self._parts.identity.worker_id)
            self._parts.reporter.emit(events.ChunkRecalled(worker_id=worker_id, pid=child.pid, unbegun=len(recalled)))
        self._parts.wake()

    def on_output(self, child: Child, key: AttemptKey | None, stream: Stream, line: str) -> None:
        level = logging.WARNING if stream == "stderr" else logging.INFO
        output_logger.log(level, "%s", line, extra={"task_id": key.task_id if key else None, "pid": child.pid})

    def on_exit(self, child: Child, child_exit: ChildExit) -> None:
        """Release the tasks that had not begun and resolve those that had."""
        assigned = self._parts.assignments.remove_child(child)
        for key in child_exit.unbegun:
            if (task := assigned.tasks.get(key)) is not None:
                task.cancel_timer()
                self._parts.releases.add([task])
        begun = [task for key in child_exit.begun if (task := assigned.tasks.get(key)) is not None]
        death = classify_death(child_exit, assigned.kill)
        for task in begun:
            task.cancel_timer()
            self._resolve_soon(task, death, child_exit)
        self._parts.wake()

    def _resolve_soon(self, task: InFlightTask, death: Death, child_exit: ChildExit | None) -> None:
        resolving = asyncio.create_task(self._resolve(task, death, child_exit))
        self._resolving.add(resolving)
        resolving.add_done_callback(self._resolving.discard)

    async def _resolve(self, task: InFlightTask, death: Death, child_exit: ChildExit | None) -> None:
        crash_handler = self._parts.crash_handler
        try:
            earlier = await crash_handler.earlier_crashes(task)
        except HorsiesError:
            earlier = ()  # they only add detail to the error; the outcome does not wait for them
        if child_exit is not None:
            crash_handler.emit_child_died(task, death, child_exit)
        match crash_handler.resolve(task, death, earlier=earlier):
            case ReleaseTask():
                self._parts.releases.add([task])
            case DropTask():
                self._parts.in_flight.remove(task)
            case RequeueTask():
                await self._parts.requeuer.requeue(task)
            case FailAttempt():
                pass  # passed to the completer by resolve()
        self._parts.wake()


def _may_begin(task: InFlightTask) -> bool:
    """Whether a recalled task may still run: it was not stopped, or only timed out before it began."""
    return task.stop_reason is None or task.stop_reason is KillReason.TIMEOUT


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


class CrashHandler:
    """Decides what happens to the tasks that were running in a child that exited."""

    def __init__(
        self,
        completer: Completer,
        tasks: TaskStore,
        reporter: Reporter,
        *,
        max_crashes: int,
        on_attempt_failed: Callable[[InFlightTask, FailAttempt], None],
    ) -> None:
        self._completer = completer
        self._on_attempt_failed = on_attempt_failed
        self._tasks = tasks
        self._reporter = reporter
        self._max_crashes = max_crashes

    def resolve(self, task: InFlightTask, death: Death, *, earlier: tuple[str, ...] = ()) -> Resolution:
        """Decide about a task that had begun; a failed attempt is passed to the completer."""
        assigned = AssignedTask(
            task_id=task.key.task_id,
            has_begun=True,
            retry_policy=task.retry_policy,
            retry_count=task.row.retry_count,
            crash_count=task.row.crash_count,
            timeout_ms=task.timeout_ms,
            earlier_crashes=earlier,
        )
        resolution = resolve_task(assigned, death, jitter=random.random())  # noqa: S311  # jitter, not security
        if isinstance(resolution, FailAttempt):
            self._on_attempt_failed(task, resolution)
            is_poison = resolution.poison_error is not None and task.row.crash_count + 1 >= self._max_crashes
            poisoned = _poison_event(task, (*earlier, resolution.error.message or "")) if is_poison else None
            self._completer.complete_interrupted(task, resolution, event_when_stored=poisoned)
        return resolution

    async def earlier_crashes(self, task: InFlightTask) -> tuple[str, ...]:
        """Error messages of earlier crashes, oldest first; queried only if this crash may reach the limit."""
        if task.row.crash_count == 0 or task.row.crash_count + 1 < self._max_crashes:
            return ()
        attempts = await self._tasks.attempts(task.row.id)
        crashed = OperationalErrorCode.WORKER_CRASHED
        return tuple(row.error_message or "" for row in reversed(attempts) if row.error_code == crashed)

    def emit_child_died(self, task: InFlightTask, death: Death, child_exit: ChildExit) -> None:
        if not isinstance(death, Crash):
            return
        self._reporter.emit(
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
        crash_count=task.row.crash_count + 1,
        causes=causes,
    )


class Requeuer:
    """Requeues tasks that an operator had stopped, once their process is gone; records an attempt, spends no retry."""

    def __init__(self, database: Database, in_flight: InFlight, backoff: Backoff) -> None:
        self._database = database
        self._in_flight = in_flight
        self._backoff = backoff

    async def requeue(self, task: InFlightTask) -> None:
        """Requeue, retrying while the database is unavailable; a row that has changed meanwhile is left alone."""
        task.child = None  # the child is gone: from now on the worker itself sends the heartbeats
        target = Target(id=task.row.id, status=TaskStatus.RUNNING, claim_token=task.row.claim_token)
        try:
            while not await self._try_requeue(target):
                pass
        except HorsiesError as error:
            # No longer in flight but still claimed by this worker, it is released by the next reconciliation.
            logger.warning(
                "cannot requeue a stopped task  task_id=%s  error=%s", task.key.task_id, format_one_line(error)
            )
        finally:
            self._in_flight.remove(task)

    async def _try_requeue(self, target: Target) -> bool:
        try:
            await self._database.run(lambda transaction: requeue(transaction, [target]))
        except HorsiesError as error:
            await self._backoff.wait(error)
            return False
        self._backoff.reset()
        return True
