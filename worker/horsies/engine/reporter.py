"""Telling what happens: to the log, to whoever listens in this process, and to `horsies_events`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, cast
from uuid import UUID

import psutil

from horsies.engine.heartbeat import WorkerIdentity
from horsies.engine.in_flight import InFlightTask, Phase
from horsies.engine.service import Backoff, run_until
from horsies.errors import HorsiesError
from horsies.model import events
from horsies.model.events import PUBLISH_INTERVAL_S, REPORT_INTERVAL_S, AttemptTotals, ChangeSummary, TaskChange
from horsies.model.task import TaskStatus
from horsies.model.text import first_line
from horsies.store.operators import EventStore
from horsies.store.operators import StoredEvent as Record
from horsies.store.workers import WorkerSnapshot, WorkerStore

if TYPE_CHECKING:
    from horsies.engine.worker import Parts


MAX_QUEUED_RECORDS = 1000
"""Records kept while the database is away; what happens beyond is in the log alone."""

MAX_MESSAGE_CHARS = 200
"""Characters of a failed task's error that the log shows; the row has the whole."""

_LEVELS: dict[type[events.Event], int] = {
    events.LateResultRefused: logging.WARNING,
    events.LateBeatRefused: logging.WARNING,
    events.TaskPoisoned: logging.ERROR,
    events.TaskUnknown: logging.WARNING,
    events.TasksFailed: logging.WARNING,
    events.ChildDied: logging.WARNING,
    events.ChildSilent: logging.WARNING,
    events.WorkerFenced: logging.WARNING,
    events.WorkerReturned: logging.WARNING,
    events.ListenerDegraded: logging.WARNING,
    events.DatabaseLost: logging.WARNING,
    events.OutageGraceStarted: logging.WARNING,
    events.HookFailed: logging.ERROR,
    events.RecoveryRefused: logging.ERROR,
    events.OperationDisabled: logging.ERROR,
    events.ServiceDied: logging.CRITICAL,
    events.WorkerStarted: logging.INFO,
    events.TasksRan: logging.INFO,
    events.WorkerDraining: logging.INFO,
    events.WorkerStopped: logging.INFO,
    events.WorkerUnfenced: logging.INFO,
    events.ListenerRestored: logging.INFO,
    events.DatabaseRestored: logging.INFO,
    events.OutageGraceEnded: logging.INFO,
    events.OperationEnabled: logging.INFO,
    events.ClaimLost: logging.INFO,
}

_HINTS: dict[type[events.Event], str] = {
    events.TaskUnknown: "another project's? each should have a database, or a queue, of its own",
}
"""What to do about it, where the log is the only place that could say so."""

_LOGS_WORKER_ID = (events.WorkerStarted, events.WorkerReturned, events.WorkerStopped)
"""Where the log says which worker it is that of."""

_UNBEGUN_TRANSITIONS = {
    (TaskStatus.CLAIMED, TaskStatus.RUNNING): "start",
    (TaskStatus.CLAIMED, TaskStatus.PENDING): "release",
    (TaskStatus.CLAIMED, TaskStatus.EXPIRED): "expire when claimed",
    (TaskStatus.CLAIMED, TaskStatus.CANCELLED): "cancel",
    (TaskStatus.RUNNING, TaskStatus.PENDING): "hand back unbegun",
    (TaskStatus.RUNNING, TaskStatus.CANCELLED): "cancel a run",
}

logger = logging.getLogger("horsies.worker")


class Reporter:
    """The one `emit` of a worker, and the service that writes down what operators should be able to read later."""

    name = "event records"

    def __init__(self, store: EventStore, backoff: Backoff) -> None:
        self._store = store
        self._backoff = backoff
        self._records: asyncio.Queue[Record | None] = asyncio.Queue()
        self._listeners: list[Callable[[events.Event], None]] = []
        self.changes = ChangeSummary()
        self.totals = AttemptTotals()
        self.changes_available = asyncio.Event()
        """Set when there is something in the summary, by whoever puts it there."""

    def add_listener(self, listener: Callable[[events.Event], None]) -> None:
        self._listeners.append(listener)

    def is_enabled_for(self, kind: type[events.Event]) -> bool:
        """Whether anybody would notice an event of this kind; asked where there may be thousands a second."""
        level = _LEVELS.get(kind, logging.DEBUG)
        return kind.kind is not None or bool(self._listeners) or logger.isEnabledFor(level)

    def emit(self, event: events.Event) -> None:
        _log(event)
        for listener in self._listeners:
            listener(event)
        record = events.to_record(event)
        if record is not None and self._records.qsize() < MAX_QUEUED_RECORDS:
            self._records.put_nowait(_to_row(record))

    def record_change(
        self, kind: str, queue: str, source: TaskStatus, target: TaskStatus, ids: Collection[str]
    ) -> None:
        """Count a move for those who watch; it is told with the next statement that can take it along."""
        self.changes.add(TaskChange(kind=kind, queue=queue, source=source, target=target), ids)
        self.changes_available.set()

    def emit_failures(self, worker_id: str) -> None:
        """Tell which tasks failed, of each name no more than once a minute."""
        for each in self.totals.drain_failures(time.monotonic()):
            self.emit(
                events.TasksFailed(
                    worker_id=worker_id,
                    task_name=each.task_name,
                    count=each.count,
                    error_code=each.error_code,
                    task_id=each.task_id,
                    message=first_line(each.message or "", limit=MAX_MESSAGE_CHARS) or None,
                )
            )

    def record_unbegun_changes(self, helds: Iterable[InFlightTask], source: TaskStatus, target: TaskStatus) -> None:
        """The same for tasks that have come no further than into our hands."""
        ids: dict[str, list[str]] = {}
        for held in helds:
            ids.setdefault(held.row.queue_name, []).append(held.key.task_id)
        for queue, theirs in ids.items():
            self.record_change(_UNBEGUN_TRANSITIONS[source, target], queue, source, target, theirs)

    async def run(self, stop: asyncio.Event) -> None:
        """Write records until stop is set and none waits."""
        stopping = asyncio.create_task(self._end_after(stop))
        try:
            while (record := await self._records.get()) is not None:
                await self._write(record)
        finally:
            stopping.cancel()

    async def _end_after(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._records.put_nowait(None)

    async def _write(self, record: Record) -> None:
        while True:
            try:
                await self._store.record(record)
            except Exception as error:  # noqa: BLE001  # the back-off raises what will not pass
                await self._backoff.wait(error)
            else:
                self._backoff.reset()
                return


def _log(event: events.Event) -> None:
    level = _LEVELS.get(type(event), logging.DEBUG)
    if logger.isEnabledFor(level):
        is_shown = {f.name: f.name != "worker_id" or isinstance(event, _LOGS_WORKER_ID) for f in fields(event)}
        values = {name: getattr(event, name) for name, shown in is_shown.items() if shown}
        values["hint"] = values.get("hint") or _HINTS.get(type(event))
        shown = "  ".join(f"{name}={_format_value(value)}" for name, value in values.items() if value is not None)
        logger.log(level, "%s  %s", _event_title(type(event).__name__), shown)


def _format_value(value: object) -> object:
    return ",".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else value


def _event_title(name: str) -> str:
    """`LateResultRefused` as `late result refused`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _to_row(record: events.EventRecord) -> Record:
    return Record(
        kind=record.kind,
        task_id=UUID(record.task_id) if record.task_id else None,
        worker_id=UUID(record.worker_id),
        claim_token=record.claim_token,
        queue_name=record.queue_name,
        evidence={name: _json_value(value) for name, value in record.evidence.items()},
    )


def _json_value(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


# Telling those who watch what moved, where no other statement takes it along.


class ChangePublisher:
    """Leaves each move to the finishes and beats of the next quarter of a second, then tells it alone."""

    name = "telling"

    def __init__(self, reporter: Reporter, store: EventStore) -> None:
        self._reporter = reporter
        self._store = store

    async def run(self, stop: asyncio.Event) -> None:
        """Tell until stop is set, and what is left then."""
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
            with suppress(HorsiesError):  # those who watch look for themselves now and then
                await self._store.notify_viewers(messages)


# A line in the log once a minute, where anything was run.


class PeriodicSummary:
    """Tells what was run since the last time, and which tasks still fail."""

    name = "minutes"

    def __init__(self, reporter: Reporter, identity: WorkerIdentity, *, every_s: float = REPORT_INTERVAL_S) -> None:
        self._reporter = reporter
        self._identity = identity
        self._every_s = every_s

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._emit_forever())

    async def _emit_forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            self._emit_summary()

    def _emit_summary(self) -> None:
        worker_id = str(self._identity.worker_id)
        self._reporter.emit_failures(worker_id)
        if (ran := self._reporter.totals.drain()) is not None:
            told = events.TasksRan(
                worker_id=worker_id, count=ran.count, failed=ran.failed, retried=ran.retried, within_s=self._every_s
            )
            self._reporter.emit(told)


# Snapshots of a worker's load, for those who look later.

MB = 1024 * 1024


class SnapshotWriter:
    """Writes one at every interval; one that cannot be written is left out."""

    name = "snapshots"

    def __init__(self, parts: Parts, started_at: datetime) -> None:
        self._parts = parts
        self._fleet = WorkerStore(parts.claims.database)  # beats have their connection to themselves
        self._started_at = started_at
        self._process = psutil.Process()

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._write_for_ever())

    async def _write_for_ever(self) -> None:
        while True:
            with suppress(HorsiesError):
                await self._fleet.write_snapshot(self._take_snapshot())
            await asyncio.sleep(self._parts.worker.snapshot_interval_ms / 1000)

    def _take_snapshot(self) -> WorkerSnapshot:
        parts = self._parts
        queues = parts.app.custom_queues or ()
        children = sum(_rss_bytes(child.pid) for child in parts.pool.children)
        return WorkerSnapshot(
            worker=parts.identity.registration(parts.worker, parts.app),
            started_at=self._started_at,
            max_claim_batch=parts.worker.max_claim_batch,
            max_claim_per_worker=parts.worker.max_claim_per_worker,
            cluster_wide_cap=parts.app.cluster_wide_cap,
            queue_priorities={queue.name: queue.priority for queue in queues},
            queue_max_concurrency={queue.name: queue.max_concurrency for queue in queues},
            tasks_running=len(parts.in_flight.in_phase(Phase.RUNNING, Phase.STORING)),
            tasks_claimed=len(parts.in_flight.in_phase(Phase.CLAIMED)),
            memory_usage_mb=self._process.memory_info().rss / MB,
            memory_percent=self._process.memory_percent(),
            cpu_percent=self._process.cpu_percent(),
            children_memory_mb=children / MB,
        )


def _rss_bytes(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0
