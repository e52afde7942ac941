"""Queues, workers and swept tasks as values, for tests of what is said about them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from horsies.model.recovery.decision import Decision
from horsies.model.recovery.fleet import Source, Thresholds
from horsies.model.task import TaskStatus
from horsies.recovery.report import SweepReport, SweepStatus, SweptTask
from horsies_ops.reads.queues import QueueRow
from horsies_ops.reads.workers import WorkerRow

NOON = datetime(2026, 11, 14, 12, 4, 31, tzinfo=UTC)
WORKER = UUID("019a8c00-0000-7000-8000-0000000000a7")
TASK = UUID("019a8c41-7d0e-7c55-9d1c-2f1aa91f03c2")


def a_queue(name: str = "mail", **fields: Any) -> QueueRow:
    """A queue that is well and empty."""
    queue = QueueRow(
        name=name, priority=10, max_concurrency=None, paused_at=None, paused_by=None, pause_reason=None, pending=0,
        delayed=0, claimed=0, running=0, oldest_due_age=None, next_due_in=None, finished_last_minute=0,
        failed_last_minute=0, served_by=1,
    )  # fmt: skip
    return replace(queue, **fields)


def a_worker(**fields: Any) -> WorkerRow:
    """A worker that is well and idle."""
    worker = WorkerRow(
        worker_id=WORKER, hostname="host-3", pid=4121, version="1", state="running", queues=("mail",), processes=4,
        started_at=NOON - timedelta(hours=3), last_heartbeat_at=NOON, heartbeat_age=timedelta(0), is_stale=False,
        tasks_running=0, tasks_claimed=0, children_busy=0, cpu_percent=None, memory_mb=None, memory_percent=None,
        listener=None, listening_since=None, amnesty_until=None, last_pass_at=None, disabled_operations=(), warnings=(),
        is_silent=False,
    )  # fmt: skip
    return replace(worker, **fields)


def swept(state: TaskStatus = TaskStatus.RUNNING, **fields: Any) -> SweptTask:
    """A task of a lost worker that is to be retried."""
    task = SweptTask(
        task_id=TASK, task_name="mail.send", queue_name="mail", state=state, owner_id=WORKER, owner_state="lost",
        last_beat_age=timedelta(minutes=11, seconds=20), effective_threshold=timedelta(minutes=5), resilient=False,
        decision=Decision.RETRY, reason="OWNER_LOST",
    )  # fmt: skip
    return replace(task, **fields)


def a_sweep(*tasks: SweptTask, **fields: Any) -> SweepReport:
    """A dry run that found these."""
    limits = Thresholds(
        claimed=timedelta(minutes=2),
        running=timedelta(minutes=5),
        recovery_delay=timedelta(0),
        resilient_multiplier=3,
        source=Source.FLEET,
    )
    report = SweepReport(status=SweepStatus.WOULD_ACT, dry_run=True, thresholds=limits, tasks=tasks)
    return replace(report, **fields)
