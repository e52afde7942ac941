"""The demo system as a data source: answers the reads of the screens and carries out their actions in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import sin
from typing import Any, Final
from uuid import UUID

from horsies.errors import Refused
from horsies.model.events import EventKind
from horsies.model.operator_actions import Action, ActionOptions, SkipReason
from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import (
    EffectivePolicy,
    Fleet,
    OperatorObserver,
    SweepOptions,
    effective_policy,
    is_silent,
)
from horsies.model.retention import CategoryCleanup, CleanupSummary, RetentionCategory, RetentionWindows
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies.recovery.decide import StaleTask
from horsies.recovery.report import SweepReport, SweptTask
from horsies.recovery.sweep import SweepReportBuilder
from horsies.store.recovery import StaleRow
from horsies_ops.actions.plan import Plan, PlanBuilder, Selector, TargetRow
from horsies_ops.actions.report import ActionProgress, ActionReport, Skipped
from horsies_ops.cleanup import CLEANUP, CleanupReport
from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.overview import ErrorCount, Overview, QueueBucket, Throughput, ThroughputBucket, TimePercentiles
from horsies_ops.reads.queues import QueueRow, ScheduleRow
from horsies_ops.reads.search import Count, Facet, Facets, ShortIdMatch
from horsies_ops.reads.server import OpenTransaction, Storage, TableStorage
from horsies_ops.reads.stale import SilentTasks, summarize_silent
from horsies_ops.reads.tasks import (
    EVERY_TASK,
    HeartbeatRow,
    PayloadPreview,
    TaskDetail,
    TaskOrder,
    TaskPage,
    TaskRecord,
    TaskSummary,
)
from horsies_ops.reads.workers import MaintenanceStatus, SnapshotRow, WorkerRow
from horsies_ops.reads.workflows import (
    EVERY_WORKFLOW,
    WorkflowDetail,
    WorkflowFilter,
    WorkflowPage,
    WorkflowRecord,
    WorkflowRow,
)
from horsies_tui.demo import catalog
from horsies_tui.demo.catalog import HOT_WORKER, LOST_WORKER, WORKERS, DemoQueue, DemoWorker, make_row
from horsies_tui.demo.system import IN_FLIGHT, DemoSystem, matches, matches_any

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
HEARTBEAT_INTERVAL: Final = 30 * SECOND
SINCE_LAST_PASS: Final = 14 * SECOND
BYTES_PER_ROW: Final = 900

_DEFAULT_OPTIONS: Final = SweepOptions()
_STATUS_AFTER: Final = {
    Action.REQUEUE: TaskStatus.PENDING,
    Action.FAIL: TaskStatus.FAILED,
    Action.CANCEL: TaskStatus.CANCELLED,
    Action.EXPIRE: TaskStatus.EXPIRED,
}
_NOT_STARTED: Final = (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY, WorkflowTaskStatus.ENQUEUED)
_FAILED_OR_SKIPPED: Final = (WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)
_RUN_CHANGES: Final[Mapping[str, tuple[Sequence[str], WorkflowStatus, Mapping[str, WorkflowTaskStatus]]]] = {
    "pause_workflow": (("RUNNING",), WorkflowStatus.PAUSED, {}),
    "resume_workflow": (("PAUSED",), WorkflowStatus.RUNNING, {}),
    "cancel_workflow": (
        ("RUNNING", "PAUSED"),
        WorkflowStatus.CANCELLED,
        dict.fromkeys(_NOT_STARTED, WorkflowTaskStatus.SKIPPED),
    ),
    "retry_workflow": (
        ("FAILED", "CANCELLED"),
        WorkflowStatus.RUNNING,
        dict.fromkeys(_FAILED_OR_SKIPPED, WorkflowTaskStatus.PENDING),
    ),
}
"""By action: the statuses of runs it applies to, their new status, and the new status of nodes by their old one."""
_WITHOUT_OWNER: Final = dict.fromkeys(("claimed_at", "started_at", "last_heartbeat_at", "worker_id"))
_WITHOUT_TASK: Final = dict.fromkeys(("task_id", "started_at", "completed_at", "error_code", "error_message"))


class DemoSource:
    """Reads and actions over a demo system, which advances every `pace_s` seconds; None stops it."""

    settings = AppConfig()

    def __init__(self, system: DemoSystem, *, read_only: bool, pace_s: float | None) -> None:
        self.system = system
        self._read_only = read_only
        self._pace_s = pace_s

    async def database_time(self) -> datetime:
        return self.system.now()

    async def listen(self) -> AsyncIterator[Change]:
        yield Change(topic=Topic.FEED, kind=FeedStatus.STARTED, at=self.system.now())
        while self._pace_s is not None:
            await asyncio.sleep(self._pace_s)
            self.system.step()
            for change in self.system.take_changes():
                yield change
        # A stopped system stays connected: the feed must not end.
        await asyncio.Event().wait()

    # Tasks

    def _matching(self, task_filter: TaskFilter, ids: Iterable[UUID]) -> Iterator[TaskRecord]:
        now = self.system.now()
        tasks = (self.system.tasks[task_id] for task_id in ids)
        return tasks if task_filter.is_empty else (task for task in tasks if matches(task, task_filter, now))

    async def list_tasks(
        self,
        filter: TaskFilter = EVERY_TASK,  # noqa: A002
        *,
        order: TaskOrder = TaskOrder.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        ids = self.system.task_ids
        if order is TaskOrder.OLDEST_FIRST:
            remaining = [task_id for task_id in ids if after is None or task_id > after]
        else:
            remaining = [task_id for task_id in reversed(ids) if after is None or task_id < after]
        found = list(self._matching(filter, remaining))
        return TaskPage(tasks=tuple(found[:limit]), next=found[limit - 1].id if len(found) > limit else None)

    async def count_tasks(self, filter: TaskFilter = EVERY_TASK, *, cap: int = 10_000) -> Count:  # noqa: A002
        number = sum(1 for _ in self._matching(filter, self.system.tasks))
        return Count(number=min(number, cap), is_capped=number > cap)

    async def facets(self, filter: TaskFilter = EVERY_TASK) -> Facets:  # noqa: A002
        found = list(self._matching(filter, self.system.tasks))
        return Facets(
            statuses=_facets(task.status for task in found),
            queues=_facets(task.queue for task in found),
            names=_facets(task.name for task in found),
            error_codes=_facets(task.error_code for task in found if task.error_code),
        )

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]:
        tasks = self.system.tasks
        return tuple(tasks[task_id] for task_id in sorted(ids, reverse=True) if task_id in tasks)

    async def tasks_by_short_id(self, short_id: str) -> tuple[ShortIdMatch, ...]:
        found = self._matching(TaskFilter(ids=(short_id,)), self.system.tasks)
        return tuple(make_row(ShortIdMatch, task) for task in found)

    async def payload_previews(self, ids: Iterable[UUID]) -> dict[UUID, PayloadPreview]:
        found = [self.system.tasks[task_id] for task_id in ids if task_id in self.system.tasks]
        return {task.id: make_row(PayloadPreview, task, size=len(task.kwargs_json)) for task in found}

    async def task(self, task_id: str | UUID) -> TaskDetail | None:
        task = self.system.tasks.get(UUID(str(task_id)))
        return None if task is None else self.task_detail(task)

    def task_detail(self, task: TaskRecord) -> TaskDetail:
        """The task with its attempts, and with heartbeats as often as a worker writes them."""
        attempts = self.system.attempts.get(task.id, [])[::-1]
        spans = [(attempt.claim_token, attempt.started_at, attempt.finished_at) for attempt in attempts]
        decision = None
        if task.last_heartbeat_at is not None:
            spans.insert(0, (task.claim_token, task.started_at or task.last_heartbeat_at, task.last_heartbeat_at))
            decision = self._stale_task(task, self._policy(_DEFAULT_OPTIONS)).to_swept_task(applied=False)
        return TaskDetail(
            task=task,
            attempts=tuple(attempts),
            heartbeats=tuple(heartbeat for span in spans for heartbeat in _heartbeats(*span)),
            events=tuple(
                make_row(EventRow, at=attempt.finished_at, kind="task_retry", evidence_json='{"delay_s": 60}')
                for attempt in attempts
                if attempt.will_retry
            ),
            recovery_decision=decision,
        )

    async def plan(self, action: Action, selector: Selector, options: ActionOptions | None = None) -> Plan:
        now = self.system.now()
        if selector.ids is None:
            tasks = list(self._matching(selector.filter or EVERY_TASK, self.system.task_ids))
        else:
            tasks = [self.system.tasks[task_id] for task_id in selector.ids if task_id in self.system.tasks]
        builder = PlanBuilder(action, options or ActionOptions())
        builder.add(
            make_row(
                TargetRow,
                task,
                task_name=task.name,
                queue_name=task.queue,
                is_workflow_task=task.workflow_id is not None,
                is_delayed=task.status == TaskStatus.PENDING and task.enqueued_at > now,
                has_run=task.attempt_count > 0,
                has_live_owner=task.worker_id not in (None, LOST_WORKER.worker_id),
            )
            for task in tasks
        )
        return builder.build(replace(selector, as_of=now))

    async def apply(
        self, plan: Plan, *, progress: Callable[[ActionProgress], None] | None = None, stop: asyncio.Event | None = None
    ) -> ActionReport:
        del progress, stop  # a demo action is one step
        targets = [(target, self.system.tasks[target.id]) for target in plan.targets]
        tasks = [
            task for target, task in targets if (task.status, task.claim_token) == (target.status, target.claim_token)
        ]
        moved = {target.id for target in plan.targets} - {task.id for task in tasks}
        skipped = [*plan.refused, *(Skipped(task_id, SkipReason.TASK_STATE_MOVED) for task_id in moved)]
        report = self._record(
            plan.action,
            plan.selector.to_audit(),
            affected=len(tasks),
            skipped=skipped,
            reason=plan.options.reason,
            task_ids=tuple(task.id for task in tasks),
        )
        if plan.action is Action.RETRY:
            new = [self.system.send(catalog.KINDS_BY_NAME[task.name], retry_of=task.id) for task in tasks]
            return replace(report, new_ids=tuple(task.id for task in new))
        for task in tasks:
            self._move(task, _STATUS_AFTER[plan.action])
        return report

    def _move(self, task: TaskRecord, status: TaskStatus, **fields: object) -> None:
        """Take the task from its owner and give it the status that an operator or a sweep decided."""
        now = self.system.now()
        values: dict[str, object] = {"enqueued_at": now, **_WITHOUT_OWNER}
        if status is not TaskStatus.PENDING:
            values = {"finished_at": now, "last_heartbeat_at": None, "error_code": f"OPERATOR_{status}"}
        self.system.move(task.id, status, **(values | fields))

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        plan = await self.plan(Action.CANCEL, Selector(ids=report.new_ids))
        return await self.apply(plan.only(TaskStatus.PENDING))

    def _record(
        self,
        action: str,
        selector: Mapping[str, object],
        *,
        affected: int,
        skipped: Sequence[Skipped] = (),
        **fields: Any,
    ) -> ActionReport:
        """Write the audit entry of an action and return its report. Raises `Refused` if read-only."""
        if self._read_only:
            raise Refused("this connection is read-only")
        counts = {"matched": affected + len(skipped), "affected": affected}
        entry = self.system.record_action(action, selector, **counts, skipped=len(skipped), **fields)
        return make_row(
            ActionReport,
            entry,
            action=action,
            skipped=tuple(skipped),
            skipped_count=len(skipped),
            audit_id=entry.id,
            new_ids=(),
            warnings=(),
        )

    # Recovery

    def _policy(self, options: SweepOptions) -> EffectivePolicy:
        fleet = Fleet(now=self.system.now(), server_started_at=self.system.started_at - DAY)
        return effective_policy(OperatorObserver(local_config=self.settings.recovery), options, fleet)

    def _stale_task(self, task: TaskRecord, policy: EffectivePolicy) -> StaleTask:
        """The task with the decision that a real sweep would make."""
        owner = next((worker for worker in WORKERS if worker.worker_id == task.worker_id), None)
        row = make_row(
            StaleRow,
            task,
            task_name=task.name,
            queue_name=task.queue,
            status=TaskStatus(task.status),
            flags=task.flags,
            task_options=task.options,
            owner_id=task.worker_id,
            now=self.system.now(),
            owner_state=owner and owner.state,
            owner_seen_at=owner and self._seen_at(owner),
        )
        return StaleTask.from_row(row, policy)

    def _in_flight(self, options: SweepOptions) -> list[StaleTask]:
        policy, tasks = self._policy(options), self.system.in_state(*IN_FLIGHT)
        return [self._stale_task(task, policy) for task in tasks if options.worker_id in (None, task.worker_id)]

    def _sweep_report(self, options: SweepOptions, *, dry_run: bool) -> SweepReport:
        stale = [task.to_swept_task(applied=not dry_run) for task in self._in_flight(options) if not task.is_fresh]
        policy = self._policy(options)
        return SweepReportBuilder(effective_policy=policy, dry_run=dry_run, hooks_loaded=False, tasks=stale).build()

    async def stale_candidates(self, options: SweepOptions = _DEFAULT_OPTIONS) -> SweepReport:
        return self._sweep_report(options, dry_run=True)

    async def sweep(
        self, options: SweepOptions = _DEFAULT_OPTIONS, *, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> SweepReport:
        del stop  # a demo sweep is one step
        report = self._sweep_report(options, dry_run=False)
        selector = {"worker_id": str(options.worker_id)} if options.worker_id else {}
        ids = tuple(task.task_id for task in report.tasks)
        self._record("sweep", selector, affected=len(ids), task_ids=ids, reason=reason)
        for swept in report.tasks:
            task = self.system.tasks[swept.task_id]
            if swept.decision is DecisionKind.FAIL:
                self._move(task, TaskStatus.FAILED, error_code=swept.code)
            else:
                retry_count = task.retry_count + (swept.decision is DecisionKind.RETRY)
                self._move(task, TaskStatus.PENDING, enqueued_at=swept.run_at, retry_count=retry_count)
        return report

    async def nearly_stale_tasks(
        self, within: timedelta, options: SweepOptions = _DEFAULT_OPTIONS
    ) -> tuple[SweptTask, ...]:
        fresh = [task for task in self._in_flight(replace(options, worker_id=None)) if task.is_fresh]
        return tuple(task.to_swept_task(applied=False) for task in fresh if task.silence >= task.threshold - within)

    async def silent_tasks(self, options: SweepOptions = _DEFAULT_OPTIONS) -> SilentTasks | None:
        fresh = [task for task in self._in_flight(options) if task.is_fresh]
        return summarize_silent(task for task in fresh if task.silence >= 1.5 * HEARTBEAT_INTERVAL)

    # Numbers

    async def overview(self) -> Overview:
        now, queues, errors = self.system.now(), await self.list_queues(), await self.error_summary(DAY)
        tasks = self.system.tasks.values()
        counts, runs = Counter(task.status for task in tasks), Counter(run.status for run in self.system.runs.values())
        stale = Counter(task.row.status for task in self._in_flight(_DEFAULT_OPTIONS) if not task.is_fresh)
        ages = {
            status: max(
                (now - task.claimed_at for task in self.system.in_state(status) if task.claimed_at), default=None
            )
            for status in IN_FLIGHT
        }
        failed_last_minute = sum(queue.failed_last_minute for queue in queues)
        failures = [error for error in errors if error.status == TaskStatus.FAILED]
        return Overview(
            at=now,
            counts={status: Count(number=counts[status]) for status in TaskStatus},
            queues=queues,
            done_last_minute=sum(queue.finished_last_minute for queue in queues) - failed_last_minute,
            failed_last_minute=failed_last_minute,
            failed_last_hour=Count(number=sum(error.last_hour for error in failures)),
            failed_last_day=Count(number=sum(error.count for error in failures)),
            expired_last_day=Count(number=counts[TaskStatus.EXPIRED]),
            delayed=sum(queue.delayed for queue in queues),
            oldest_due=max((queue.oldest_due_age for queue in queues if queue.oldest_due_age), default=None),
            next_due=min((queue.next_due_in for queue in queues if queue.next_due_in), default=None),
            oldest_claimed=ages[TaskStatus.CLAIMED],
            longest_running=ages[TaskStatus.RUNNING],
            stale_claimed=stale[TaskStatus.CLAIMED],
            stale_running=stale[TaskStatus.RUNNING],
            workers=Counter(worker.state for worker in WORKERS),
            workflows={status: Count(number=number) for status, number in runs.items()},
            slots=sum(worker.processes for worker in WORKERS if worker is not LOST_WORKER),
            running=counts[TaskStatus.RUNNING],
        )

    async def throughput(self, window: timedelta, buckets: int = 30) -> Throughput:
        totals: dict[datetime, Counter[str]] = {}
        for bucket in await self.queue_throughput(window, buckets):
            totals.setdefault(bucket.at, Counter()).update(done=bucket.done, failed=bucket.failed)
        return Throughput(
            buckets=tuple(make_row(ThroughputBucket, at=at, **total) for at, total in totals.items()),
            times=TimePercentiles(
                wait_p50=2.1 * SECOND, wait_p95=3.8 * SECOND, run_p50=1.6 * SECOND, run_p95=7.9 * SECOND
            ),
        )

    async def queue_throughput(self, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
        """Made-up curves, higher for queues with more tasks."""
        now, step, weights = self.system.now(), window / buckets, Counter[str]()
        last = now - timedelta(seconds=now.timestamp() % step.total_seconds())
        for kind in catalog.KINDS:
            weights[kind.queue] += kind.weight
        return tuple(
            QueueBucket(
                queue=queue,
                at=last - (buckets - 1 - number) * step,
                done=round(weight * (1 + sin(number / 3) / 2)),
                failed=weight * number // 7 % 3,
                longest_wait=(3 + weight * number % 17) * SECOND,
            )
            for number in range(buckets)
            for queue, weight in weights.items()
        )

    async def error_summary(self, window: timedelta) -> tuple[ErrorCount, ...]:
        now, counts, last_hour = self.system.now(), Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
        for task in self.system.tasks.values():
            if task.error_code is not None and task.finished_at is not None and now - task.finished_at < window:
                key = (task.name, task.error_code, task.status)
                counts[key] += 1
                last_hour[key] += now - task.finished_at < HOUR
        return tuple(
            ErrorCount(name=key[0], code=key[1], status=key[2], count=count, last_hour=last_hour[key])
            for key, count in counts.most_common()
        )

    # Queues and workers

    async def list_queues(self) -> tuple[QueueRow, ...]:
        return tuple(self._queue_row(queue) for queue in catalog.QUEUES)

    def _queue_row(self, queue: DemoQueue) -> QueueRow:
        now, pause = self.system.now(), self.system.paused_queues.get(queue.name)
        tasks = [task for task in self.system.tasks.values() if task.queue == queue.name]
        counts = Counter(task.status for task in tasks)
        waits = [now - task.enqueued_at for task in tasks if task.status == TaskStatus.PENDING]
        due, delayed = [wait for wait in waits if wait >= 0 * SECOND], [-wait for wait in waits if wait < 0 * SECOND]
        finished = Counter(task.status for task in tasks if task.finished_at and now - task.finished_at < MINUTE)
        return make_row(
            QueueRow,
            queue,
            paused_at=pause and pause.at,
            paused_by=pause and pause.actor,
            pause_reason=pause and pause.reason,
            pending=len(due),
            delayed=len(delayed),
            claimed=counts[TaskStatus.CLAIMED],
            running=counts[TaskStatus.RUNNING],
            oldest_due_age=max(due, default=None),
            next_due_in=min(delayed, default=None),
            finished_last_minute=finished.total(),
            failed_last_minute=finished[TaskStatus.FAILED],
            served_by=sum(queue.name in worker.queues for worker in WORKERS if worker is not LOST_WORKER),
        )

    async def pause_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        paused = self.system.paused_queues
        report = self._record("pause_queue", {"queue": queue}, affected=int(queue not in paused), reason=reason)
        paused.setdefault(queue, self.system.audit_log[-1])
        return report

    async def resume_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        paused = self.system.paused_queues
        report = self._record("resume_queue", {"queue": queue}, affected=int(queue in paused), reason=reason)
        paused.pop(queue, None)
        return report

    def _seen_at(self, worker: DemoWorker) -> datetime:
        """When the worker sent its last heartbeat."""
        at = self.system.started_at if worker is LOST_WORKER else self.system.now()
        return at - worker.silence_s * SECOND

    async def list_active_workers(self, threshold: timedelta) -> tuple[WorkerRow, ...]:
        rows = [self._worker_row(worker, threshold) for worker in WORKERS]
        return tuple(sorted(rows, key=lambda row: row.heartbeat_age))

    def _worker_row(self, worker: DemoWorker, threshold: timedelta) -> WorkerRow:
        now, seen_at = self.system.now(), self._seen_at(worker)
        tasks = [task for task in self.system.in_state(*IN_FLIGHT) if task.worker_id == worker.worker_id]
        counts, load = Counter(task.status for task in tasks), _snapshot(worker, seen_at, seen_at)
        return make_row(
            WorkerRow,
            worker,
            version="0.4.1",
            started_at=self.system.started_at - DAY * worker.processes / 4,
            last_heartbeat_at=seen_at,
            heartbeat_age=now - seen_at,
            is_stale=now - seen_at > threshold,
            is_silent=is_silent(now - seen_at, self.settings.recovery),
            tasks_running=counts[TaskStatus.RUNNING],
            tasks_claimed=counts[TaskStatus.CLAIMED],
            children_busy=min(counts[TaskStatus.RUNNING], worker.processes),
            cpu_percent=load.cpu_percent,
            memory_mb=load.memory_mb,
            memory_percent=load.memory_percent,
            listener="live",
            listening_since=self.system.started_at - HOUR,
            last_pass_at=now - SINCE_LAST_PASS,
            disabled_operations=(),
            warnings=(),
        )

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
        worker = next(worker for worker in WORKERS if worker.worker_id == UUID(str(worker_id)))
        last = self._seen_at(worker)
        count = int((last - self.system.now() + window) / HEARTBEAT_INTERVAL)
        return tuple(_snapshot(worker, last - back * HEARTBEAT_INTERVAL, last) for back in range(count, -1, -1))

    # Maintenance

    async def list_schedules(self) -> tuple[ScheduleRow, ...]:
        """The schedules of the catalog; an empty system has none."""
        now, rows = self.system.now(), list[ScheduleRow]()
        last_tasks = {task.name: task for task in self.system.tasks.values() if task.finished_at is not None}
        for name, task_name, pattern, timezone, next_s, last_s, run_count in catalog.SCHEDULES if last_tasks else ():
            last, due_in = last_tasks.get(task_name), None if next_s is None else next_s * SECOND
            row = ScheduleRow(
                name=name,
                task_name=task_name,
                pattern=pattern,
                timezone=timezone,
                is_enabled=due_in is not None,
                next_run_at=None if due_in is None else now + due_in,
                due_in=due_in,
                last_run_at=now - last_s * SECOND,
                last_task_id=last and last.id,
                last_status=last and last.status,
                last_error_code=last and last.error_code,
                run_count=run_count,
            )
            rows.append(row)
        return tuple(rows)

    async def audit(
        self, *, after: int | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        rows = self.system.audit_log
        if after is not None:
            return tuple(row for row in rows if row.id > after)[:limit]
        return tuple(row for row in rows if before is None or row.id < before)[-limit:]

    async def events(self, *, limit: int = 100) -> tuple[EventRow, ...]:
        return tuple(self.system.events[-limit:])

    async def maintenance_status(self) -> MaintenanceStatus:
        now = self.system.now()
        cleanups = [event.at for event in self.system.events if event.kind == EventKind.RETENTION_FINISHED]
        return MaintenanceStatus(
            at=now,
            config=self.settings.recovery,
            last_pass_at=now - SINCE_LAST_PASS,
            last_pass_by=WORKERS[0].worker_id,
            last_retention_at=max(cleanups, default=None),
        )

    async def storage(self) -> Storage:
        at = self.system.now() - 11 * MINUTE
        psql = OpenTransaction(pid=8123, application_name="psql", state="idle in transaction", age=41 * SECOND)
        tables = [
            TableStorage(name=name, bytes=size, rows=rows, dead_rows=dead, last_vacuum_at=at)
            for name, size, rows, dead in catalog.TABLES
        ]
        return Storage(tables=tuple(tables), notify_queue_usage=0.0, longest_transaction=psql)

    async def cleanup_candidates(self) -> CleanupSummary:
        windows = RetentionWindows.of(self.settings.recovery, self.settings.retention)
        return CleanupSummary(categories=tuple(self._expired(category, window) for category, window in windows))

    def _expired(self, category: RetentionCategory, window: timedelta | None) -> CategoryCleanup:
        rows = self.system.expired_rows.get(category, 0)
        if window is None or not rows:
            return CategoryCleanup(category=category, window=window)
        return CategoryCleanup(
            category=category,
            window=window,
            rows=rows,
            bytes=rows * BYTES_PER_ROW,
            oldest_at=self.system.now() - window * 1.04,
            tables={category.table: rows},
        )

    async def cleanup(
        self,
        *,
        reason: str | None = None,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> CleanupReport:
        del progress, stop  # a demo cleanup is one step
        deleted = await self.cleanup_candidates()
        report = self._record(CLEANUP, {}, affected=deleted.rows, reason=reason)
        self.system.expired_rows.clear()
        self.system.record_event(EventKind.RETENTION_FINISHED, deleted.counts)
        return CleanupReport(is_dry_run=False, matched=deleted.rows, cleaned=deleted, audit_id=report.audit_id)

    # Workflow runs

    async def list_workflows(
        self,
        filter: WorkflowFilter = EVERY_WORKFLOW,  # noqa: A002
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> WorkflowPage:
        runs = [
            run
            for run in self.system.runs.values()
            if (not filter.statuses or run.status in filter.statuses)
            and (not filter.names or matches_any(run.name, filter.names))
            and (not filter.root_only or run.parent_id is None)
            and (after is None or run.id < after)
        ]
        rows = [self._run_row(run) for run in sorted(runs, key=lambda run: run.id, reverse=True)]
        return WorkflowPage(workflows=tuple(rows[:limit]), next=rows[limit - 1].id if len(rows) > limit else None)

    async def workflow(self, workflow_id: str | UUID) -> WorkflowDetail | None:
        run = self.system.runs.get(UUID(str(workflow_id)))
        if run is None:
            return None
        return WorkflowDetail(
            run=replace(run, age=self.system.now() - run.created_at),
            nodes=self.system.nodes[run.id],
            sub_workflows={
                other.id: self._run_row(other) for other in self.system.runs.values() if other.parent_id == run.id
            },
        )

    def _run_row(self, run: WorkflowRecord) -> WorkflowRow:
        counts = Counter(node.status for node in self.system.nodes[run.id])
        return make_row(
            WorkflowRow,
            run,
            age=self.system.now() - run.created_at,
            total=counts.total(),
            done=counts[WorkflowTaskStatus.COMPLETED],
            failed=counts[WorkflowTaskStatus.FAILED],
            skipped=counts[WorkflowTaskStatus.SKIPPED],
            running=counts[WorkflowTaskStatus.RUNNING],
        )

    async def pause_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._change_run("pause_workflow", workflow_id, reason)

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._change_run("resume_workflow", workflow_id, reason)

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport:
        del kill  # there are no processes
        return self._change_run("cancel_workflow", workflow_id, reason)

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._change_run("retry_workflow", workflow_id, reason)

    def _change_run(self, action: str, workflow_id: str | UUID, reason: str | None) -> ActionReport:
        """Change a run and its nodes if its status allows that; changed nodes lose their task."""
        run, (allowed, status, node_statuses) = self.system.runs[UUID(str(workflow_id))], _RUN_CHANGES[action]
        selector, now = {"workflow_id": str(run.id)}, self.system.now()
        if run.status not in allowed:
            skipped = (Skipped(run.id, SkipReason.WORKFLOW_STATE_NOT_ALLOWED),)
            return self._record(action, selector, affected=0, skipped=skipped, reason=reason)
        report = self._record(action, selector, affected=1, reason=reason)
        nodes = self.system.nodes[run.id]
        self.system.nodes[run.id] = tuple(
            replace(node, status=node_statuses[node.status], **_WITHOUT_TASK) if node.status in node_statuses else node
            for node in nodes
        )
        is_retry = action == "retry_workflow"
        self.system.runs[run.id] = replace(
            run,
            status=status,
            paused_at=now if status is WorkflowStatus.PAUSED else None,
            completed_at=now if status.is_terminal else None,
            error_code=None,
            generation=run.generation + is_retry,
        )
        return replace(report, retried_nodes=sum(node.status in node_statuses for node in nodes) if is_retry else 0)


def _facets(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())


def _heartbeats(token: int, start: datetime, end: datetime) -> list[HeartbeatRow]:
    """One per interval, newest first."""
    times = [start + number * HEARTBEAT_INTERVAL for number in range(int((end - start) / HEARTBEAT_INTERVAL), 0, -1)]
    return [HeartbeatRow(role="runner", sender_id="w", claim_token=token, at=at, age=timedelta(0)) for at in times]


def _snapshot(worker: DemoWorker, at: datetime, last: datetime) -> SnapshotRow:
    """A made-up load; the lost worker ran out of memory in its last 20 minutes."""
    load = 0.6 + 0.25 * sin(at.timestamp() / 97 + worker.pid)
    memory = max(46, 96 - (last - at) / MINUTE * 2.5) if worker is LOST_WORKER else 30 + 20 * load
    return SnapshotRow(
        at=at,
        processes=worker.processes,
        tasks_running=round(worker.processes * load),
        tasks_claimed=round(3 * load),
        cpu_percent=round(75 + 25 * load if worker is HOT_WORKER else 70 * load, 1),
        memory_percent=round(memory, 1),
        memory_mb=round(memory * 40.96, 1),
    )
