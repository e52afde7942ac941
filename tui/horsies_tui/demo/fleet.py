"""The invented queues and workers as rows, and how loaded the workers were."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies_ops.reads.queues import QueueRow
from horsies_ops.reads.workers import Snapshot, WorkerRow
from horsies_tui.demo.catalogue import QUEUES, WORKERS
from horsies_tui.demo.rates import ended_since
from horsies_tui.demo.record import YOU

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from horsies_tui.demo.catalogue import Member, Queue
    from horsies_tui.demo.system import System

SNAPSHOT_EVERY = timedelta(seconds=30)
_MINUTE = timedelta(minutes=1)
_VERSION = "0.4.1"


def queue_rows(system: System) -> tuple[QueueRow, ...]:
    return tuple(_queue_row(system, queue) for queue in QUEUES)


def _queue_row(system: System, queue: Queue) -> QueueRow:
    now, pause = system.now(), system.record.paused.get(queue.name)
    pending = [task.enqueued_at for task in system.in_state(TaskStatus.PENDING) if task.queue == queue.name]
    due = [at for at in pending if at <= now]
    later = [at for at in pending if at > now]
    ended = ended_since(system, _MINUTE, queue=queue.name)
    return QueueRow(
        name=queue.name,
        priority=queue.priority,
        max_concurrency=queue.cap,
        paused_at=pause and pause.at,
        paused_by=YOU if pause else None,
        pause_reason=pause and pause.reason,
        pending=len(due),
        delayed=len(later),
        claimed=sum(task.queue == queue.name for task in system.in_state(TaskStatus.CLAIMED)),
        running=sum(task.queue == queue.name for task in system.in_state(TaskStatus.RUNNING)),
        oldest_due_age=now - min(due) if due else None,
        next_due_in=min(later) - now if later else None,
        finished_last_minute=ended.total(),
        failed_last_minute=ended[TaskStatus.FAILED],
        served_by=sum(queue.name in member.queues for member in WORKERS if not member.is_gone),
    )


def worker_rows(system: System) -> tuple[WorkerRow, ...]:
    """The newest beat first."""
    return tuple(sorted((_worker_row(system, member) for member in WORKERS), key=lambda row: row.heartbeat_age))


def _worker_row(system: System, member: Member) -> WorkerRow:
    now = system.now()
    held = [task for task in system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING) if task.worker_id == member.id]
    running = sum(task.status == TaskStatus.RUNNING for task in held)
    newest = history(system, member.id, timedelta(hours=1))[-1]
    beat_at = system.last_seen if member.is_gone else now - timedelta(seconds=WORKERS.index(member) + 1)
    return WorkerRow(
        worker_id=member.id,
        hostname=member.hostname,
        pid=member.pid,
        version=_VERSION,
        state="lost" if member.is_gone else "running",
        queues=member.queues,
        processes=member.processes,
        started_at=system.began - timedelta(days=3, hours=4) / (WORKERS.index(member) + 1),
        last_heartbeat_at=beat_at,
        heartbeat_age=now - beat_at,
        is_stale=member.is_gone,
        tasks_running=running,
        tasks_claimed=sum(task.status == TaskStatus.CLAIMED for task in held),
        children_busy=min(running, member.processes),
        cpu_percent=None if member.is_gone else newest.cpu_percent,
        memory_mb=newest.memory_mb,
        memory_percent=None if member.is_gone else newest.memory_percent,
        listener="live",
        listening_since=system.began - timedelta(hours=1),
        amnesty_until=None,
        last_pass_at=now - timedelta(seconds=14),
        is_silent=member.is_gone,
        disabled_operations=(),
        warnings=(),
    )


def history(system: System, worker_id: UUID, window: timedelta) -> tuple[Snapshot, ...]:
    member = next(each for each in WORKERS if each.id == worker_id)
    last = system.last_seen if member.is_gone else system.now()
    first = system.now() - window
    count = int((last - first) / SNAPSHOT_EVERY)
    return tuple(_snapshot(member, last, last - back * SNAPSHOT_EVERY) for back in range(count, -1, -1) if count >= 0)


def _snapshot(member: Member, last: datetime, at: datetime) -> Snapshot:
    """Load that comes and goes; the worker that is gone ran out of memory."""
    chance = Random(f"{member.id} {int(at.timestamp()) // 30}")  # noqa: S311  # invented data
    load = 0.35 + 0.5 * chance.random()
    lead = min((last - at) / timedelta(minutes=20), 1.0)
    memory = 96.0 - 50.0 * lead if member.is_gone else 30.0 + 20.0 * load
    hot = 25.0 if member.pid == 1402 else 0.0
    return Snapshot(
        at=at,
        processes=member.processes,
        tasks_running=round(member.processes * load),
        tasks_claimed=chance.randint(0, 3),
        cpu_percent=round(min(100.0, 70.0 * load + hot + (40.0 * (1 - lead) if member.is_gone else 0.0)), 1),
        memory_percent=round(memory, 1),
        memory_mb=round(memory * 40.96, 1),
    )
