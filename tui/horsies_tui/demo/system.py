"""The demo system: tasks that are sent, claimed, run and finish as time passes, with audit log and maintenance."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final
from uuid import UUID

from horsies.model.events import EventKind
from horsies.model.retention import CategoryCleanup, CleanupSummary, RetentionCategory, RetentionWindows
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Change, Topic
from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.server import OpenTransaction, Storage, TableStorage
from horsies_ops.reads.tasks import TaskRecord
from horsies_ops.reads.workers import MaintenanceStatus
from horsies_tui.demo import workflows
from horsies_tui.demo.catalog import KINDS, KINDS_BY_NAME, LOST_WORKER, QUEUES, WORKERS, DemoWorker, TaskKind
from horsies_tui.demo.reads import OPERATOR
from horsies_tui.demo.workflows import DemoRuns

HEARTBEAT_INTERVAL: Final = timedelta(seconds=5)
LOST_WORKER_SILENCE: Final = timedelta(minutes=6, seconds=10)
"""How long the lost worker has been silent when the demo starts."""
FIRST_AUDIT_ID: Final = 5521
SINCE_LAST_PASS: Final = timedelta(seconds=14)
BYTES_PER_ROW: Final = 900

_NO_DELAY: Final = timedelta(0)
_PRIORITIES: Final = {queue.name: queue.priority for queue in QUEUES}
_EXPIRED_ROWS: Final = {
    RetentionCategory.HEARTBEATS: 88_210,
    RetentionCategory.WORKER_STATES: 51_004,
    RetentionCategory.TASKS: 412_377,
    RetentionCategory.EVENTS: 12_120,
}
_BLOCKED_TASK_SILENCES_S: Final = (331, 302, 281)


class DemoSystem:
    """Tasks by id and their state changes. Time comes from `now`; the same seed and clock give the same system."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, seed: int = 7) -> None:
        self.now = now
        self.tasks: dict[UUID, TaskRecord] = {}
        self.task_ids: list[UUID] = []
        self.workflow_runs = DemoRuns(self)
        self.audit_log = DemoAuditLog(now)
        self.maintenance = DemoMaintenance(self)
        self.started_at = now()
        self.lost_worker_seen_at = self.started_at - LOST_WORKER_SILENCE
        self._random = Random(seed)  # noqa: S311  # demo data
        self._moved_ids: dict[tuple[str, str, str], list[UUID]] = {}
        """Tasks whose status changed since the last `changes()`, by queue, old and new status."""
        self._steps = 0

    @classmethod
    def with_history(
        cls, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, size: int = 2000, seed: int = 7
    ) -> DemoSystem:
        """A system with an hour of history: `size` tasks, most completed, some stale, some pending."""
        system = cls(now, seed=seed)
        for number in range(size, 0, -1):
            system._seed_task(timedelta(seconds=3600 * number / size + 30))
        system._seed_stale_tasks()
        for _ in range(40):
            system.step()
        workflows.seed_runs(system)
        system._seed_audit_log()
        system.maintenance.seed()
        # The feed must not report the history as new changes.
        system.changes()
        return system

    def send(
        self, kind: TaskKind, *, at: datetime | None = None, delay: timedelta = _NO_DELAY, **fields: object
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
            age=_NO_DELAY,
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
        # Kept sorted, as paging goes by id; seeded tasks are sent in the past.
        self.task_ids.insert(bisect_left(self.task_ids, task.id), task.id)
        return task

    def move(self, task_id: UUID, status: TaskStatus, **fields: object) -> TaskRecord:
        """Change the status of a task and record the change."""
        task = self.tasks[task_id]
        key = (task.queue, task.status, status.value)
        self._moved_ids.setdefault(key, []).append(task_id)
        moved = replace(task, **{"status": status, **fields})
        self.tasks[task_id] = moved
        return moved

    def step(self) -> None:
        """Simulate a quarter of a second of work."""
        self._steps += 1
        now = self.now()
        # A burst of sends every half minute.
        send_count = self._random.randint(20, 40) if self._steps % 120 == 0 else self._random.randint(0, 3)
        for _ in range(send_count):
            delay = timedelta(minutes=self._random.randint(1, 90)) if self._random.random() < 0.03 else _NO_DELAY
            self.send(self._random_kind(), delay=delay)
        self._finish_tasks(now)
        self._start_tasks(now)
        self._send_heartbeats(now)
        self.workflow_runs.step()

    def changes(self) -> list[Change]:
        """Status changes since the last call, aggregated like a worker's notifications."""
        changes = [
            Change(
                topic=Topic.STATUS_CHANGE,
                kind="moved",
                at=self.now(),
                queue=queue,
                from_status=before,
                to_status=after,
                count=len(ids),
                # A worker's notification contains at most 16 ids.
                ids=tuple(ids[:16]),
            )
            for (queue, before, after), ids in self._moved_ids.items()
        ]
        self._moved_ids.clear()
        return changes

    def in_state(self, *statuses: TaskStatus) -> list[TaskRecord]:
        return [task for task in self.tasks.values() if task.status in statuses]

    def _start_tasks(self, now: datetime) -> None:
        """Start up to eight due tasks on random workers with free slots."""
        free_slots = {worker.id: worker.processes for worker in WORKERS if not worker.is_lost}
        for task in self.in_state(TaskStatus.RUNNING, TaskStatus.CLAIMED):
            if task.worker_id is not None and task.worker_id in free_slots:
                free_slots[task.worker_id] -= 1
        pending = self.in_state(TaskStatus.PENDING)
        due = [task for task in pending if task.enqueued_at <= now and task.queue not in self.audit_log.paused]
        for task in sorted(due, key=lambda task: (task.priority, task.id))[:8]:
            available = [
                worker for worker in WORKERS if free_slots.get(worker.id, 0) > 0 and task.queue in worker.queues
            ]
            if available:
                worker = self._random.choice(available)
                free_slots[worker.id] -= 1
                self._start(task, worker, now)

    def _start(
        self, task: TaskRecord, worker: DemoWorker, now: datetime, *, status: TaskStatus = TaskStatus.RUNNING
    ) -> None:
        self.move(
            task.id,
            status,
            claimed_at=now,
            started_at=now if status is TaskStatus.RUNNING else None,
            last_heartbeat_at=now,
            claim_token=task.claim_token + 1,
            worker_id=worker.id,
            worker_hostname=worker.hostname,
            worker_pid=worker.pid,
        )

    def _finish_tasks(self, now: datetime) -> None:
        for task in self.in_state(TaskStatus.RUNNING):
            kind = KINDS_BY_NAME[task.name]
            # The probability that a task of `run_s` seconds finishes within this quarter of a second.
            if not self._is_stuck(task) and self._random.random() < 0.25 / kind.run_s:
                self._finish(task, kind, now)

    def _is_stuck(self, task: TaskRecord) -> bool:
        return task.worker_id == LOST_WORKER.id or task.id in self.maintenance.blocked_ids

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

    def _send_heartbeats(self, now: datetime) -> None:
        for task in self.in_state(TaskStatus.RUNNING, TaskStatus.CLAIMED):
            is_due = task.last_heartbeat_at is not None and now - task.last_heartbeat_at > HEARTBEAT_INTERVAL
            if is_due and not self._is_stuck(task):
                self.tasks[task.id] = replace(task, last_heartbeat_at=now)

    def _seed_task(self, ago: timedelta) -> None:
        """Add a task that has already run."""
        kind, sent_at = self._random_kind(), self.now() - ago
        task = self.send(kind, at=sent_at)
        started_at = sent_at + timedelta(seconds=self._random.random() * 4)
        self._start(task, self._random.choice(WORKERS[:3]), started_at)
        finished_at = started_at + timedelta(seconds=kind.run_s * (0.5 + self._random.random()))
        self._finish(self.tasks[task.id], kind, finished_at)

    def _seed_audit_log(self) -> None:
        at = self.started_at - timedelta(minutes=17)
        self.audit_log.append("sweep", affected=6, reason="hourly", actor="cron", at=at)
        failed = {"filter": [{"is_wanted": True, "statuses": ["FAILED"], "names": ["mail.send"]}]}
        at = self.started_at - timedelta(minutes=3, seconds=23)
        self.audit_log.append("retry", affected=41, reason="smtp is back", filter_document=failed, actor="ana", at=at)

    def _seed_stale_tasks(self) -> None:
        """Add the tasks that were in flight on the lost worker."""
        silences = {"mail.send": 680, "report.build": 542, "scrape.page": 464}
        for name, silence_s in silences.items():
            last_heartbeat_at = self.now() - timedelta(seconds=silence_s)
            sent_at = last_heartbeat_at - timedelta(minutes=14)
            task = self.send(KINDS_BY_NAME[name], at=sent_at, attempt_count=1, retry_count=1, claim_token=1)
            self._start(task, LOST_WORKER, last_heartbeat_at - timedelta(minutes=8))
            self.tasks[task.id] = replace(self.tasks[task.id], last_heartbeat_at=last_heartbeat_at)
        for silence_s in (160, 131):
            claimed_at = self.now() - timedelta(seconds=silence_s)
            task = self.send(KINDS_BY_NAME["mail.send"], at=claimed_at - timedelta(seconds=9))
            self._start(task, LOST_WORKER, claimed_at, status=TaskStatus.CLAIMED)

    def _random_kind(self) -> TaskKind:
        return self._random.choices(KINDS, weights=[kind.weight for kind in KINDS])[0]

    def _new_task_id(self, at: datetime) -> UUID:
        """A UUIDv7: milliseconds since the epoch, then random bits."""
        timestamp = int(at.timestamp() * 1000) << 80
        bits = self._random.getrandbits(74)
        return UUID(int=timestamp | 0x7 << 76 | (bits >> 62) << 64 | 0b10 << 62 | bits & (1 << 62) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePause:
    at: datetime
    reason: str | None


class DemoAuditLog:
    """Audit entries, oldest first, and the paused queues."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.rows: list[AuditRow] = []
        self.paused: dict[str, QueuePause] = {}
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
        """Record an action; returns the id of its audit entry."""
        row = AuditRow(
            id=FIRST_AUDIT_ID + len(self.rows),
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
        """Returns False if the queue is already paused."""
        if queue in self.paused:
            return False
        self.paused[queue] = QueuePause(at=self._now(), reason=reason)
        return True

    def resume(self, queue: str) -> bool:
        return self.paused.pop(queue, None) is not None


class DemoMaintenance:
    """Rows past their retention, recorded events, and tasks that are blocked."""

    def __init__(self, system: DemoSystem) -> None:
        self.expired_rows = dict(_EXPIRED_ROWS)
        self.events: list[EventRow] = []
        self.blocked_ids: set[UUID] = set()
        """Tasks without heartbeats although their worker is alive."""
        self._system = system

    def seed(self) -> None:
        """Add the blocked tasks and the events of the last hour."""
        self._seed_blocked_tasks()
        self._record_event(timedelta(minutes=58), EventKind.RETENTION_FINISHED, {"heartbeats": 4_112, "events": 310})
        self._record_event(
            timedelta(minutes=6),
            EventKind.WORKER_LOST,
            {"silence_s": 301, "state": "running"},
            worker_id=LOST_WORKER.id,
        )
        for ago_s, task_id in zip((340, 338, 75), self._system.task_ids[-40:], strict=False):
            evidence = {"decision": "retry", "reason": "OWNER_LOST", "silence_s": 304.2}
            self._record_event(timedelta(seconds=ago_s), EventKind.TASK_RECOVERED, evidence, task_id=task_id)
        self._record_event(timedelta(seconds=70), EventKind.SWEEP_FINISHED, {"retry": 3}, worker_id=WORKERS[0].id)

    def cleanup(self) -> CleanupSummary:
        """Delete the rows past their retention."""
        deleted = self.candidates()
        self.expired_rows.clear()
        self._record_event(timedelta(0), EventKind.RETENTION_FINISHED, deleted.counts)
        return deleted

    def candidates(self) -> CleanupSummary:
        """The rows past their retention."""
        settings, now = AppConfig(), self._system.now()
        categories = [
            CategoryCleanup(
                category=category,
                window=window,
                rows=self.expired_rows.get(category, 0),
                bytes=self.expired_rows.get(category, 0) * BYTES_PER_ROW,
                oldest_at=now - window * 1.04 if window and category in self.expired_rows else None,
                tables={category.table: self.expired_rows[category]} if category in self.expired_rows else {},
            )
            for category, window in RetentionWindows.of(settings.recovery, settings.retention)
        ]
        return CleanupSummary(categories=tuple(categories))

    def maintenance_status(self) -> MaintenanceStatus:
        now = self._system.now()
        retention_times = [row.at for row in self.events if row.kind == EventKind.RETENTION_FINISHED]
        return MaintenanceStatus(
            at=now,
            config=AppConfig().recovery,
            last_pass_at=now - SINCE_LAST_PASS,
            last_pass_by=WORKERS[0].id,
            last_retention_at=max(retention_times, default=None),
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
        """Add running tasks that are silent although their worker is alive."""
        system, worker = self._system, WORKERS[2]
        for silence_s in _BLOCKED_TASK_SILENCES_S:
            last_heartbeat_at = system.now() - timedelta(seconds=silence_s)
            task = system.send(KINDS_BY_NAME["etl.load"], at=last_heartbeat_at - timedelta(minutes=9))
            started_at = last_heartbeat_at - timedelta(minutes=8)
            system.move(
                task.id,
                TaskStatus.RUNNING,
                claimed_at=started_at,
                started_at=started_at,
                last_heartbeat_at=last_heartbeat_at,
                claim_token=1,
                worker_id=worker.id,
                worker_hostname=worker.hostname,
                worker_pid=worker.pid,
            )
            self.blocked_ids.add(task.id)
