"""Read models of the demo system: the rows that the real toolkit reads from the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.model.recovery.decision import DecisionKind, RecoveryReason
from horsies.model.task import TaskAttemptInfo, TaskAttemptOutcome, TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.overview import ErrorCount, QueueBucket, Throughput, ThroughputBucket, TimePercentiles
from horsies_ops.reads.queues import QueueRow
from horsies_ops.reads.schedules import ScheduleRow
from horsies_ops.reads.stale import RecoveryDecision
from horsies_ops.reads.tasks import MAX_DETAIL_ROWS, HeartbeatRow, TaskDetail, TaskEventRow, TaskRecord
from horsies_ops.reads.workers import SnapshotRow, WorkerRow
from horsies_tui.demo.catalog import KINDS_BY_NAME, LOST_WORKER, QUEUES, STALE_AFTER, WORKERS, DemoWorker

if TYPE_CHECKING:
    from horsies_tui.demo.catalog import DemoQueue
    from horsies_tui.demo.system import DemoSystem

OPERATOR: Final = "you"
HEARTBEAT_INTERVAL: Final = timedelta(seconds=30)
RETRY_DELAY: Final = timedelta(seconds=60)
SNAPSHOT_INTERVAL: Final = timedelta(seconds=30)
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_VERSION: Final = "0.4.1"


# Task filter


def matches(task: TaskRecord, task_filter: TaskFilter, now: datetime) -> bool:
    """Whether the task matches all conditions and no excluded filter."""
    is_excluded = any(matches(task, excluded, now) for excluded in task_filter.excluded)
    return not is_excluded and all(_conditions(task, task_filter, now))


def _conditions(task: TaskRecord, task_filter: TaskFilter, now: datetime) -> Iterator[bool]:
    yield not task_filter.statuses or task.status in task_filter.statuses
    yield not task_filter.queues or task.queue in task_filter.queues
    yield not task_filter.names or _matches_any(task.name, task_filter.names)
    yield not task_filter.error_codes or _matches_any(task.error_code or "", task_filter.error_codes)
    yield not task_filter.ids or any(_id_matches(task.id, id_text) for id_text in task_filter.ids)
    yield task_filter.worker_id is None or _id_matches(task.worker_id, task_filter.worker_id)
    yield task_filter.workflow_id is None or _id_matches(task.workflow_id, task_filter.workflow_id)
    yield (
        task_filter.text is None
        or task_filter.text.lower() in f"{task.name} {task.kwargs_json} {task.error_code}".lower()
    )
    yield task_filter.min_attempts is None or task.attempt_count >= task_filter.min_attempts
    yield task_filter.due_later is None or task_filter.due_later == (
        task.status == TaskStatus.PENDING and task.enqueued_at > now
    )
    yield task_filter.older_than is None or now - task.sent_at > task_filter.older_than
    yield task_filter.newer_than is None or now - task.sent_at < task_filter.newer_than
    yield _at_least((task.claimed_at or now) - task.enqueued_at, task_filter.min_wait)
    yield _at_least(
        None if task.started_at is None else (task.finished_at or now) - task.started_at, task_filter.min_run
    )
    yield _at_least(None if task.last_heartbeat_at is None else now - task.last_heartbeat_at, task_filter.min_silence)


def _at_least(span: timedelta | None, minimum: timedelta | None) -> bool:
    return minimum is None or (span is not None and span >= minimum)


def _matches_any(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


def _id_matches(row_id: UUID | None, id_text: str) -> bool:
    return row_id is not None and str(row_id).endswith(id_text.lower())


# Task detail: attempts, heartbeats and events that are consistent with the task


def task_detail(task: TaskRecord, now: datetime) -> TaskDetail:
    attempts = _attempts(task)
    return TaskDetail(
        task=task,
        attempts=attempts,
        heartbeats=_heartbeats(task, attempts),
        events=tuple(
            TaskEventRow(at=attempt.finished_at, kind="task_retry", evidence_json='{"delay_s": 60}')
            for attempt in attempts
            if attempt.will_retry
        ),
        recovery_decision=_decision(task, now),
    )


def _attempts(task: TaskRecord) -> tuple[TaskAttemptInfo, ...]:
    """The finished attempts, newest first. The last one ends with the task; earlier times are made up."""
    is_finished = task.finished_at is not None
    started_at, finished_at = task.started_at or task.sent_at, task.finished_at
    attempts: list[TaskAttemptInfo] = []
    for number in range(task.attempt_count, 0, -1):
        is_last = number == task.attempt_count and is_finished
        if not is_last or finished_at is None:
            finished_at = started_at - RETRY_DELAY
            started_at = finished_at - timedelta(seconds=KINDS_BY_NAME[task.name].run_s * 40)
        attempts.append(_attempt(task, number, started_at, finished_at, is_last=is_last))
    return tuple(attempts)


def _attempt(
    task: TaskRecord, number: int, started_at: datetime, finished_at: datetime, *, is_last: bool
) -> TaskAttemptInfo:
    kind, is_completed = KINDS_BY_NAME[task.name], is_last and task.status == TaskStatus.COMPLETED
    return TaskAttemptInfo(
        task_id=str(task.id),
        attempt=number,
        claim_token=number,
        outcome=TaskAttemptOutcome.COMPLETED if is_completed else TaskAttemptOutcome.FAILED,
        will_retry=not is_last,
        started_at=started_at,
        finished_at=finished_at,
        error_code=None if is_completed else kind.error_code,
        error_message=None if is_completed else kind.message,
        worker_id=None if task.worker_id is None else str(task.worker_id),
        worker_hostname=task.worker_hostname,
        worker_pid=task.worker_pid,
        worker_process_name="child-2",
    )


def _heartbeats(task: TaskRecord, attempts: tuple[TaskAttemptInfo, ...]) -> tuple[HeartbeatRow, ...]:
    """One per interval while an attempt ran, newest first."""
    heartbeats: list[HeartbeatRow] = []
    for attempt in attempts:
        heartbeats += _heartbeats_between(attempt.started_at, attempt.finished_at, attempt.attempt)
    if task.last_heartbeat_at is not None and task.started_at is not None:
        heartbeats += _heartbeats_between(
            task.started_at, task.last_heartbeat_at + timedelta(seconds=1), task.claim_token
        )
    return tuple(sorted(heartbeats, key=lambda heartbeat: heartbeat.at, reverse=True)[:MAX_DETAIL_ROWS])


def _heartbeats_between(start: datetime, end: datetime, token: int) -> list[HeartbeatRow]:
    times = [start + HEARTBEAT_INTERVAL * number for number in range(1, int((end - start) / HEARTBEAT_INTERVAL) + 1)]
    return [HeartbeatRow(role="runner", sender_id="w", claim_token=token, at=at, age=timedelta(0)) for at in times]


def _decision(task: TaskRecord, now: datetime) -> RecoveryDecision | None:
    threshold = STALE_AFTER.get(TaskStatus(task.status))
    if threshold is None or task.last_heartbeat_at is None:
        return None
    is_lost = task.worker_id == LOST_WORKER.id
    decision = DecisionKind.LEAVE
    if now - task.last_heartbeat_at > threshold:
        decision = DecisionKind.RETRY if task.status == TaskStatus.RUNNING else DecisionKind.REQUEUE
    return RecoveryDecision(
        decision=decision,
        reason=RecoveryReason.OWNER_LOST if is_lost else None,
        threshold=threshold,
        owner_state="lost" if is_lost else "running",
    )


# Throughput and errors


def throughput(system: DemoSystem, window: timedelta, count: int) -> Throughput:
    finished = [task for _, task in _finished(system, window)]
    step = window / count
    last = _floor(system.now(), step)
    done = _count_by_bucket(finished, TaskStatus.COMPLETED, step)
    failed = _count_by_bucket(finished, TaskStatus.FAILED, step)
    return Throughput(
        buckets=tuple(
            ThroughputBucket(at=at, done=done[at], failed=failed[at])
            for at in (last - back * step for back in range(count - 1, -1, -1))
        ),
        times=_percentiles(finished),
    )


def queue_throughput(system: DemoSystem, window: timedelta, count: int) -> tuple[QueueBucket, ...]:
    groups: dict[tuple[str, datetime], list[TaskRecord]] = {}
    for at, task in _finished(system, window):
        groups.setdefault((task.queue, _floor(at, window / count)), []).append(task)
    return tuple(
        QueueBucket(
            queue=queue,
            at=at,
            done=sum(task.status == TaskStatus.COMPLETED for task in tasks),
            failed=sum(task.status == TaskStatus.FAILED for task in tasks),
            longest_wait=max((_wait(task) for task in tasks if task.started_at), default=None),
        )
        for (queue, at), tasks in sorted(groups.items())
    )


def error_summary(system: DemoSystem, window: timedelta) -> tuple[ErrorCount, ...]:
    failed = [(at, task) for at, task in _finished(system, window) if task.error_code is not None]
    counts = Counter((task.name, task.error_code or "", task.status) for _, task in failed)
    recent = Counter(
        (task.name, task.error_code or "", task.status) for at, task in failed if system.now() - at < _HOUR
    )
    return tuple(
        ErrorCount(name=key[0], code=key[1], status=key[2], count=count, last_hour=recent[key])
        for key, count in counts.most_common()
    )


def finished_counts(system: DemoSystem, window: timedelta, *, queue: str | None = None) -> Counter[str]:
    """Number of tasks finished within the window, by status."""
    return Counter(task.status for _, task in _finished(system, window) if queue in (None, task.queue))


def _finished(system: DemoSystem, window: timedelta) -> Iterator[tuple[datetime, TaskRecord]]:
    start = system.now() - window
    for task in system.tasks.values():
        if task.finished_at is not None and start < task.finished_at <= system.now():
            yield task.finished_at, task


def _floor(at: datetime, step: timedelta) -> datetime:
    return at - timedelta(seconds=at.timestamp() % step.total_seconds())


def _count_by_bucket(finished: Sequence[TaskRecord], status: TaskStatus, step: timedelta) -> Counter[datetime]:
    return Counter(_floor(task.finished_at, step) for task in finished if task.status == status and task.finished_at)


def _wait(task: TaskRecord) -> timedelta:
    return (task.started_at or task.enqueued_at) - task.enqueued_at


def _percentiles(finished: Sequence[TaskRecord]) -> TimePercentiles:
    waits = sorted(_wait(task).total_seconds() for task in finished)
    runs = sorted(
        (task.finished_at - task.started_at).total_seconds()
        for task in finished
        if task.finished_at and task.started_at
    )
    return TimePercentiles(
        wait_p50=_percentile(waits, 50),
        wait_p95=_percentile(waits, 95),
        run_p50=_percentile(runs, 50),
        run_p95=_percentile(runs, 95),
    )


def _percentile(values: Sequence[float], percent: int) -> timedelta | None:
    return timedelta(seconds=quantiles(values, n=100)[percent - 1]) if len(values) > 1 else None


# Queues, workers and schedules


def queue_rows(system: DemoSystem) -> tuple[QueueRow, ...]:
    return tuple(_queue_row(system, queue) for queue in QUEUES)


def _queue_row(system: DemoSystem, queue: DemoQueue) -> QueueRow:
    now, pause = system.now(), system.audit_log.paused.get(queue.name)
    pending = [task.enqueued_at for task in system.in_state(TaskStatus.PENDING) if task.queue == queue.name]
    due = [at for at in pending if at <= now]
    later = [at for at in pending if at > now]
    finished = finished_counts(system, _MINUTE, queue=queue.name)
    return QueueRow(
        name=queue.name,
        priority=queue.priority,
        max_concurrency=queue.cap,
        paused_at=pause and pause.at,
        paused_by=OPERATOR if pause else None,
        pause_reason=pause and pause.reason,
        pending=len(due),
        delayed=len(later),
        claimed=sum(task.queue == queue.name for task in system.in_state(TaskStatus.CLAIMED)),
        running=sum(task.queue == queue.name for task in system.in_state(TaskStatus.RUNNING)),
        oldest_due_age=now - min(due) if due else None,
        next_due_in=min(later) - now if later else None,
        finished_last_minute=finished.total(),
        failed_last_minute=finished[TaskStatus.FAILED],
        served_by=sum(queue.name in worker.queues for worker in WORKERS if not worker.is_lost),
    )


def worker_rows(system: DemoSystem) -> tuple[WorkerRow, ...]:
    """All workers, the newest heartbeat first."""
    return tuple(sorted((_worker_row(system, worker) for worker in WORKERS), key=lambda row: row.heartbeat_age))


def _worker_row(system: DemoSystem, worker: DemoWorker) -> WorkerRow:
    now = system.now()
    in_flight = [
        task for task in system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING) if task.worker_id == worker.id
    ]
    running = sum(task.status == TaskStatus.RUNNING for task in in_flight)
    newest = worker_history(system, worker.id, timedelta(hours=1))[-1]
    heartbeat_at = system.lost_worker_seen_at if worker.is_lost else now - timedelta(seconds=WORKERS.index(worker) + 1)
    return WorkerRow(
        worker_id=worker.id,
        hostname=worker.hostname,
        pid=worker.pid,
        version=_VERSION,
        state="lost" if worker.is_lost else "running",
        queues=worker.queues,
        processes=worker.processes,
        started_at=system.started_at - timedelta(days=3, hours=4) / (WORKERS.index(worker) + 1),
        last_heartbeat_at=heartbeat_at,
        heartbeat_age=now - heartbeat_at,
        is_stale=worker.is_lost,
        tasks_running=running,
        tasks_claimed=sum(task.status == TaskStatus.CLAIMED for task in in_flight),
        children_busy=min(running, worker.processes),
        cpu_percent=None if worker.is_lost else newest.cpu_percent,
        memory_mb=newest.memory_mb,
        memory_percent=None if worker.is_lost else newest.memory_percent,
        listener="live",
        listening_since=system.started_at - timedelta(hours=1),
        outage_grace_until=None,
        last_pass_at=now - timedelta(seconds=14),
        is_silent=worker.is_lost,
        disabled_operations=(),
        warnings=(),
    )


def worker_history(system: DemoSystem, worker_id: UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
    worker = next(worker for worker in WORKERS if worker.id == worker_id)
    last = system.lost_worker_seen_at if worker.is_lost else system.now()
    first = system.now() - window
    count = int((last - first) / SNAPSHOT_INTERVAL)
    return tuple(
        _snapshot(worker, last, last - back * SNAPSHOT_INTERVAL) for back in range(count, -1, -1) if count >= 0
    )


def _snapshot(worker: DemoWorker, last: datetime, at: datetime) -> SnapshotRow:
    """Random load; the lost worker ran out of memory in its last 20 minutes."""
    random = Random(f"{worker.id} {int(at.timestamp()) // 30}")  # noqa: S311  # demo data
    load = 0.35 + 0.5 * random.random()
    before_end = min((last - at) / timedelta(minutes=20), 1.0)
    memory = 96.0 - 50.0 * before_end if worker.is_lost else 30.0 + 20.0 * load
    extra_cpu = 25.0 if worker.pid == 1402 else 0.0
    return SnapshotRow(
        at=at,
        processes=worker.processes,
        tasks_running=round(worker.processes * load),
        tasks_claimed=random.randint(0, 3),
        cpu_percent=round(
            min(100.0, 70.0 * load + extra_cpu + (40.0 * (1 - before_end) if worker.is_lost else 0.0)), 1
        ),
        memory_percent=round(memory, 1),
        memory_mb=round(memory * 40.96, 1),
    )


def schedules(system: DemoSystem) -> tuple[ScheduleRow, ...]:
    """Three enabled schedules and a disabled one; none in an empty system."""
    if not system.tasks:
        return ()
    return (
        _schedule_row(system, "digest", "mail.digest", "interval minutes=15", next_s=628, last_s=272, runs=9_120),
        _schedule_row(system, "nightly-etl", "etl.load", "daily time=02:00", next_s=50_129, last_s=36_271, runs=311),
        _schedule_row(
            system,
            "purge-tokens",
            "billing.charge",
            "weekly days=['monday'] time=04:30",
            next_s=145_529,
            last_s=459_271,
            runs=44,
            timezone="Europe/Oslo",
        ),
        _schedule_row(
            system, "legacy-sync", "scrape.page", "interval minutes=5", next_s=None, last_s=1_036_800, runs=1_002
        ),
    )


def _schedule_row(
    system: DemoSystem,
    name: str,
    task_name: str,
    pattern: str,
    *,
    next_s: float | None,
    last_s: float,
    runs: int,
    timezone: str = "UTC",
) -> ScheduleRow:
    now = system.now()
    last = next(
        (task for task in reversed(system.in_state(TaskStatus.COMPLETED, TaskStatus.FAILED)) if task.name == task_name),
        None,
    )
    return ScheduleRow(
        name=name,
        task_name=task_name,
        pattern=pattern,
        timezone=timezone,
        is_enabled=next_s is not None,
        next_run_at=None if next_s is None else now + timedelta(seconds=next_s),
        due_in=None if next_s is None else timedelta(seconds=next_s),
        last_run_at=now - timedelta(seconds=last_s),
        last_task_id=last.id if last else None,
        last_status=last.status if last else None,
        last_error_code=last.error_code if last else None,
        run_count=runs,
    )
