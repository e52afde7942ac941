"""Signs of life: of the worker, of what it has claimed, and of what its children run."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.codec.ids import ID_GENERATOR
from horsies.engine.in_flight import InFlightTask, Phase
from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.model import events
from horsies.model.crash import KillReason
from horsies.model.fence import (
    MAX_GAP_INTERVALS,
    Fence,
    HeartbeatSeries,
    child_heartbeat_interval_s,
    effective_worker_heartbeat_ms,
)
from horsies.model.settings import AppConfig, RecoveryConfig, WorkerConfig
from horsies.model.task import TaskStatus
from horsies.store.workers import HeartbeatReply, LeaseRenewal, TaskHeartbeat, WorkerRegistration
from horsies.version import __version__

if TYPE_CHECKING:
    from horsies.engine.worker import Parts


MAX_MISSED_HEARTBEATS = 3.0
"""A child that has been silent and idle for longer than so many of its beats is not spoken for."""

_OPERATOR_CODES = frozenset({"TASK_CANCELLED", "OPERATOR_FAILED"})


class Heartbeat:
    """The three beats, on a connection that nothing else uses; one that cannot be written is tried again for ever."""

    name = "heartbeat"

    def __init__(self, parts: Parts, *, on_declared_lost: Callable[[], Awaitable[None]]) -> None:
        self._parts = parts
        self._came_back = on_declared_lost
        self._outage_grace: events.OutageGraceStarted | None = None
        """The one that was told and is not over."""
        self._is_fence_reported = False
        self._reported_late: set[object] = set()
        self._reported_silent: set[int] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Beat until stop is set."""
        recovery = self._parts.app.recovery
        await run_until(
            stop,
            self._every(
                effective_worker_heartbeat_ms(recovery),
                self._send_worker_heartbeat,
                sooner=self._parts.publish_health_now,
            ),
            self._every(recovery.claimer_heartbeat_interval_ms, self._send_claimer_heartbeats),
            self._every(
                recovery.runner_heartbeat_interval_ms, self._send_runner_heartbeats, sooner=self._parts.check_rows_now
            ),
        )

    async def _every(
        self, interval_ms: float, beat: Callable[[], Awaitable[None]], *, sooner: asyncio.Event | None = None
    ) -> None:
        sooner = sooner or asyncio.Event()
        while True:
            sooner.clear()
            began = time.monotonic()
            try:
                await beat()
            except HorsiesError:
                # Sooner than the next one is due: a fenced worker is waiting for it.
                await asyncio.sleep(min(interval_ms / 1000, self._parts.app.resilience.db_retry_initial_ms / 1000))
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(sooner.wait(), max(0.0, interval_ms / 1000 - (time.monotonic() - began)))

    async def _send_worker_heartbeat(self) -> None:
        parts = self._parts
        self._emit_fenced()
        sent_at = time.monotonic()
        answer = await parts.fleet.heartbeat(parts.identity.worker_id, parts.health.document(parts.degraded_reason))
        was_shut = parts.fence.is_fenced
        parts.fence.record_heartbeat(sent_at)
        if answer is None or answer.is_lost:
            await self._came_back()
        else:
            await self._update_series(answer.at, sent_at)
        if was_shut:
            self._is_fence_reported = False
            parts.reporter.emit(events.WorkerUnfenced(worker_id=str(parts.identity.worker_id)))
            parts.wake_to_claim()

    async def _update_series(self, at: datetime, sent_at: float) -> None:
        parts, health = self._parts, self._parts.health
        is_first = health.series is None
        outage_s = health.record_heartbeat(at, sent_at)
        if is_first or outage_s is not None:
            # The beat that began the series could not say so yet, and others judge by what it says.
            await parts.fleet.heartbeat(parts.identity.worker_id, health.document(parts.degraded_reason))
        self._emit_outage_grace(at, outage_s)

    def _emit_outage_grace(self, at: datetime, outage_s: float | None) -> None:
        """A start is no outage: a worker that has not listened yet says so in its row alone."""
        parts, until = self._parts, self._parts.health.outage_grace_until
        worker_id = str(parts.identity.worker_id)
        if outage_s is not None and until is not None:
            self._outage_grace = events.OutageGraceStarted(worker_id=worker_id, until=until, outage_s=outage_s)
            parts.reporter.emit(self._outage_grace)
        elif self._outage_grace is not None and at >= self._outage_grace.until:
            parts.reporter.emit(events.OutageGraceEnded(worker_id=worker_id, outage_s=self._outage_grace.outage_s))
            self._outage_grace = None

    def _emit_fenced(self) -> None:
        parts = self._parts
        if parts.fence.is_fenced and not self._is_fence_reported:
            self._is_fence_reported = True
            worker_id = str(parts.identity.worker_id)
            parts.reporter.emit(events.WorkerFenced(worker_id=worker_id, silent_s=parts.fence.silent_s))

    async def _send_claimer_heartbeats(self) -> None:
        parts = self._parts
        waiting = parts.in_flight.in_phase(Phase.CLAIMED)
        if not waiting:
            return
        lease_ms = parts.app.claim_lease_ms
        lease = None
        if lease_ms is not None:
            lease = LeaseRenewal(length_s=lease_ms / 1000, max_claim_age_s=parts.app.max_claim_renew_age_ms / 1000)
        beats = [TaskHeartbeat(claim=held.claim, pid=parts.identity.pid) for held in waiting]
        sent_at = time.monotonic()
        answers = await parts.heartbeats.send_claimer_heartbeats(beats, lease=lease)
        parts.fence.record_statement(sent_at)
        for held, answer in _match_answers(waiting, answers):
            # RUNNING under our own token: its start overtook this beat, and its answer is on the way.
            is_started = answer.status == TaskStatus.RUNNING and answer.current_token == held.key.claim_token
            if not answer.is_held and not is_started:
                parts.in_flight.remove(held)

    async def _send_runner_heartbeats(self) -> None:
        parts = self._parts
        limit_s = MAX_MISSED_HEARTBEATS * child_heartbeat_interval_s(parts.app.recovery)
        self._emit_silent_children(limit_s)
        alive = [held for held in parts.in_flight.in_phase(Phase.RUNNING, Phase.STORING) if _is_alive(held, limit_s)]
        if not alive:
            return
        beats = [
            TaskHeartbeat(claim=held.claim, pid=held.child.pid if held.child else parts.identity.pid) for held in alive
        ]
        sent_at = time.monotonic()
        answers = await parts.heartbeats.send_runner_heartbeats(beats, events=parts.reporter.changes.drain(sent_at))
        parts.fence.record_statement(sent_at)
        for held, answer in _match_answers(alive, answers):
            if not answer.is_held:
                self._on_row_lost(held, answer)
            elif answer.kill_requested and held.phase is Phase.RUNNING and held.stop_reason is None:
                parts.assignments.stop_task(held, KillReason.REQUEUED)

    def _emit_silent_children(self, limit_s: float) -> None:
        """Once for each silence: a child that works without a word, and is vouched for."""
        silent = {
            child.pid: child.liveness.silence_s
            for child in self._parts.pool.children
            if child.liveness.is_silent_but_busy and child.liveness.silence_s > limit_s
        }
        worker_id = str(self._parts.identity.worker_id)
        for pid in silent.keys() - self._reported_silent:
            self._parts.reporter.emit(events.ChildSilent(worker_id=worker_id, pid=pid, silent_s=silent[pid]))
        self._reported_silent = set(silent)

    def _on_row_lost(self, held: InFlightTask, answer: HeartbeatReply) -> None:
        """The row has moved on without us: end the code, unless an operator let it run."""
        parts = self._parts
        if not _is_in_a_child(held) or held.key in self._reported_late:
            return  # on its way back into the table by our own hand, it may be there already
        was_ended_by_hand = answer.status in (TaskStatus.CANCELLED, TaskStatus.FAILED) and (
            answer.current_token == held.key.claim_token and answer.error_code in _OPERATOR_CODES
        )
        if was_ended_by_hand and not answer.kill_requested:
            return
        self._reported_late.add(held.key)
        if not was_ended_by_hand:
            parts.reporter.emit(
                events.LateBeatRefused(
                    worker_id=str(held.claim.worker_id),
                    task_id=held.key.task_id,
                    claim_token=held.key.claim_token,
                    queue_name=held.row.queue_name,
                    status=answer.status,
                    token_now=answer.current_token,
                )
            )
        parts.assignments.stop_task(held, KillReason.ROW_LOST)


def _is_in_a_child(held: InFlightTask) -> bool:
    child = held.child
    return held.phase is Phase.RUNNING and child is not None and held.key in (*child.begun, *child.unbegun)


def _is_alive(held: InFlightTask, limit_s: float) -> bool:
    """Whether its child beats or works; an outcome that waits to be stored is spoken for by the worker itself."""
    if held.phase is Phase.STORING or held.child is None:
        return True
    return held.child.liveness.idle_s <= limit_s


def _match_answers(
    helds: list[InFlightTask], answers: list[HeartbeatReply]
) -> list[tuple[InFlightTask, HeartbeatReply]]:
    by_key = {(answer.id, answer.claim_token): answer for answer in answers}
    return [(held, answer) for held in helds if (answer := by_key.get((held.row.id, held.row.claim_token))) is not None]


# Who this worker is, and whether it may act.


@dataclass(slots=True, kw_only=True)
class WorkerIdentity:
    """The id under which this process claims now, and those under which it still holds work from before it was lost."""

    worker_id: UUID
    former_ids: list[UUID] = field(default_factory=list["UUID"])
    hostname: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def new(cls) -> WorkerIdentity:
        return cls(worker_id=ID_GENERATOR.next_uuid())

    def renew(self) -> UUID:
        """Go on under a new id; returns the old one."""
        self.former_ids.append(self.worker_id)
        self.worker_id = ID_GENERATOR.next_uuid()
        return self.former_ids[-1]

    def registration(self, worker: WorkerConfig, app: AppConfig) -> WorkerRegistration:
        return WorkerRegistration(
            worker_id=self.worker_id,
            hostname=self.hostname,
            pid=self.pid,
            version=__version__,
            queues=worker.queues or [],
            processes=worker.processes,
            recovery_config=app.recovery.model_dump(mode="json"),
        )


class SelfFence:
    """The self-fence: what a worker that was cut off may no longer do, kept up by its successful statements."""

    def __init__(self, recovery: RecoveryConfig) -> None:
        self._fence = Fence.from_config(recovery, now=time.monotonic())

    @property
    def is_fenced(self) -> bool:
        return self._fence.is_fenced(time.monotonic())

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._fence.last_success_at

    def record_statement(self, sent_at: float) -> None:
        """A statement that was sent then has succeeded."""
        self._fence = self._fence.after_statement(sent_at)

    def record_heartbeat(self, sent_at: float) -> None:
        """A worker beat that was sent then has succeeded."""
        self._fence = self._fence.after_worker_heartbeat(sent_at)


# How a worker fares, as its own row tells everybody else.


@dataclass(slots=True, kw_only=True)
class Health:
    """What the loops of a worker have found out about themselves. Instants are the database's."""

    recovery: RecoveryConfig
    series: HeartbeatSeries | None = None
    last_pass_at: datetime | None = None
    disabled_jobs: dict[str, str] = field(default_factory=dict[str, str])
    """Operations of the reaper that keep failing, with their errors."""
    refused_tasks: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks that the last pass could not settle, with what the database said."""
    _beaten_at: float | None = None

    def record_heartbeat(self, at: datetime, sent_at: float) -> float | None:
        """A beat was written; returns the length in seconds of the gap that it ended, if one broke the series."""
        before = self.series
        self.series = before.after_heartbeat(at, self.recovery) if before else HeartbeatSeries.starting_at(at)
        self._beaten_at = sent_at
        is_broken = before is not None and self.series.since != before.since
        return (at - before.last_heartbeat_at).total_seconds() if before and is_broken else None

    @property
    def listening_since(self) -> datetime | None:
        """The start of the present series; None while that is in doubt, as it is after a pause of our own.

        A judge that went by the old start before its next beat was answered would condemn everybody who was cut off
        together with it.
        """
        return None if self.series is None or self._is_heartbeat_overdue() else self.series.since

    @property
    def outage_grace_until(self) -> datetime | None:
        """Until then silence is no proof for this worker; None where it asks for no proof."""
        if self.series is None or not self.recovery.outage_grace:
            return None
        return self.series.outage_grace_until(self.recovery)

    def document(self, degraded: str | None) -> dict[str, object]:
        """What the next beat publishes."""
        since = self.listening_since
        until = None if since is None else self.outage_grace_until
        return {
            "listener": "degraded" if degraded else "ok",
            "listening_since": since and since.isoformat(),
            "outage_grace_until": until and until.isoformat(),
            "last_pass_at": self.last_pass_at and self.last_pass_at.isoformat(),
            "disabled_operations": sorted(self.disabled_jobs),
            "warnings": [*([degraded] if degraded else []), *self._warnings()],
        }

    def _warnings(self) -> Iterator[str]:
        yield from (f"{name} fails: {error}" for name, error in self.disabled_jobs.items())
        if self.refused_tasks:
            task_id, error = next(iter(self.refused_tasks.items()))
            yield f"{len(self.refused_tasks)} stale tasks cannot be settled, first {task_id}: {error}"

    def _is_heartbeat_overdue(self) -> bool:
        longest_gap_s = MAX_GAP_INTERVALS * self.recovery.effective_worker_heartbeat_ms / 1000
        return self._beaten_at is None or time.monotonic() - self._beaten_at > longest_gap_s
