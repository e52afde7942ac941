"""The invented system itself: tasks that are sent, claimed, run and end, as time passes."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.model.events import EventKind
from horsies.model.retention import CategoryCleanup, CleanupSummary, RetentionCategory, RetentionWindows
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Change, Topic
from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.overview import ErrorCount, QueueBucket, Throughput, ThroughputBucket, TimePercentiles
from horsies_ops.reads.queues import QueueRow
from horsies_ops.reads.server import OpenTransaction, Storage, TableStorage
from horsies_ops.reads.tasks import TaskRecord
from horsies_ops.reads.workers import MaintenanceStatus, SnapshotRow, WorkerRow
from horsies_tui.demo import workflows
from horsies_tui.demo.workflows import KINDS, QUEUES, WORKERS, DemoRuns, DemoWorker, TaskKind

if TYPE_CHECKING:
    from horsies_tui.demo.workflows import DemoQueue


# What operators did to the invented system: its audit, and which queues they paused.

OPERATOR = "you"
FIRST_ID = 5521


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    at: datetime
    reason: str | None


class DemoAuditLog:
    """Rows of the audit, the oldest first."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.rows: list[AuditRow] = []
        self.paused: dict[str, Pause] = {}
        self._now = now

    def append(
        self,
        action: str,
        *,
        affected: int,
        skipped: int = 0,
        reason: str | None = None,
        filter_document: Mapping[str, object] | None = None,
        task_ids: Sequence[UUID] = (),
        actor: str = OPERATOR,
        at: datetime | None = None,
    ) -> int:
        """Put an action on record; what it is filed under."""
        row = AuditRow(
            id=FIRST_ID + len(self.rows),
            at=at or self._now(),
            actor=actor,
            host="demo",
            action=action,
            reason=reason,
            filter_json=None if filter_document is None else json.dumps(filter_document),
            dry_run=False,
            matched=affected + skipped,
            affected=affected,
            skipped=skipped,
            via="tui",
            task_ids=tuple(task_ids),
        )
        self.rows.append(row)
        return row.id

    def pause(self, queue: str, reason: str | None) -> bool:
        """Whether that changed anything."""
        if queue in self.paused:
            return False
        self.paused[queue] = Pause(at=self._now(), reason=reason)
        return True

    def resume(self, queue: str) -> bool:
        return self.paused.pop(queue, None) is not None


# The housekeeping of the invented system: what is old, what was written down, and tasks that are stuck.

LAST_PASS: Final = timedelta(seconds=14)
LAST_RETENTION: Final = timedelta(minutes=41)
BYTES_A_ROW: Final = 900

_EXPIRED_ROWS = {
    RetentionCategory.HEARTBEATS: 88_210,
    RetentionCategory.WORKER_STATES: 51_004,
    RetentionCategory.TASKS: 412_377,
    RetentionCategory.EVENTS: 12_120,
}
_BLOCKED_S = (331, 302, 281)
_LOST = WORKERS[-1].id


class DemoMaintenance:
    """What lies about: rows that are past their time, and events that nobody has cleaned up."""

    def __init__(self, system: DemoSystem) -> None:
        self.expired_rows = dict(_EXPIRED_ROWS)
        self.events: list[EventRow] = []
        self.blocked_ids: set[UUID] = set()
        """Tasks that neither beat nor end, though their worker is well."""
        self._system = system

    def seed(self) -> None:
        """Invent what has been."""
        self._seed_blocked_tasks()
        self._record_event(timedelta(minutes=58), EventKind.RETENTION_FINISHED, {"heartbeats": 4_112, "events": 310})
        self._record_event(
            timedelta(minutes=6), EventKind.WORKER_LOST, {"silence_s": 301, "state": "running"}, worker_id=_LOST
        )
        for ago_s, task_id in zip((340, 338, 75), self._system.task_ids[-40:], strict=False):
            evidence = {"decision": "retry", "reason": "OWNER_LOST", "silence_s": 304.2}
            self._record_event(timedelta(seconds=ago_s), EventKind.TASK_RECOVERED, evidence, task_id=task_id)
        self._record_event(timedelta(seconds=70), EventKind.SWEEP_FINISHED, {"retry": 3}, worker_id=WORKERS[0].id)

    def cleanup(self) -> CleanupSummary:
        """Delete all of it; what that was."""
        taken = self.candidates()
        self.expired_rows.clear()
        self._record_event(timedelta(0), EventKind.RETENTION_FINISHED, taken.counts)
        return taken

    def candidates(self) -> CleanupSummary:
        """What is past its window."""
        settings, now = AppConfig(), self._system.now()
        portions = [
            CategoryCleanup(
                category=category,
                window=window,
                rows=self.expired_rows.get(category, 0),
                bytes=self.expired_rows.get(category, 0) * BYTES_A_ROW,
                oldest_at=now - window * 1.04 if window and category in self.expired_rows else None,
                tables={category.table: self.expired_rows[category]} if category in self.expired_rows else {},
            )
            for category, window in RetentionWindows.of(settings.recovery, settings.retention)
        ]
        return CleanupSummary(categories=tuple(portions))

    def maintenance_status(self) -> MaintenanceStatus:
        now = self._system.now()
        deleted = [row.at for row in self.events if row.kind == EventKind.RETENTION_FINISHED]
        return MaintenanceStatus(
            at=now,
            config=AppConfig().recovery,
            last_pass_at=now - LAST_PASS,
            last_pass_by=WORKERS[0].id,
            last_retention_at=max(deleted, default=None),
        )

    def storage(self) -> Storage:
        vacuumed = self._system.now() - timedelta(minutes=11)
        tables = (
            ("horsies_tasks", 2_254_857_830, 1_600_000, 64_000),
            ("horsies_heartbeats", 325_058_560, 90_000, 55_000),
        )
        return Storage(
            tables=tuple(
                TableStorage(name=name, bytes=size, rows=rows, dead_rows=dead, last_vacuum_at=vacuumed)
                for name, size, rows, dead in tables
            ),
            notify_queue_usage=0.0,
            longest_transaction=OpenTransaction(
                pid=8123, application_name="psql", state="idle in transaction", age=timedelta(seconds=41)
            ),
        )

    def _record_event(
        self,
        ago: timedelta,
        kind: EventKind,
        evidence: Mapping[str, object],
        *,
        task_id: UUID | None = None,
        worker_id: UUID | None = None,
    ) -> None:
        self.events.append(
            EventRow(
                id=len(self.events) + 1,
                at=self._system.now() - ago,
                kind=kind,
                task_id=task_id,
                workflow_id=None,
                worker_id=worker_id,
                claim_token=None,
                queue=None,
                evidence_json=json.dumps(evidence),
            )
        )

    def _seed_blocked_tasks(self) -> None:
        """Loads that wait for a lock, or compute without ever coming up for air."""
        system, holder = self._system, WORKERS[2]
        kind = next(each for each in KINDS if each.name == "etl.load")
        for silence_s in _BLOCKED_S:
            then = system.now() - timedelta(seconds=silence_s)
            task = system.send(kind, at=then - timedelta(minutes=9))
            began = then - timedelta(minutes=8)
            system.move(
                task.id,
                TaskStatus.RUNNING,
                claimed_at=began,
                started_at=began,
                last_heartbeat_at=then,
                claim_token=1,
                worker_id=holder.id,
                worker_hostname=holder.hostname,
                worker_pid=holder.pid,
            )
            self.blocked_ids.add(task.id)


BEAT_EVERY = timedelta(seconds=5)
LOST_WORKER_SILENCE = timedelta(minutes=6, seconds=10)
"""How long the worker that is gone had been silent at the beginning."""
_NOTHING = timedelta(0)
_PRIORITIES = {queue.name: queue.priority for queue in QUEUES}
_KINDS = {kind.name: kind for kind in KINDS}


class DemoSystem:
    """Tasks by id, and the moves between their states. Time comes from `now`, chance from the seed."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, seed: int = 7) -> None:
        self.now = now
        self.tasks: dict[UUID, TaskRecord] = {}
        self.task_ids: list[UUID] = []
        self.workflow_runs = DemoRuns(self)
        self.audit_log = DemoAuditLog(now)
        self.maintenance = DemoMaintenance(self)
        self.started_at = now()
        self.lost_worker_seen_at = self.started_at - LOST_WORKER_SILENCE
        """Of the worker that is gone."""
        self._random = Random(seed)  # noqa: S311  # invented data
        self._move_counts: Counter[tuple[str, str, str]] = Counter()
        self._moved_ids: dict[tuple[str, str, str], list[UUID]] = {}
        self._steps = 0

    @classmethod
    def with_history(
        cls, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, size: int = 2000, seed: int = 7
    ) -> DemoSystem:
        """One with a past of an hour: `size` tasks, most of them done, some stale, some waiting."""
        system = cls(now, seed=seed)
        for number in range(size, 0, -1):
            system._seed_task(timedelta(seconds=3600 * number / size + 30))
        system._seed_stale_tasks()
        for _ in range(40):
            system.step()
        workflows.seed_runs(system)
        system._seed_audit_log()
        system.maintenance.seed()
        system.changes()
        return system

    def send(
        self, kind: TaskKind, *, at: datetime | None = None, delay: timedelta = _NOTHING, **fields: object
    ) -> TaskRecord:
        sent_at = at or self.now()
        task = TaskRecord(
            id=self._new_task_id(sent_at),
            name=kind.name,
            queue=kind.queue,
            status=TaskStatus.PENDING,
            priority=_PRIORITIES[kind.queue],
            attempt_count=0,
            retry_count=0,
            max_retries=kind.max_retries,
            crash_count=0,
            error_code=None,
            sent_at=sent_at,
            enqueued_at=sent_at + delay,
            claimed_at=None,
            started_at=None,
            finished_at=None,
            good_until=None,
            next_retry_at=None,
            worker_id=None,
            worker_hostname=None,
            worker_pid=None,
            workflow_id=None,
            flags_json="{}",
            age=_NOTHING,
            last_heartbeat_at=None,
            silence=None,
            args_json="[]",
            kwargs_json=kind.kwargs_json,
            result_json=None,
            failed_reason=None,
            claim_token=0,
            claim_expires_at=None,
            recovery_hold_until=None,
            overlap_possible=False,
            no_restart=None,
            options_json="{}",
            idempotency_key=None,
            retry_of=None,
        )
        task = replace(task, **fields)
        self.tasks[task.id] = task
        self.task_ids.insert(bisect_left(self.task_ids, task.id), task.id)
        return task

    def move(self, task_id: UUID, status: TaskStatus, **fields: object) -> TaskRecord:
        """Put a task into another state."""
        task = self.tasks[task_id]
        key = (task.queue, task.status, status.value)
        self._move_counts[key] += 1
        self._moved_ids.setdefault(key, []).append(task_id)
        moved = replace(task, **{"status": status, **fields})
        self.tasks[task_id] = moved
        return moved

    def step(self) -> None:
        """A quarter of a second of work."""
        self._steps += 1
        now = self.now()
        # Every half minute a storm of mail.
        sent = self._random.randint(20, 40) if self._steps % 120 == 0 else self._random.randint(0, 3)
        for _ in range(sent):
            delay = timedelta(minutes=self._random.randint(1, 90)) if self._random.random() < 0.03 else _NOTHING
            self.send(self._kind(), delay=delay)
        self._finish_some(now)
        self._start_some(now)
        self._beat(now)
        self.workflow_runs.step()

    def changes(self) -> list[Change]:
        """What has moved since they were last asked for, added up as a worker does it."""
        moved = [
            Change(
                topic=Topic.STATUS_CHANGE,
                kind="moved",
                at=self.now(),
                queue=queue,
                from_status=before,
                to_status=after,
                count=count,
                ids=tuple(self._moved_ids[queue, before, after][:16]),
            )
            for (queue, before, after), count in self._move_counts.items()
        ]
        self._move_counts.clear()
        self._moved_ids.clear()
        return moved

    def in_state(self, *statuses: TaskStatus) -> list[TaskRecord]:
        return [task for task in self.tasks.values() if task.status in statuses]

    def _start_some(self, now: datetime) -> None:
        room = {member.id: member.processes for member in WORKERS if not member.is_lost}
        for task in self.in_state(TaskStatus.RUNNING, TaskStatus.CLAIMED):
            if task.worker_id is not None and task.worker_id in room:
                room[task.worker_id] -= 1
        waiting = self.in_state(TaskStatus.PENDING)
        due = [task for task in waiting if task.enqueued_at <= now and task.queue not in self.audit_log.paused]
        for task in sorted(due, key=lambda each: (each.priority, each.id))[:8]:
            takers = [member for member in WORKERS if room.get(member.id, 0) > 0 and task.queue in member.queues]
            if takers:
                member = self._random.choice(takers)
                room[member.id] -= 1
                self._start(task, member, now)

    def _start(
        self, task: TaskRecord, member: DemoWorker, now: datetime, *, status: TaskStatus = TaskStatus.RUNNING
    ) -> None:
        is_started = status is TaskStatus.RUNNING
        self.move(
            task.id,
            status,
            claimed_at=now,
            started_at=now if is_started else None,
            last_heartbeat_at=now,
            claim_token=task.claim_token + 1,
            worker_id=member.id,
            worker_hostname=member.hostname,
            worker_pid=member.pid,
        )

    def _finish_some(self, now: datetime) -> None:
        gone = {member.id for member in WORKERS if member.is_lost}
        for task in self.in_state(TaskStatus.RUNNING):
            kind = _KINDS[task.name]
            # A quarter of a second of a task that takes so long: the chance that it ends in it.
            is_at_work = task.worker_id not in gone and task.id not in self.maintenance.blocked_ids
            if is_at_work and self._random.random() < 0.25 / kind.run_s:
                self._finish(task, kind, now)

    def _finish(self, task: TaskRecord, kind: TaskKind, now: datetime) -> None:
        task = self.tasks[task.id] = replace(task, attempt_count=task.attempt_count + 1)
        if self._random.random() >= kind.failure_rate:
            self.move(
                task.id, TaskStatus.COMPLETED, finished_at=now, last_heartbeat_at=None, result_json='{"ok": true}'
            )
        elif task.attempt_count <= task.max_retries and self._random.random() < 0.5:
            retry_at = now + timedelta(seconds=60)
            self.move(
                task.id,
                TaskStatus.PENDING,
                enqueued_at=retry_at,
                retry_count=task.retry_count + 1,
                last_heartbeat_at=None,
                next_retry_at=retry_at,
            )
        else:
            self.move(
                task.id,
                TaskStatus.FAILED,
                finished_at=now,
                last_heartbeat_at=None,
                error_code=kind.error_code,
                failed_reason=kind.message,
            )

    def _beat(self, now: datetime) -> None:
        gone = {member.id for member in WORKERS if member.is_lost}
        for task in self.in_state(TaskStatus.RUNNING, TaskStatus.CLAIMED):
            is_mute = task.worker_id in gone or task.id in self.maintenance.blocked_ids
            if not is_mute and task.last_heartbeat_at is not None and now - task.last_heartbeat_at > BEAT_EVERY:
                self.tasks[task.id] = replace(task, last_heartbeat_at=now)

    def _seed_task(self, ago: timedelta) -> None:
        """A task of the past that has run its course."""
        kind, sent_at = self._kind(), self.now() - ago
        task = self.send(kind, at=sent_at)
        started = sent_at + timedelta(seconds=self._random.random() * 4)
        self._start(task, self._random.choice(WORKERS[:3]), started)
        ended = started + timedelta(seconds=kind.run_s * (0.5 + self._random.random()))
        self._finish(self.tasks[task.id], kind, ended)

    def _seed_audit_log(self) -> None:
        ago = self.started_at - timedelta(minutes=17)
        self.audit_log.append("sweep", affected=6, reason="hourly", actor="cron", at=ago)
        failed = {"filter": [{"is_wanted": True, "statuses": ["FAILED"], "names": ["mail.send"]}]}
        ago = self.started_at - timedelta(minutes=3, seconds=23)
        self.audit_log.append("retry", affected=41, reason="smtp is back", filter_document=failed, actor="ana", at=ago)

    def _seed_stale_tasks(self) -> None:
        """What the worker that is gone had in its hands."""
        gone = next(member for member in WORKERS if member.is_lost)
        silences = {"mail.send": 680, "report.build": 542, "scrape.page": 464}
        for name, silence_s in silences.items():
            then = self.now() - timedelta(seconds=silence_s)
            task = self.send(
                _KINDS[name], at=then - timedelta(minutes=14), attempt_count=1, retry_count=1, claim_token=1
            )
            self._start(task, gone, then - timedelta(minutes=8))
            self.tasks[task.id] = replace(self.tasks[task.id], last_heartbeat_at=then)
        for silence_s in (160, 131):
            then = self.now() - timedelta(seconds=silence_s)
            task = self.send(_KINDS["mail.send"], at=then - timedelta(seconds=9))
            self._start(task, gone, then, status=TaskStatus.CLAIMED)

    def _kind(self) -> TaskKind:
        return self._random.choices(KINDS, weights=[kind.weight for kind in KINDS])[0]

    def _new_task_id(self, at: datetime) -> UUID:
        """A UUIDv7: a clock in milliseconds, then chance."""
        clock = int(at.timestamp() * 1000) << 80
        chance = self._random.getrandbits(74)
        return UUID(int=clock | 0x7 << 76 | (chance >> 62) << 64 | 0b10 << 62 | chance & (1 << 62) - 1)


# How fast the invented system goes and what goes wrong in it, reckoned from its tasks.

_HOUR = timedelta(hours=1)


def throughput(system: DemoSystem, window: timedelta, count: int) -> Throughput:
    ended = [task for _, task in _ended(system, window)]
    starts = _bucket_starts(system.now(), window, count)
    done, failed = (
        _count_by_bucket(ended, TaskStatus.COMPLETED, window / count),
        _count_by_bucket(ended, TaskStatus.FAILED, window / count),
    )
    return Throughput(
        buckets=tuple(ThroughputBucket(at=at, done=done[at], failed=failed[at]) for at in starts), times=_times(ended)
    )


def queue_throughput(system: DemoSystem, window: timedelta, count: int) -> tuple[QueueBucket, ...]:
    groups: dict[tuple[str, datetime], list[TaskRecord]] = {}
    for at, task in _ended(system, window):
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
    failed = [(at, task) for at, task in _ended(system, window) if task.error_code is not None]
    counts = Counter((task.name, task.error_code or "", task.status) for _, task in failed)
    recent = Counter(
        (task.name, task.error_code or "", task.status) for at, task in failed if system.now() - at < _HOUR
    )
    return tuple(
        ErrorCount(name=key[0], code=key[1], status=key[2], count=count, last_hour=recent[key])
        for key, count in counts.most_common()
    )


def ended_since(system: DemoSystem, window: timedelta, *, queue: str | None = None) -> Counter[str]:
    """How many ended in each state."""
    return Counter(task.status for _, task in _ended(system, window) if queue in (None, task.queue))


def _ended(system: DemoSystem, window: timedelta) -> Iterator[tuple[datetime, TaskRecord]]:
    since = system.now() - window
    for task in system.tasks.values():
        if task.finished_at is not None and since < task.finished_at <= system.now():
            yield task.finished_at, task


def _floor(at: datetime, step: timedelta) -> datetime:
    seconds = step.total_seconds()
    return at - timedelta(seconds=at.timestamp() % seconds)


def _bucket_starts(now: datetime, window: timedelta, count: int) -> list[datetime]:
    last = _floor(now, window / count)
    return [last - back * (window / count) for back in range(count - 1, -1, -1)]


def _count_by_bucket(ended: Sequence[TaskRecord], status: TaskStatus, step: timedelta) -> Counter[datetime]:
    return Counter(_floor(task.finished_at, step) for task in ended if task.status == status and task.finished_at)


def _wait(task: TaskRecord) -> timedelta:
    return (task.started_at or task.enqueued_at) - task.enqueued_at


def _times(ended: Sequence[TaskRecord]) -> TimePercentiles:
    waits = sorted(_wait(task).total_seconds() for task in ended)
    runs = sorted(
        (task.finished_at - task.started_at).total_seconds() for task in ended if task.finished_at and task.started_at
    )
    return TimePercentiles(
        wait_p50=_percentile(waits, 50),
        wait_p95=_percentile(waits, 95),
        run_p50=_percentile(runs, 50),
        run_p95=_percentile(runs, 95),
    )


def _percentile(values: Sequence[float], percent: int) -> timedelta | None:
    return timedelta(seconds=quantiles(values, n=100)[percent - 1]) if len(values) > 1 else None


# The invented queues and workers as rows, and how loaded the workers were.

SNAPSHOT_EVERY = timedelta(seconds=30)
_MINUTE = timedelta(minutes=1)
_VERSION = "0.4.1"


def queue_rows(system: DemoSystem) -> tuple[QueueRow, ...]:
    return tuple(_queue_row(system, queue) for queue in QUEUES)


def _queue_row(system: DemoSystem, queue: DemoQueue) -> QueueRow:
    now, pause = system.now(), system.audit_log.paused.get(queue.name)
    pending = [task.enqueued_at for task in system.in_state(TaskStatus.PENDING) if task.queue == queue.name]
    due = [at for at in pending if at <= now]
    later = [at for at in pending if at > now]
    ended = ended_since(system, _MINUTE, queue=queue.name)
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
        finished_last_minute=ended.total(),
        failed_last_minute=ended[TaskStatus.FAILED],
        served_by=sum(queue.name in member.queues for member in WORKERS if not member.is_lost),
    )


def worker_rows(system: DemoSystem) -> tuple[WorkerRow, ...]:
    """The newest beat first."""
    return tuple(sorted((_worker_row(system, member) for member in WORKERS), key=lambda row: row.heartbeat_age))


def _worker_row(system: DemoSystem, member: DemoWorker) -> WorkerRow:
    now = system.now()
    held = [task for task in system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING) if task.worker_id == member.id]
    running = sum(task.status == TaskStatus.RUNNING for task in held)
    newest = worker_history(system, member.id, timedelta(hours=1))[-1]
    beat_at = system.lost_worker_seen_at if member.is_lost else now - timedelta(seconds=WORKERS.index(member) + 1)
    return WorkerRow(
        worker_id=member.id,
        hostname=member.hostname,
        pid=member.pid,
        version=_VERSION,
        state="lost" if member.is_lost else "running",
        queues=member.queues,
        processes=member.processes,
        started_at=system.started_at - timedelta(days=3, hours=4) / (WORKERS.index(member) + 1),
        last_heartbeat_at=beat_at,
        heartbeat_age=now - beat_at,
        is_stale=member.is_lost,
        tasks_running=running,
        tasks_claimed=sum(task.status == TaskStatus.CLAIMED for task in held),
        children_busy=min(running, member.processes),
        cpu_percent=None if member.is_lost else newest.cpu_percent,
        memory_mb=newest.memory_mb,
        memory_percent=None if member.is_lost else newest.memory_percent,
        listener="live",
        listening_since=system.started_at - timedelta(hours=1),
        outage_grace_until=None,
        last_pass_at=now - timedelta(seconds=14),
        is_silent=member.is_lost,
        disabled_operations=(),
        warnings=(),
    )


def worker_history(system: DemoSystem, worker_id: UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
    member = next(each for each in WORKERS if each.id == worker_id)
    last = system.lost_worker_seen_at if member.is_lost else system.now()
    first = system.now() - window
    count = int((last - first) / SNAPSHOT_EVERY)
    return tuple(_snapshot(member, last, last - back * SNAPSHOT_EVERY) for back in range(count, -1, -1) if count >= 0)


def _snapshot(member: DemoWorker, last: datetime, at: datetime) -> SnapshotRow:
    """Load that comes and goes; the worker that is gone ran out of memory."""
    chance = Random(f"{member.id} {int(at.timestamp()) // 30}")  # noqa: S311  # invented data
    load = 0.35 + 0.5 * chance.random()
    lead = min((last - at) / timedelta(minutes=20), 1.0)
    memory = 96.0 - 50.0 * lead if member.is_lost else 30.0 + 20.0 * load
    hot = 25.0 if member.pid == 1402 else 0.0
    return SnapshotRow(
        at=at,
        processes=member.processes,
        tasks_running=round(member.processes * load),
        tasks_claimed=chance.randint(0, 3),
        cpu_percent=round(min(100.0, 70.0 * load + hot + (40.0 * (1 - lead) if member.is_lost else 0.0)), 1),
        memory_percent=round(memory, 1),
        memory_mb=round(memory * 40.96, 1),
    )
