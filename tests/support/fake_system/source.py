"""The fake system as a data source: answers the reads of the screens and carries out their actions in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice, takewhile
from math import sin
from typing import TYPE_CHECKING, Any, Final
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
from horsies.model.retention import CategoryCleanup, CleanupSummary, RetentionWindows
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies.model.waiting import WaitFacts, WaitReason, wait_reasons
from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies.recovery.decide import StaleTask
from horsies.recovery.report import SweepReport, SweptTask
from horsies.recovery.sweep import SweepReportBuilder
from horsies_ops.actions import report as actions
from horsies_ops.actions.plan import Plan, PlanBuilder, Selector, TargetRow
from horsies_ops.actions.report import ActionProgress, ActionReport, Skipped
from horsies_ops.actions.schedules import MAX_BACKFILL, BackfillPlan
from horsies_ops.actions.sweep import CleanupReport
from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.filters import ConditionTests, TaskFilter, is_match, matches_any_glob
from horsies_ops.reads.overview import (
    ErrorCount,
    Overview,
    QueueBucket,
    QueueRow,
    Throughput,
    ThroughputBucket,
    TimePercentiles,
)
from horsies_ops.reads.schedules import ScheduleRow, ScheduleRunRow
from horsies_ops.reads.search import Count, Facet, Facets, ShortIdMatch
from horsies_ops.reads.server import Storage
from horsies_ops.reads.stale import DEFAULT_SWEEP_OPTIONS, OwnedRow, assess_owner, forecasts
from horsies_ops.reads.tasks import (
    EVERY_TASK,
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
from tests.support.fake_system import catalog, histories
from tests.support.fake_system.catalog import LOST_WORKER, WORKERS, make_row
from tests.support.fake_system.histories import (
    HEARTBEAT_INTERVAL,
    heartbeats_between,
    schedule_rows,
    schedule_runs,
    snapshot_at,
)
from tests.support.fake_system.system import IN_FLIGHT, FakeSystem

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SINCE_LAST_PASS: Final = 14 * SECOND
BYTES_PER_ROW: Final = 900

_AFTER_ACTION: Final = {
    Action.REQUEUE: (TaskStatus.PENDING, None),
    Action.FAIL: (TaskStatus.FAILED, "OPERATOR_FAILED"),
    Action.CANCEL: (TaskStatus.CANCELLED, "TASK_CANCELLED"),
    Action.EXPIRE: (TaskStatus.EXPIRED, "TASK_EXPIRED"),
}
"""Status and error code of a task after an action."""
_NOT_STARTED: Final = (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY, WorkflowTaskStatus.ENQUEUED)
_FAILED_OR_SKIPPED: Final = (WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)
_RUN_CHANGES: Final[Mapping[str, tuple[Sequence[str], WorkflowStatus, Sequence[str], str]]] = {
    actions.PAUSE_WORKFLOW: (("RUNNING",), WorkflowStatus.PAUSED, (), ""),
    actions.RESUME_WORKFLOW: (("PAUSED",), WorkflowStatus.RUNNING, (), ""),
    actions.CANCEL_WORKFLOW: (("RUNNING", "PAUSED"), WorkflowStatus.CANCELLED, _NOT_STARTED, "SKIPPED"),
    actions.RETRY_WORKFLOW: (("FAILED", "CANCELLED"), WorkflowStatus.RUNNING, _FAILED_OR_SKIPPED, "PENDING"),
}
"""By action: the statuses of runs it applies to, their new status, the nodes it changes and their new status."""
_WITHOUT_OWNER: Final = dict.fromkeys(("claimed_at", "started_at", "last_heartbeat_at", "worker_id"))
_WITHOUT_TASK: Final = dict.fromkeys(("task_id", "started_at", "completed_at", "error_code", "error_message"))
_CONDITION_TESTS: Final[ConditionTests[TaskRecord]] = {
    "ids": lambda task, ids, _: any(str(task.id).endswith(text.lower()) for text in ids),
    "statuses": lambda task, statuses, _: task.status in statuses,
    "queues": lambda task, queues, _: task.queue in queues,
    "names": lambda task, globs, _: matches_any_glob(task.name, globs),
    "error_codes": lambda task, globs, _: task.error_code is not None and matches_any_glob(task.error_code, globs),
    "worker_id": lambda task, text, _: str(task.worker_id).endswith(text.lower()),
    "workflow_id": lambda task, text, _: str(task.workflow_id).endswith(text.lower()),
    "flag": lambda task, flag, _: task.flags.get(flag) is True,
    "retried": lambda task, is_retried, _: is_retried is (task.retry_count > 0),
    "older_than": lambda task, age, now: now - task.sent_at >= age,
    "newer_than": lambda task, age, now: now - task.sent_at < age,
    "text": lambda task, text, _: text.lower() in f"{task.name} {task.kwargs_json} {task.error_code}".lower(),
    "min_wait": lambda task, wait, now: (task.started_at or task.finished_at or now) - task.enqueued_at >= wait,
    "min_run": lambda task, run, now: (task.finished_at or now) - (task.started_at or now) >= run,
    "min_silence": lambda task, silence, now: now - (task.last_heartbeat_at or now) >= silence,
    "min_attempts": lambda task, number, _: task.attempt_count >= number,
    "due_later": lambda task, is_later, now: is_later is (task.status == "PENDING" and task.enqueued_at > now),
}


class FakeSource(Ops if TYPE_CHECKING else object):
    """Reads and actions over a fake system, whose feed reports nothing."""

    settings = AppConfig()

    def __init__(self, system: FakeSystem, *, read_only: bool) -> None:
        self.system = system
        self._read_only = read_only

    async def database_time(self) -> datetime:
        return self.system.now()

    async def listen(self) -> AsyncIterator[Change]:
        yield Change(topic=Topic.FEED, kind=FeedStatus.STARTED, at=self.system.now())
        # The end of the feed would be a lost connection.
        await asyncio.Event().wait()

    # Tasks

    def _matching(self, task_filter: TaskFilter, ids: Iterable[UUID]) -> Iterator[TaskRecord]:
        now, tasks = self.system.now(), self.system.tasks
        return (tasks[task_id] for task_id in ids if is_match(tasks[task_id], task_filter, _CONDITION_TESTS, now))

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
        attempts, owned = self.system.attempts.get(task.id, [])[::-1], None
        spans = [(attempt.claim_token, attempt.started_at, attempt.finished_at) for attempt in attempts]
        if task.last_heartbeat_at is not None:
            spans.insert(0, (task.claim_token, task.started_at or task.last_heartbeat_at, task.last_heartbeat_at))
            policy = self._policy(DEFAULT_SWEEP_OPTIONS)
            owned = assess_owner(self._owned_row(task), self._fleet(), policy)
        retries = [attempt.finished_at for attempt in attempts if attempt.will_retry]
        return TaskDetail(
            task=replace(task, age=self.system.now() - task.sent_at),
            attempts=tuple(attempts),
            heartbeats=tuple(heartbeat for span in spans for heartbeat in heartbeats_between(*span)),
            events=tuple(
                make_row(EventRow, at=at, kind="task_retry", evidence_json='{"delay_s": 60}') for at in retries
            ),
            recovery_decision=owned and owned.decision,
            forecast=owned and owned.forecast,
            # The fleet of these rules has no members.
            owner=owned and replace(owned.facts, has_reaper=True),
            wait_reasons=self._wait_reasons(task) if task.status == TaskStatus.PENDING else (),
        )

    def _wait_reasons(self, task: TaskRecord) -> tuple[WaitReason, ...]:
        now, pending = self.system.now(), self.system.in_state(TaskStatus.PENDING)
        queue = next(self._with_counts(queue) for queue in catalog.QUEUES if queue.name == task.queue)
        serving = [worker for worker in WORKERS if task.queue in worker.queues]
        alive = {worker.worker_id: worker for worker in serving if worker is not LOST_WORKER}
        running = [other for other in self.system.in_state(TaskStatus.RUNNING) if other.worker_id in alive]
        facts = WaitFacts(
            queue=queue.name,
            due_in=task.enqueued_at - now if task.enqueued_at > now else None,
            is_retry=task.retry_count > 0,
            is_overdue=task.good_until is not None and task.good_until <= now,
            is_paused=queue.is_paused,
            paused_by=queue.paused_by,
            pause_reason=queue.pause_reason,
            ahead=sum(
                other.queue == task.queue and other.enqueued_at < min(task.enqueued_at, now) for other in pending
            ),
            workers=len(alive),
            silent_workers=len(serving) - len(alive),
            slots=sum(worker.processes for worker in alive.values()),
            running=Counter(other.name for other in running),
            queue_in_flight=queue.claimed + queue.running,
            queue_limit=queue.max_concurrency,
            cluster_in_flight=0,
            cluster_limit=None,
        )
        return wait_reasons(facts)

    async def plan(self, action: Action, selector: Selector, options: ActionOptions | None = None) -> Plan:
        now, tasks = self.system.now(), self.system.tasks
        builder = PlanBuilder(action, options or ActionOptions())
        ids = [task_id for task_id in selector.ids or self.system.task_ids if task_id in tasks]
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
            for task in self._matching(selector.filter or EVERY_TASK, ids)
        )
        return builder.build(replace(selector, as_of=now))

    async def apply(
        self, plan: Plan, *, progress: Callable[[ActionProgress], None] | None = None, stop: asyncio.Event | None = None
    ) -> ActionReport:
        del progress, stop  # an action is one step
        planned = {target.id: (target.status, target.claim_token) for target in plan.targets}
        tasks = [self.system.tasks[task_id] for task_id in planned]
        unmoved = [task for task in tasks if (task.status, task.claim_token) == planned[task.id]]
        moved = planned.keys() - {task.id for task in unmoved}
        report = self._record(
            plan.action,
            plan.selector.to_audit(),
            affected=len(unmoved),
            skipped=[*plan.refused, *(Skipped(task_id, SkipReason.TASK_STATE_MOVED) for task_id in moved)],
            reason=plan.options.reason,
            task_ids=tuple(task.id for task in unmoved),
        )
        if plan.action is Action.RETRY:
            new = [self.system.send(catalog.KINDS_BY_NAME[task.name], retry_of=task.id) for task in unmoved]
            return replace(report, new_ids=tuple(task.id for task in new))
        for task in unmoved:
            self._move(task, *_AFTER_ACTION[plan.action])
        return report

    def _move(self, task: TaskRecord, status: TaskStatus, error_code: str | None, **fields: object) -> None:
        """Take the task from its owner and give it the status that an operator or a sweep decided."""
        now = self.system.now()
        values: dict[str, object] = {"enqueued_at": now, **_WITHOUT_OWNER}
        if status.is_terminal:
            values = {"finished_at": now, "last_heartbeat_at": None, "error_code": error_code}
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
        matched = affected + len(skipped)
        entry = self.system.record_action(
            action, selector, matched=matched, affected=affected, skipped=len(skipped), **fields
        )
        named = {"skipped": tuple(skipped), "skipped_count": len(skipped), "new_ids": (), "warnings": ()}
        return make_row(ActionReport, entry, audit_id=entry.id, **named)

    # Recovery

    def _policy(self, options: SweepOptions) -> EffectivePolicy:
        return effective_policy(OperatorObserver(local_config=self.settings.recovery), options, self._fleet())

    def _fleet(self) -> Fleet:
        return Fleet(now=self.system.now(), server_started_at=self.system.started_at - DAY)

    def _stale_task(self, task: TaskRecord, policy: EffectivePolicy) -> StaleTask:
        """The task with the decision that a real sweep would make."""
        return StaleTask.from_row(self._owned_row(task), policy)

    def _owned_row(self, task: TaskRecord) -> OwnedRow:
        owner = next((worker for worker in WORKERS if worker.worker_id == task.worker_id), None)
        return make_row(
            OwnedRow,
            task,
            owner_hostname=owner and owner.hostname,
            owner_pid=owner and owner.pid,
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

    def _in_flight(self, options: SweepOptions, *, is_fresh: bool) -> list[StaleTask]:
        """The claimed and running tasks that are stale, or those that are not."""
        policy = self._policy(options)
        tasks = [task for task in self.system.in_state(*IN_FLIGHT) if options.worker_id in (None, task.worker_id)]
        return [task for task in (self._stale_task(task, policy) for task in tasks) if task.is_fresh is is_fresh]

    async def stale_candidates(self, options: SweepOptions = DEFAULT_SWEEP_OPTIONS) -> SweepReport:
        return self._sweep_report(options, dry_run=True)

    def _sweep_report(self, options: SweepOptions, *, dry_run: bool) -> SweepReport:
        stale = [task.to_swept_task(applied=not dry_run) for task in self._in_flight(options, is_fresh=False)]
        policy = self._policy(options)
        return SweepReportBuilder(effective_policy=policy, dry_run=dry_run, hooks_loaded=False, tasks=stale).build()

    async def sweep(
        self,
        options: SweepOptions = DEFAULT_SWEEP_OPTIONS,
        *,
        reason: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> SweepReport:
        del stop  # a sweep is one step
        report = self._sweep_report(options, dry_run=False)
        selector = {"worker_id": str(options.worker_id)} if options.worker_id else {}
        ids = tuple(task.task_id for task in report.tasks)
        self._record(actions.SWEEP, selector, affected=len(ids), task_ids=ids, reason=reason)
        for swept in report.tasks:
            task = self.system.tasks[swept.task_id]
            if swept.decision is DecisionKind.FAIL:
                self._move(task, TaskStatus.FAILED, swept.code)
            else:
                retry_count = task.retry_count + (swept.decision is DecisionKind.RETRY)
                self._move(task, TaskStatus.PENDING, None, enqueued_at=swept.run_at, retry_count=retry_count)
        return report

    async def silent_tasks(self, options: SweepOptions = DEFAULT_SWEEP_OPTIONS) -> tuple[SweptTask, ...]:
        fresh = self._in_flight(options, is_fresh=True)
        return forecasts(task for task in fresh if task.silence >= 1.5 * HEARTBEAT_INTERVAL)

    # Numbers

    async def overview(self) -> Overview:
        now, queues, errors = self.system.now(), await self.list_queues(), await self.error_summary(DAY)
        counts = Counter(task.status for task in self.system.tasks.values())
        stale = Counter(task.row.status for task in self._in_flight(DEFAULT_SWEEP_OPTIONS, is_fresh=False))
        owned = {
            status: [now - (task.claimed_at or now) for task in self.system.in_state(status)] for status in IN_FLIGHT
        }
        failed_last_minute = sum(queue.failed_last_minute for queue in queues)
        failures = [error for error in errors if error.status == TaskStatus.FAILED]
        runs = Counter(run.status for run in self.system.runs.values())
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
            oldest_claimed=max(owned[TaskStatus.CLAIMED], default=None),
            longest_running=max(owned[TaskStatus.RUNNING], default=None),
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
        times = {"wait_p50": 2.1 * SECOND, "wait_p95": 3.8 * SECOND, "run_p50": 1.6 * SECOND, "run_p95": 7.9 * SECOND}
        rows = tuple(make_row(ThroughputBucket, at=at, **total) for at, total in totals.items())
        return Throughput(buckets=rows, times=TimePercentiles(**times))

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
        ages: dict[tuple[str, str, str], list[timedelta]] = {}
        for task in self.system.tasks.values():
            if task.error_code is not None and task.finished_at is not None:
                age = self.system.now() - task.finished_at
                ages.setdefault((task.name, task.error_code, task.status), []).append(age)
        counts = [
            ErrorCount(
                name=name, code=code, status=status, count=len(found), last_hour=sum(age < HOUR for age in found)
            )
            for (name, code, status), all_ages in ages.items()
            if (found := [age for age in all_ages if age < window])
        ]
        return tuple(sorted(counts, key=lambda error: error.count, reverse=True))

    # Queues and workers

    async def list_queues(self) -> tuple[QueueRow, ...]:
        return tuple(self._with_counts(queue) for queue in catalog.QUEUES)

    def _with_counts(self, queue: QueueRow) -> QueueRow:
        now, pause = self.system.now(), self.system.paused_queues.get(queue.name)
        tasks = [task for task in self.system.tasks.values() if task.queue == queue.name]
        counts = Counter(task.status for task in tasks)
        waits = [now - task.enqueued_at for task in tasks if task.status == TaskStatus.PENDING]
        due, delayed = [wait for wait in waits if wait >= 0 * SECOND], [-wait for wait in waits if wait < 0 * SECOND]
        finished = Counter(task.status for task in tasks if task.finished_at and now - task.finished_at < MINUTE)
        return replace(
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
        report = self._record(actions.PAUSE_QUEUE, {"queue": queue}, affected=int(queue not in paused), reason=reason)
        paused.setdefault(queue, self.system.audit_log[-1])
        return report

    async def resume_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        paused = self.system.paused_queues
        report = self._record(actions.RESUME_QUEUE, {"queue": queue}, affected=int(queue in paused), reason=reason)
        paused.pop(queue, None)
        return report

    def _seen_at(self, worker: WorkerRow) -> datetime:
        """When the worker sent its last heartbeat."""
        at = self.system.started_at if worker is LOST_WORKER else self.system.now()
        return at - worker.heartbeat_age

    async def list_active_workers(self, threshold: timedelta | None = None) -> tuple[WorkerRow, ...]:
        threshold = threshold or timedelta(milliseconds=self.settings.recovery.worker_stale_threshold_ms)
        rows = [self._with_load(worker, threshold) for worker in WORKERS]
        return tuple(sorted(rows, key=lambda row: row.heartbeat_age))

    def _with_load(self, worker: WorkerRow, threshold: timedelta) -> WorkerRow:
        now, seen_at = self.system.now(), self._seen_at(worker)
        owned = [task.status for task in self.system.in_state(*IN_FLIGHT) if task.worker_id == worker.worker_id]
        running, load = owned.count(TaskStatus.RUNNING), snapshot_at(worker, seen_at, seen_at)
        return replace(
            worker,
            started_at=self.system.started_at - DAY * worker.processes / 4,
            last_heartbeat_at=seen_at,
            heartbeat_age=now - seen_at,
            is_stale=now - seen_at > threshold,
            is_silent=is_silent(now - seen_at, self.settings.recovery),
            heartbeat_interval=timedelta(milliseconds=self.settings.recovery.effective_worker_heartbeat_ms),
            tasks_running=running,
            tasks_claimed=owned.count(TaskStatus.CLAIMED),
            children_busy=min(running, worker.processes),
            cpu_percent=load.cpu_percent,
            memory_mb=load.memory_mb,
            memory_percent=load.memory_percent,
            listening_since=self.system.started_at - HOUR,
            last_pass_at=now - SINCE_LAST_PASS,
        )

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
        worker = next(worker for worker in WORKERS if worker.worker_id == UUID(str(worker_id)))
        last = self._seen_at(worker)
        count = int((last - self.system.now() + window) / HEARTBEAT_INTERVAL)
        return tuple(snapshot_at(worker, last - back * HEARTBEAT_INTERVAL, last) for back in range(count, -1, -1))

    # Maintenance

    async def list_schedules(self) -> tuple[ScheduleRow, ...]:
        return schedule_rows(self.system)

    async def schedule(self, name: str) -> ScheduleRow:
        return next(row for row in await self.list_schedules() if row.name == name)

    async def schedule_history(self, name: str, *, limit: int = 50) -> tuple[ScheduleRunRow, ...]:
        return schedule_runs(await self.schedule(name), self.system.now(), limit=limit)

    async def schedule_participants(self) -> int:
        return self.system.schedulers

    async def pause_schedule(self, name: str, *, reason: str | None = None) -> ActionReport:
        paused = self.system.paused_schedules
        report = self._record(
            actions.PAUSE_SCHEDULE, {"schedule": name}, affected=int(name not in paused), reason=reason
        )
        paused.setdefault(name, self.system.audit_log[-1])
        return report

    async def resume_schedule(self, name: str, *, catch_up: bool = False, reason: str | None = None) -> ActionReport:
        del catch_up  # the system misses no slots
        paused = self.system.paused_schedules
        report = self._record(actions.RESUME_SCHEDULE, {"schedule": name}, affected=int(name in paused), reason=reason)
        paused.pop(name, None)
        return report

    async def run_schedule(self, name: str, *, reason: str | None = None) -> ActionReport:
        return self._record(actions.RUN_SCHEDULE, {"schedule": name}, affected=1, reason=reason)

    async def plan_backfill(self, name: str, first: datetime, last: datetime) -> BackfillPlan:
        policy = (await self.schedule(name)).policy
        start = policy and policy.next_slot(first)
        slots = takewhile(lambda slot: slot <= last, policy.slots_from(start)) if policy and start else ()
        due = tuple(islice(slots, MAX_BACKFILL))
        return BackfillPlan(name=name, slots=due, previous_slots=(None, *due[:-1]), already_fired=0)

    async def backfill_schedule(
        self, name: str, first: datetime, last: datetime, *, reason: str | None = None
    ) -> ActionReport:
        plan = await self.plan_backfill(name, first, last)
        return self._record(actions.BACKFILL_SCHEDULE, {"schedule": name}, affected=len(plan.slots), reason=reason)

    async def audit(
        self, *, after: int | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        del after, before  # the screens read only the newest entries
        return tuple(self.system.audit_log[-limit:])

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
        return histories.storage(self.system.now())

    async def cleanup_candidates(self) -> CleanupSummary:
        categories = [
            CategoryCleanup(
                category=category,
                window=window,
                rows=rows,
                bytes=rows * BYTES_PER_ROW,
                oldest_at=self.system.now() - window * 1.04 if window and rows else None,
                tables={category.table: rows},
            )
            for category, window in RetentionWindows.of(self.settings.recovery, self.settings.retention)
            for rows in [self.system.expired_rows.get(category, 0)]
        ]
        return CleanupSummary(categories=tuple(categories))

    async def cleanup(
        self,
        *,
        reason: str | None = None,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> CleanupReport:
        del progress, stop  # a cleanup is one step
        deleted = await self.cleanup_candidates()
        report = self._record(actions.CLEANUP, {}, affected=deleted.rows, reason=reason)
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
        rows = [
            self._run_row(run)
            for run in sorted(self.system.runs.values(), key=lambda run: run.id, reverse=True)
            if (not filter.statuses or run.status in filter.statuses)
            and (not filter.names or matches_any_glob(run.name, filter.names))
            and (not filter.root_only or run.parent_id is None)
            and (after is None or run.id < after)
        ]
        return WorkflowPage(workflows=tuple(rows[:limit]), next=rows[limit - 1].id if len(rows) > limit else None)

    async def workflow(self, workflow_id: str | UUID) -> WorkflowDetail | None:
        run = self.system.runs.get(UUID(str(workflow_id)))
        if run is None:
            return None
        sub_runs = [other for other in self.system.runs.values() if other.parent_id == run.id]
        return WorkflowDetail(
            run=replace(run, age=self.system.now() - run.created_at),
            nodes=self.system.nodes[run.id],
            sub_workflows={sub_run.id: self._run_row(sub_run) for sub_run in sub_runs},
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
        return self._change_run(actions.PAUSE_WORKFLOW, workflow_id, reason)

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._change_run(actions.RESUME_WORKFLOW, workflow_id, reason)

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport:
        del kill  # there are no processes
        return self._change_run(actions.CANCEL_WORKFLOW, workflow_id, reason)

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._change_run(actions.RETRY_WORKFLOW, workflow_id, reason)

    def _change_run(self, action: str, workflow_id: str | UUID, reason: str | None) -> ActionReport:
        """Change a run and its nodes if its status allows that; changed nodes lose their task."""
        run, now = self.system.runs[UUID(str(workflow_id))], self.system.now()
        allowed, status, changed, node_status = _RUN_CHANGES[action]
        skipped = () if run.status in allowed else (Skipped(run.id, SkipReason.WORKFLOW_STATE_NOT_ALLOWED),)
        selector = {"workflow_id": str(run.id)}
        report = self._record(action, selector, affected=int(not skipped), skipped=skipped, reason=reason)
        if skipped:
            return report
        nodes = self.system.nodes[run.id]
        self.system.nodes[run.id] = tuple(
            replace(node, status=node_status, **_WITHOUT_TASK) if node.status in changed else node for node in nodes
        )
        retried_nodes = sum(node.status in changed for node in nodes) if action == actions.RETRY_WORKFLOW else 0
        self.system.runs[run.id] = replace(
            run,
            status=status,
            paused_at=now if status is WorkflowStatus.PAUSED else None,
            completed_at=now if status.is_terminal else None,
            error_code=None,
            generation=run.generation + bool(retried_nodes),
        )
        return replace(report, retried_nodes=retried_nodes)


def _facets(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())
