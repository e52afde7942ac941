"""Reports what the worker does: log, in-process listeners, `horsies_events`, notifications to viewers, snapshots."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING

import psutil

from horsies.engine import events
from horsies.engine.events import REPORT_INTERVAL_S, AttemptTotals
from horsies.engine.heartbeat import Registration, WorkerIdentity
from horsies.engine.in_flight import InFlightTask
from horsies.engine.service import Backoff, run_until
from horsies.errors import HorsiesError
from horsies.log import StructuredMessage
from horsies.model.events import PUBLISH_INTERVAL_S, ChangeSummary, EventRecord, TaskChange
from horsies.model.result import WorkerLoad
from horsies.model.task import TaskStatus
from horsies.model.text import first_line
from horsies.store.operators import EventStore
from horsies.store.workers import WorkerStore

if TYPE_CHECKING:
    from horsies.engine.in_flight import InFlight
    from horsies.engine.pool.pool import ChildPool
    from horsies.model.settings import AppConfig, WorkerConfig

MB = 1024 * 1024

MAX_QUEUED_EVENTS = 1000
"""Events kept while the database is unavailable; further ones are only logged."""

LINES_PER_S = 5
MAX_BURST_LINES = 10
TERMINAL_SUMMARY_INTERVAL_S = 2.0

MAX_MESSAGE_CHARS = 200
"""Characters of a task's error message in the log; the row has all of it."""

_LEVELS: dict[type[events.Event], int] = {
    events.LateResultRefused: logging.WARNING,
    events.LateHeartbeatRefused: logging.WARNING,
    events.TaskPoisoned: logging.ERROR,
    events.TaskUnknown: logging.WARNING,
    events.TasksFailed: logging.WARNING,
    events.ChildDied: logging.WARNING,
    events.ChildSilent: logging.WARNING,
    events.ForkServerLost: logging.WARNING,
    events.WorkerFenced: logging.WARNING,
    events.WorkerReturned: logging.WARNING,
    events.ListenerDegraded: logging.WARNING,
    events.DatabaseLost: logging.WARNING,
    events.ClaimsBlocked: logging.WARNING,
    events.OutageGraceStarted: logging.WARNING,
    events.HookFailed: logging.ERROR,
    events.RecoveryRefused: logging.ERROR,
    events.OperationDisabled: logging.ERROR,
    events.WorkerStarted: logging.INFO,
    events.TasksRan: logging.INFO,
    events.WorkerDraining: logging.INFO,
    events.WorkerStopped: logging.INFO,
    events.WorkerUnfenced: logging.INFO,
    events.ForkServerRestored: logging.INFO,
    events.ListenerRestored: logging.INFO,
    events.DatabaseRestored: logging.INFO,
    events.OutageGraceEnded: logging.INFO,
    events.OperationEnabled: logging.INFO,
    events.ClaimLost: logging.INFO,
}

_HINTS: dict[type[events.Event], str] = {
    events.TaskUnknown: "if it belongs to another project, give each project its own database or queue",
}

_LOGS_WORKER_ID = (events.WorkerStarted, events.WorkerReturned, events.WorkerStopped)
"""Events whose log line includes the worker id; in the others it would only be noise."""

_UNBEGUN_TRANSITIONS = {
    (TaskStatus.CLAIMED, TaskStatus.RUNNING): "start",
    (TaskStatus.CLAIMED, TaskStatus.PENDING): "release",
    (TaskStatus.CLAIMED, TaskStatus.EXPIRED): "expire claimed",
    (TaskStatus.CLAIMED, TaskStatus.CANCELLED): "cancel",
    (TaskStatus.RUNNING, TaskStatus.PENDING): "release running",
    (TaskStatus.RUNNING, TaskStatus.CANCELLED): "cancel running",
}

logger = logging.getLogger("horsies.worker")


class Reporter:
    """Emits the worker's events. As a service it stores those that operators can read in `horsies_events`."""

    name = "reporter"

    def __init__(self, store: EventStore, backoff: Backoff, *, task_lines: TaskLines | None = None) -> None:
        self._store = store
        self._backoff = backoff
        self.task_lines = task_lines
        self._queue: asyncio.Queue[EventRecord | None] = asyncio.Queue()
        self._listeners: list[Callable[[events.Event], None]] = []
        self.totals = AttemptTotals()
        self.changes_available = asyncio.Event()
        self.changes = ChangeSummary(on_added=self.changes_available.set)
        """Status changes for the next message to viewers."""

    def add_listener(self, listener: Callable[[events.Event], None]) -> None:
        self._listeners.append(listener)

    def is_enabled_for(self, event_type: type[events.Event]) -> bool:
        """Whether `emit` would do anything; check it before creating events at thousands per second."""
        if event_type is events.TaskFinished and self.task_lines is not None and self.task_lines.are_on:
            return True
        level = _LEVELS.get(event_type, logging.DEBUG)
        return event_type.kind is not None or bool(self._listeners) or logger.isEnabledFor(level)

    def emit(self, event: events.Event) -> None:
        """Log the event, call the listeners, and queue it for storage if its kind is stored."""
        self._log(event)
        for listener in self._listeners:
            listener(event)
        record = events.to_record(event)
        if record is not None and self._queue.qsize() < MAX_QUEUED_EVENTS:
            self._queue.put_nowait(record)

    def _log(self, event: events.Event) -> None:
        level = _LEVELS.get(type(event), logging.DEBUG)
        if self.task_lines is not None:
            level = self.task_lines.level_of(event, level)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", EventText(event))

    def emit_failures(self, worker_id: str) -> None:
        """Emit TasksFailed, at most once a minute per task name."""
        for failure in self.totals.drain_failures(time.monotonic()):
            self.emit(
                events.TasksFailed(
                    worker_id=worker_id,
                    task_name=failure.task_name,
                    count=failure.count,
                    error_code=failure.error_code,
                    task_id=failure.task_id,
                    message=first_line(failure.message or "", limit=MAX_MESSAGE_CHARS) or None,
                )
            )

    def record_unbegun_changes(self, tasks: Iterable[InFlightTask], source: TaskStatus, target: TaskStatus) -> None:
        """Add the new status of tasks that have not begun to `changes`."""
        ids: dict[str, list[str]] = {}
        for task in tasks:
            ids.setdefault(task.row.queue_name, []).append(task.key.task_id)
        kind = _UNBEGUN_TRANSITIONS[source, target]
        for queue, task_ids in ids.items():
            self.changes.add(TaskChange(kind=kind, queue=queue, source=source, target=target), task_ids)

    async def run(self, stop: asyncio.Event) -> None:
        """Store events until `stop` is set and the queue is empty."""
        stopping = asyncio.create_task(self._end_queue_after(stop))
        try:
            while (event := await self._queue.get()) is not None:
                await self._store_with_retry(event)
        finally:
            stopping.cancel()

    async def _end_queue_after(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._queue.put_nowait(None)

    async def _store_with_retry(self, event: EventRecord) -> None:
        while True:
            try:
                await self._store.record(event)
            except Exception as error:  # noqa: BLE001  # wait() raises errors that are not transient
                await self._backoff.wait(error)
            else:
                self._backoff.reset()
                return


@dataclass(frozen=True, slots=True)
class EventText(StructuredMessage):
    """An event as the argument of a log record, for a formatter that shows it differently."""

    event: events.Event

    def parts(self) -> tuple[str, Mapping[str, object]]:
        match self.event:
            case events.WorkerUnfenced():
                return "database is back, claiming again", {}
            case events.ForkServerLost(pid=pid, why=why):
                return "fork server lost, claiming nothing until another one is ready", {"pid": pid, "why": why}
            case events.ForkServerRestored():
                return "children can be started again", {}
            case event:
                values = {field.name: getattr(event, field.name) for field in fields(event)}
        if not isinstance(event, _LOGS_WORKER_ID):
            values.pop("worker_id", None)
        if "message" in values:  # a record has a message of its own
            values["error_message"] = values.pop("message")
        values["hint"] = values.get("hint") or _HINTS.get(type(event))
        # LateResultRefused -> late result refused
        title = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__).strip()
        return title, {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        match self.event:
            case events.TasksRan(count=count, failed=failed, retried=retried, within_s=within_s):
                tasks = "task" if count == 1 else "tasks"
                return f"{count} {tasks} in {within_s:g} s ({failed} failed, {retried} retried)"
            case _:
                return StructuredMessage.__str__(self)


class TaskLines:
    """Decides, for a worker on a terminal, which events are logged: each task while there are few, else summaries.

    A short burst is shown task by task. After it, no line is built for single tasks until a summary counts at most
    `LINES_PER_S`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed = float(MAX_BURST_LINES)
        self._allowed_at = clock()
        self.are_on = True

    def level_of(self, event: events.Event, default: int) -> int:
        """Return the level of an event; DEBUG if it is left out."""
        match event:
            case events.TaskFinished(status=status):
                if not self._spend_line():
                    return logging.DEBUG
                return logging.WARNING if status is TaskStatus.FAILED else logging.INFO
            case events.TasksFailed():
                return logging.DEBUG if self.are_on else default
            case _:
                return default

    def end_interval(self, count: int, *, interval_s: float) -> bool:
        """Show single tasks again if there were few; returns whether a summary is due, because some were left out."""
        was_on, self.are_on = self.are_on, self.are_on or count <= LINES_PER_S * interval_s
        return not was_on

    def _spend_line(self) -> bool:
        now = self._clock()
        self._allowed = min(self._allowed + (now - self._allowed_at) * LINES_PER_S, MAX_BURST_LINES)
        self._allowed_at = now
        if self.are_on and self._allowed >= 1:
            self._allowed -= 1
            return True
        self.are_on = False
        return False


class ChangePublisher:
    """Publishes status changes to viewers by NOTIFY.

    The statements that finish tasks and send heartbeats also publish pending changes; changes that are still pending
    after a quarter of a second are published here.
    """

    name = "change publisher"

    def __init__(self, reporter: Reporter, store: EventStore) -> None:
        self._reporter = reporter
        self._store = store

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set, then publish the rest."""
        await run_until(stop, self._publish_forever())
        due_at = self._reporter.changes.due_at()
        if due_at is not None:
            await asyncio.sleep(due_at - time.monotonic())
            await self._publish()

    async def _publish_forever(self) -> None:
        while True:
            await self._reporter.changes_available.wait()
            self._reporter.changes_available.clear()
            await asyncio.sleep(PUBLISH_INTERVAL_S)
            await self._publish()

    async def _publish(self) -> None:
        if messages := self._reporter.changes.drain(time.monotonic()):
            with suppress(HorsiesError):  # viewers also refresh by polling
                await self._store.notify_viewers(messages)


@dataclass(eq=False, slots=True)
class PeriodicSummary:
    """Logs once per interval how many tasks ran and which still fail."""

    name = "periodic summary"

    reporter: Reporter
    identity: WorkerIdentity
    _: KW_ONLY
    interval_s: float = REPORT_INTERVAL_S

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._emit_forever())

    async def _emit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            worker_id = str(self.identity.worker_id)
            self.reporter.emit_failures(worker_id)
            totals, lines = self.reporter.totals.drain(), self.reporter.task_lines
            is_due = lines is None or lines.end_interval(totals.count if totals else 0, interval_s=self.interval_s)
            if totals is not None and is_due:
                self.reporter.emit(
                    events.TasksRan(
                        worker_id=worker_id,
                        count=totals.count,
                        failed=totals.failed,
                        retried=totals.retried,
                        within_s=self.interval_s,
                    )
                )


@dataclass(eq=False, slots=True, kw_only=True)
class SnapshotWriter:
    """Stores a snapshot of the worker's load at every interval; a failed write is skipped."""

    name = "snapshot writer"

    worker_store: WorkerStore
    registration: Registration
    in_flight: InFlight
    pool: ChildPool
    app_config: AppConfig
    worker_config: WorkerConfig
    _process: psutil.Process = field(init=False, default_factory=psutil.Process)

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._write_forever())

    async def _write_forever(self) -> None:
        while True:
            with suppress(HorsiesError):
                await self.worker_store.write_snapshot(self._take_snapshot())
            await asyncio.sleep(self.worker_config.snapshot_interval_ms / 1000)

    def _take_snapshot(self) -> WorkerLoad:
        worker = self.registration.row
        queues = self.app_config.custom_queues or ()
        children_rss = sum(_rss_bytes(child.pid) for child in self.pool.children)
        return WorkerLoad(
            worker_id=str(worker.worker_id),
            hostname=worker.hostname,
            pid=worker.pid,
            processes=worker.processes,
            queues=list(worker.queues),
            recovery_config=dict(worker.recovery_config),
            worker_started_at=self.registration.started_at,
            max_claim_batch=self.worker_config.max_claim_batch,
            max_claim_per_worker=self.worker_config.max_claim_per_worker,
            cluster_wide_cap=self.app_config.cluster_wide_cap,
            queue_priorities={queue.name: queue.priority for queue in queues},
            queue_max_concurrency={queue.name: queue.max_concurrency for queue in queues},
            tasks_running=self.in_flight.count_started(),
            tasks_claimed=len(self.in_flight.prefetched),
            memory_usage_mb=self._process.memory_info().rss / MB,
            memory_percent=self._process.memory_percent(),
            cpu_percent=self._process.cpu_percent(),
            children_memory_mb=children_rss / MB,
        )


def _rss_bytes(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:  # the child has exited
        return 0
