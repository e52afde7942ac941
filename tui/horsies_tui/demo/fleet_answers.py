"""What the invented system answers about itself as a whole, about queues and workers, and what is done to those."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.errors import Refused
from horsies.model.recovery.options import SweepOptions
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies_ops.actions.report import ActionReport
from horsies_ops.reads.counts import Count
from horsies_ops.reads.overview import Overview
from horsies_tui.demo import fleet, rates, sweeping
from horsies_tui.demo.catalogue import STALE_AFTER, WORKERS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from uuid import UUID

    from horsies.recovery.report import SweepReport
    from horsies_ops.reads.events import AuditRow
    from horsies_ops.reads.queues import QueueRow
    from horsies_ops.reads.throughput import ErrorCount, QueueBucket, Throughput
    from horsies_ops.reads.workers import Snapshot, WorkerRow
    from horsies_tui.demo.system import System

_AS_USUAL: Final = SweepOptions()
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class FleetAnswers:
    """A part of the source."""

    system: System
    _read_only: bool

    settings = AppConfig()

    async def overview(self) -> Overview:
        system = self.system
        counts = Counter(task.status for task in system.tasks.values())
        queues = fleet.queue_rows(system)
        minute, day = rates.ended_since(system, _MINUTE), rates.ended_since(system, _DAY)
        silences = {status: _silences(system, status) for status in STALE_AFTER}
        held = {status: _ages(system, status) for status in STALE_AFTER}
        return Overview(
            at=system.now(),
            counts={status: Count(number=counts[status]) for status in TaskStatus},
            queues=queues,
            done_last_minute=minute[TaskStatus.COMPLETED],
            failed_last_minute=minute[TaskStatus.FAILED],
            failed_last_hour=Count(number=rates.ended_since(system, _HOUR)[TaskStatus.FAILED]),
            failed_last_day=Count(number=day[TaskStatus.FAILED]),
            expired_last_day=Count(number=day[TaskStatus.EXPIRED]),
            delayed=sum(queue.delayed for queue in queues),
            oldest_due=max((queue.oldest_due_age for queue in queues if queue.oldest_due_age), default=None),
            next_due=min((queue.next_due_in for queue in queues if queue.next_due_in), default=None),
            oldest_claimed=max(held[TaskStatus.CLAIMED], default=None),
            longest_running=max(held[TaskStatus.RUNNING], default=None),
            stale_claimed=sum(each > STALE_AFTER[TaskStatus.CLAIMED] for each in silences[TaskStatus.CLAIMED]),
            stale_running=sum(each > STALE_AFTER[TaskStatus.RUNNING] for each in silences[TaskStatus.RUNNING]),
            workers=Counter("lost" if member.is_gone else "running" for member in WORKERS),
            workflows={status: Count(number=number) for status, number in system.flows.counts.items()},
            slots=sum(member.processes for member in WORKERS if not member.is_gone),
            running=counts[TaskStatus.RUNNING],
        )

    async def list_queues(self) -> tuple[QueueRow, ...]:
        return fleet.queue_rows(self.system)

    async def list_active_workers(self, threshold: timedelta) -> tuple[WorkerRow, ...]:
        del threshold
        return fleet.worker_rows(self.system)

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[Snapshot, ...]:
        member = next(each for each in WORKERS if str(each.id) == str(worker_id))
        return fleet.history(self.system, member.id, window)

    async def throughput(self, window: timedelta, buckets: int = 30) -> Throughput:
        return rates.throughput(self.system, window, buckets)

    async def queue_throughput(self, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
        return rates.queue_throughput(self.system, window, buckets)

    async def error_summary(self, window: timedelta) -> tuple[ErrorCount, ...]:
        return rates.error_summary(self.system, window)

    async def audit(
        self, *, after: int | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        rows = self.system.record.rows
        if after is not None:
            return tuple(row for row in rows if row.id > after)[:limit]
        return tuple(row for row in rows if before is None or row.id < before)[-limit:]

    async def stale_candidates(self, options: SweepOptions = _AS_USUAL) -> SweepReport:
        return sweeping.candidates(self.system, options)

    async def sweep(
        self, options: SweepOptions = _AS_USUAL, *, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> SweepReport:
        del stop  # it is done at once
        return sweeping.sweep(self.system, options, reason=reason, read_only=self._read_only)

    async def pause_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        return self._turned("pause_queue", queue, reason, change=lambda: self.system.record.pause(queue, reason))

    async def resume_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        return self._turned("resume_queue", queue, reason, change=lambda: self.system.record.resume(queue))

    def _turned(self, action: str, queue: str, reason: str | None, *, change: Callable[[], bool]) -> ActionReport:
        if self._read_only:
            raise Refused("this connection is read-only")
        affected = int(change())
        audit_id = self.system.record.write(
            action, affected=affected, skipped=1 - affected, reason=reason, about={"queue": queue}
        )
        return ActionReport(action=action, matched=1, affected=affected, skipped_count=1 - affected, audit_id=audit_id)


def _silences(system: System, status: TaskStatus) -> list[timedelta]:
    now = system.now()
    return [now - task.last_beat_at for task in system.in_state(status) if task.last_beat_at]


def _ages(system: System, status: TaskStatus) -> list[timedelta]:
    now = system.now()
    return [now - (task.started_at or task.claimed_at or now) for task in system.in_state(status)]
