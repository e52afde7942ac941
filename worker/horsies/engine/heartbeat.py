"""Heartbeats of the worker and its tasks, and the state they maintain: worker identity and health."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from uuid_utils.compat import uuid7

from horsies.engine import events
from horsies.engine.in_flight import InFlightTask
from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.model.capacity import Fence, child_heartbeat_interval_s, effective_worker_heartbeat_ms
from horsies.model.recovery.fleet import HeartbeatSeries, longest_gap
from horsies.model.retry import KillReason
from horsies.model.settings import AppConfig, RecoveryConfig, WorkerConfig
from horsies.model.task import TaskStatus
from horsies.store.workers import (
    HeartbeatReply,
    HeartbeatRole,
    LeaseRenewal,
    WorkerRegistration,
    WorkerState,
    WorkerStore,
)
from horsies.version import __version__

if TYPE_CHECKING:
    from horsies.engine.dispatcher import Releases, Wakeup
    from horsies.engine.in_flight import Assignments, InFlight
    from horsies.engine.pool.pool import ChildPool
    from horsies.engine.reporter import Reporter
    from horsies.engine.service import Backoff

MAX_MISSED_HEARTBEATS = 3.0
"""The worker sends no heartbeats for the tasks of a child that missed this many and used no CPU."""

MAX_UNKNOWN_TASKS = 100
"""How many unknown task names a worker publishes."""

_OPERATOR_CODES = frozenset({"TASK_CANCELLED", "OPERATOR_FAILED"})
"""Error codes of tasks that an operator ended."""


@dataclass(eq=False, slots=True, kw_only=True)
class Heartbeat:
    """Sends three kinds of heartbeats over a dedicated connection: worker, claimer and runner heartbeats.

    Claimer heartbeats are for claimed tasks and renew their leases; runner heartbeats are for tasks in children and for
    outcomes that are not stored yet. A failed heartbeat is retried until it succeeds.
    """

    name = "heartbeat"

    identity: WorkerIdentity
    worker_store: WorkerStore
    fence: Fence
    health: Health
    in_flight: InFlight
    assignments: Assignments
    pool: ChildPool
    reporter: Reporter
    wakeup: Wakeup
    app_config: AppConfig
    check_rows_now: asyncio.Event
    publish_health_now: asyncio.Event
    on_declared_lost: Callable[[], Awaitable[None]]
    _outage_grace: events.OutageGraceStarted | None = field(init=False, default=None)
    """The outage grace that was reported as started and not yet as ended."""
    _is_fence_reported: bool = field(init=False, default=False)
    _reported_silent: set[int] = field(init=False, default_factory=set[int])
    """Pids of the silent children that were reported."""

    async def run(self, stop: asyncio.Event) -> None:
        """Send heartbeats until `stop` is set."""
        recovery = self.app_config.recovery
        await run_until(
            stop,
            self._repeat(
                self._send_worker_heartbeat,
                effective_worker_heartbeat_ms(recovery),
                trigger=self.publish_health_now,
            ),
            self._repeat(self._send_claimer_heartbeats, recovery.claimer_heartbeat_interval_ms),
            self._repeat(
                self._send_runner_heartbeats, recovery.runner_heartbeat_interval_ms, trigger=self.check_rows_now
            ),
        )

    async def _repeat(
        self, send: Callable[[], Awaitable[None]], interval_ms: float, *, trigger: asyncio.Event | None = None
    ) -> None:
        """Send at every interval, and whenever `trigger` is set."""
        trigger = trigger or asyncio.Event()
        has_failed = False
        while True:
            trigger.clear()
            began = time.monotonic()
            try:
                await send()
            except HorsiesError:
                # The second try follows at once, on a new connection: the first may have waited for an answer on one
                # that the network had dropped. Later ones come before the next heartbeat is due, because a fenced
                # worker claims nothing until one succeeds.
                delay_ms = min(interval_ms, self.app_config.resilience.db_retry_initial_ms)
                await asyncio.sleep(delay_ms / 1000 if has_failed else 0)
                has_failed = True
            else:
                has_failed = False
                with suppress(TimeoutError):
                    await asyncio.wait_for(trigger.wait(), max(0.0, interval_ms / 1000 - (time.monotonic() - began)))

    # The worker's own heartbeat

    async def _send_worker_heartbeat(self) -> None:
        self._emit_fenced()
        sent_at = time.monotonic()
        reply = await self.worker_store.heartbeat(self.identity.worker_id, self._health_document())
        was_fenced = self.fence.is_fenced(time.monotonic())
        self.fence.record_heartbeat(sent_at)
        if reply is None or reply.is_lost:
            await self.on_declared_lost()
        else:
            await self._update_series(reply.at, sent_at)
        if was_fenced:
            self._is_fence_reported = False
            self.reporter.emit(events.WorkerUnfenced(worker_id=str(self.identity.worker_id)))
            self.wakeup.wake_to_claim()

    def _health_document(self) -> dict[str, object]:
        return self.health.document(self.pool.degraded_reason)

    def _emit_fenced(self) -> None:
        now = time.monotonic()
        if self.fence.is_fenced(now) and not self._is_fence_reported:
            self._is_fence_reported = True
            silent_s = now - self.fence.last_success_at
            self.reporter.emit(events.WorkerFenced(worker_id=str(self.identity.worker_id), silent_s=silent_s))

    async def _update_series(self, at: datetime, sent_at: float) -> None:
        health = self.health
        is_first = health.series is None
        outage_s = health.record_heartbeat(at, sent_at)
        if is_first or outage_s is not None:
            # The heartbeat that started this series could not publish it yet, and other workers rely on its start.
            await self.worker_store.heartbeat(self.identity.worker_id, self._health_document())
        self._emit_outage_grace(at, outage_s)

    def _emit_outage_grace(self, at: datetime, outage_s: float | None) -> None:
        """Emit start and end of an outage grace; the grace after the worker's own start is not an event."""
        until = self.health.outage_grace_until
        worker_id = str(self.identity.worker_id)
        if outage_s is not None and until is not None:
            self._outage_grace = events.OutageGraceStarted(worker_id=worker_id, until=until, outage_s=outage_s)
            self.reporter.emit(self._outage_grace)
        elif self._outage_grace is not None and at >= self._outage_grace.until:
            self.reporter.emit(events.OutageGraceEnded(worker_id=worker_id, outage_s=self._outage_grace.outage_s))
            self._outage_grace = None

    # Heartbeats of claimed tasks

    async def _send_claimer_heartbeats(self) -> None:
        tasks = list(self.in_flight.prefetched.values())
        if not tasks:
            return
        lease_ms = self.app_config.claim_lease_ms
        lease = None
        if lease_ms is not None:
            lease = LeaseRenewal(
                length_s=lease_ms / 1000, max_claim_age_s=self.app_config.max_claim_renew_age_ms / 1000
            )
        pids = {task.claim: self.identity.pid for task in tasks}
        sent_at = time.monotonic()
        replies = await self.worker_store.task_heartbeats(
            HeartbeatRole.CLAIMER, pids, hostname=self.identity.hostname, lease=lease
        )
        self.fence.record_statement(sent_at)
        for task, reply in _match_replies(tasks, replies):
            # RUNNING with our token: we have started the task meanwhile; the answer to the start is still under way.
            is_started = reply.status == TaskStatus.RUNNING and reply.current_token == task.key.claim_token
            if not reply.is_held and not is_started:
                self.in_flight.settle(task)

    # Heartbeats of running tasks

    async def _send_runner_heartbeats(self) -> None:
        limit_s = MAX_MISSED_HEARTBEATS * child_heartbeat_interval_s(self.app_config.recovery)
        self._emit_silent_children(limit_s)
        tasks = [task for task in self.in_flight.started() if _is_alive(task, limit_s)]
        if not tasks:
            return
        pids = {task.claim: _pid(task) or self.identity.pid for task in tasks}
        sent_at = time.monotonic()
        changes = self.reporter.changes.drain(sent_at)
        replies = await self.worker_store.task_heartbeats(
            HeartbeatRole.RUNNER, pids, hostname=self.identity.hostname, events=changes
        )
        self.fence.record_statement(sent_at)
        for task, reply in _match_replies(tasks, replies):
            if not reply.is_held:
                self._on_row_lost(task, reply)
            elif reply.kill_requested and not self.assignments.is_stopping(task):
                self.assignments.stop_task(task, KillReason.REQUEUED)

    def _emit_silent_children(self, limit_s: float) -> None:
        """Report each child that sends nothing but uses CPU, once per silence; its tasks keep their heartbeats."""
        silent = {
            child.pid: child.liveness.silence_s
            for child in self.pool.children
            if child.liveness.is_silent_but_busy and child.liveness.silence_s > limit_s
        }
        worker_id = str(self.identity.worker_id)
        for pid in silent.keys() - self._reported_silent:
            self.reporter.emit(events.ChildSilent(worker_id=worker_id, pid=pid, silent_s=silent[pid]))
        self._reported_silent = set(silent)

    def _on_row_lost(self, task: InFlightTask, reply: HeartbeatReply) -> None:
        """The row is no longer ours: stop the task, unless an operator ended it without asking to kill its code."""
        if not task.is_in_child or self.assignments.is_stopping(task):
            return  # this worker is storing or releasing the task itself, or is stopping it already
        is_ended_by_operator = reply.status in (TaskStatus.CANCELLED, TaskStatus.FAILED) and (
            reply.current_token == task.key.claim_token and reply.error_code in _OPERATOR_CODES
        )
        if is_ended_by_operator and not reply.kill_requested:
            return
        if not is_ended_by_operator:
            self.reporter.emit(
                events.LateHeartbeatRefused(
                    worker_id=str(task.claim.worker_id),
                    task_id=task.key.task_id,
                    claim_token=task.key.claim_token,
                    queue_name=task.row.queue_name,
                    status=reply.status,
                    token_now=reply.current_token,
                )
            )
        self.assignments.stop_task(task, KillReason.ROW_LOST)


def _is_alive(task: InFlightTask, limit_s: float) -> bool:
    """Whether to send a heartbeat: the child shows activity, or the task is not in a child and the worker has it."""
    return task.chunk is None or not task.is_in_child or task.chunk.child.liveness.idle_s <= limit_s


def _pid(task: InFlightTask) -> int | None:
    """The child that has or had the task; None if that child is gone."""
    return None if task.chunk is None or task.chunk.child.exited.is_set() else task.chunk.child.pid


def _match_replies(
    tasks: list[InFlightTask], replies: list[HeartbeatReply]
) -> list[tuple[InFlightTask, HeartbeatReply]]:
    by_key = {(reply.id, reply.claim_token): reply for reply in replies}
    return [(task, reply) for task in tasks if (reply := by_key.get((task.row.id, task.row.claim_token))) is not None]


@dataclass(slots=True, kw_only=True)
class WorkerIdentity:
    """The current worker id, and former ids that still own tasks from before this worker was declared lost."""

    worker_id: UUID
    former_ids: list[UUID] = field(default_factory=list["UUID"])
    hostname: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def new(cls) -> WorkerIdentity:
        return cls(worker_id=uuid7())

    def renew(self) -> UUID:
        """Switch to a new worker id; returns the old one."""
        self.former_ids.append(self.worker_id)
        self.worker_id = uuid7()
        return self.former_ids[-1]

    def registration(self, worker: WorkerConfig, app: AppConfig, catalog_hash: str) -> WorkerRegistration:
        return WorkerRegistration(
            worker_id=self.worker_id,
            hostname=self.hostname,
            pid=self.pid,
            version=__version__,
            queues=worker.queues or [],
            processes=worker.processes,
            recovery_config=app.recovery.model_dump(mode="json"),
            catalog_hash=catalog_hash,
        )


@dataclass(eq=False, slots=True, kw_only=True)
class Registration:
    """The worker's row: registered at the start, and again after another worker declared this one lost."""

    identity: WorkerIdentity
    worker_store: WorkerStore
    fence: Fence
    releases: Releases
    reporter: Reporter
    app_config: AppConfig
    worker_config: WorkerConfig
    catalog_hash: str
    claim_lock: asyncio.Lock
    stop: asyncio.Event
    _started_at: datetime | None = field(init=False, default=None)

    @property
    def worker_id(self) -> str:
        return str(self.identity.worker_id)

    @property
    def started_at(self) -> datetime:
        """When the worker was registered for the first time, by the database clock; only after `register`."""
        assert self._started_at is not None  # noqa: S101
        return self._started_at

    @property
    def row(self) -> WorkerRegistration:
        return self.identity.registration(self.worker_config, self.app_config, self.catalog_hash)

    async def register(self) -> None:
        sent_at = time.monotonic()
        registered_at = await self.worker_store.register(self.row)
        self._started_at = self._started_at or registered_at
        self.fence.record_heartbeat(sent_at)

    async def set_state(self, state: WorkerState) -> None:
        await self.worker_store.set_state(self.identity.worker_id, state)

    async def renew(self) -> None:
        """Another worker declared this one lost: release its claims and continue under a new id."""
        async with self.claim_lock:
            await self.releases.release_prefetched()
            former = self.identity.renew()
        await self.worker_store.register(self.row)
        await self.set_state(WorkerState.DRAINING if self.stop.is_set() else WorkerState.RUNNING)
        self.reporter.emit(events.WorkerReturned(worker_id=self.worker_id, former_worker_id=str(former)))

    def emit_started(self, masked_url: str) -> None:
        self.reporter.emit(
            events.WorkerStarted(
                worker_id=self.worker_id,
                host=f"{self.identity.hostname}:{self.identity.pid}",
                queues=tuple(self.worker_config.queues or ()),
                processes=self.worker_config.processes,
                database=masked_url,
            )
        )


@dataclass(eq=False, slots=True)
class StartupReporter:
    """Marks the worker as running once it receives notifications, then waits to be stopped."""

    name = "startup"

    registration: Registration
    listening: asyncio.Event
    backoff: Backoff
    masked_url: str

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._report_once())

    async def _report_once(self) -> None:
        await self.listening.wait()
        await self._set_running()
        self.registration.emit_started(self.masked_url)
        await asyncio.Event().wait()  # a service that returns before it is stopped ends the worker

    async def _set_running(self) -> None:
        while True:
            try:
                await self.registration.set_state(WorkerState.RUNNING)
            except HorsiesError as error:
                await self.backoff.wait(error)
            else:
                return


@dataclass(slots=True, kw_only=True)
class Health:
    """The worker's health as published in its row with each heartbeat. Times are database times."""

    recovery: RecoveryConfig
    audit_retention_hours: int | None = None
    """How long this worker keeps audit entries; no cleanup deletes them earlier while it lives."""
    listener_problem: str | None = None
    """Why notifications may be missed; None if they arrive."""
    series: HeartbeatSeries | None = None
    last_pass_at: datetime | None = None
    disabled_jobs: dict[str, str] = field(default_factory=dict[str, str])
    """Reaper jobs that keep failing and run less often, with their errors."""
    refused_tasks: dict[str, str] = field(default_factory=dict[str, str])
    """Stale tasks that the last pass could not recover, with the database errors."""
    unknown_tasks: Collection[str] = ()
    """Names of tasks that this worker leaves to others."""
    _heartbeat_sent_at: float | None = None

    def record_heartbeat(self, at: datetime, sent_at: float) -> float | None:
        """Record a heartbeat; returns the length of the outage in seconds if it starts a new series."""
        before = self.series
        self.series = before.after_heartbeat(at, self.recovery) if before else HeartbeatSeries.starting_at(at)
        self._heartbeat_sent_at = sent_at
        is_broken = before is not None and self.series.since != before.since
        return (at - before.last_heartbeat_at).total_seconds() if before and is_broken else None

    @property
    def listening_since(self) -> datetime | None:
        """Since when this worker can observe others: the start of its series, None while its own heartbeat is overdue.

        Otherwise a worker that was cut off from the database would treat workers cut off with it as stale.
        """
        return None if self.series is None or self._is_heartbeat_overdue() else self.series.since

    @property
    def outage_grace_until(self) -> datetime | None:
        """End of the outage grace; None if it is disabled or there was no heartbeat yet."""
        if self.series is None or not self.recovery.outage_grace:
            return None
        return self.series.outage_grace_until(self.recovery)

    def document(self, children_problem: str | None = None) -> dict[str, object]:
        """The health document that the next heartbeat publishes."""
        since = self.listening_since
        until = None if since is None else self.outage_grace_until
        return {
            "listener": "degraded" if self.listener_problem else "ok",
            "children": "degraded" if children_problem else "ok",
            "listening_since": since and since.isoformat(),
            "outage_grace_until": until and until.isoformat(),
            "last_pass_at": self.last_pass_at and self.last_pass_at.isoformat(),
            "audit_retention_hours": self.audit_retention_hours,
            "disabled_operations": sorted(self.disabled_jobs),
            "unknown_tasks": sorted(self.unknown_tasks)[:MAX_UNKNOWN_TASKS],
            "warnings": [*filter(None, (self.listener_problem, children_problem)), *self._warnings()],
        }

    def _warnings(self) -> Iterator[str]:
        if self.unknown_tasks:
            names = ", ".join(sorted(self.unknown_tasks)[:10])
            yield f"does not know these tasks and leaves them to other workers: {names}"
        yield from (f"{name} fails: {error}" for name, error in self.disabled_jobs.items())
        if self.refused_tasks:
            task_id, error = next(iter(self.refused_tasks.items()))
            yield f"cannot recover {len(self.refused_tasks)} stale tasks, first {task_id}: {error}"

    def _is_heartbeat_overdue(self) -> bool:
        max_gap_s = longest_gap(self.recovery).total_seconds()
        return self._heartbeat_sent_at is None or time.monotonic() - self._heartbeat_sent_at > max_gap_s
