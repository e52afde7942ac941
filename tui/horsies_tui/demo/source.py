"""The demo system as a data source: answers the queries of the screens from memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.errors import Refused
from horsies.model.operator_actions import Action, ActionOptions, SkipReason
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.retention import CleanupSummary
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies.recovery.report import SweepReport, SweptTask
from horsies_ops.actions.plan import Plan, Selector
from horsies_ops.actions.report import ActionProgress, ActionReport, Skipped
from horsies_ops.cleanup import CLEANUP, CleanupReport
from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.overview import ErrorCount, Overview, QueueBucket, Throughput
from horsies_ops.reads.queues import QueueRow
from horsies_ops.reads.schedules import ScheduleRow
from horsies_ops.reads.search import Count, Facet, Facets, ShortIdMatch
from horsies_ops.reads.server import Storage
from horsies_ops.reads.stale import SilentTasks
from horsies_ops.reads.tasks import (
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
    NodeRow,
    WorkflowDetail,
    WorkflowFilter,
    WorkflowPage,
    WorkflowRecord,
)
from horsies_tui.demo import actions, reads
from horsies_tui.demo.catalog import STALE_AFTER, WORKERS

if TYPE_CHECKING:
    from horsies_tui.demo.system import DemoSystem
    from horsies_tui.demo.workflows import DemoRuns

_ALL_TASKS: Final = TaskFilter()
_DEFAULT_OPTIONS: Final = SweepOptions()
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_NOT_STARTED: Final = {WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY, WorkflowTaskStatus.ENQUEUED}
_FAILED_OR_SKIPPED: Final = {WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED}


class DemoSource:
    """Reads and actions over a demo system, which advances every `pace_s` seconds; None stops it."""

    settings = AppConfig()

    def __init__(self, system: DemoSystem, *, read_only: bool, pace_s: float | None) -> None:
        self.system = system
        self._read_only = read_only
        self._pace_s = pace_s

    def _require_writable(self) -> None:
        if self._read_only:
            raise Refused("this connection is read-only")

    async def database_time(self) -> datetime:
        return self.system.now()

    async def listen(self) -> AsyncIterator[Change]:
        yield Change(topic=Topic.FEED, kind=FeedStatus.LIVE, at=self.system.now())
        while self._pace_s is not None:
            await asyncio.sleep(self._pace_s)
            self.system.step()
            for change in self.system.changes():
                yield change
        # A stopped system stays connected: the feed must not end.
        await asyncio.Event().wait()

    def _matching(self, task_filter: TaskFilter, ids: Iterable[UUID]) -> Iterator[TaskRecord]:
        now = self.system.now()
        tasks = (self.system.tasks[task_id] for task_id in ids)
        return tasks if task_filter.is_empty else (task for task in tasks if reads.matches(task, task_filter, now))

    async def list_tasks(
        self,
        filter: TaskFilter = _ALL_TASKS,  # noqa: A002
        *,
        order: TaskOrder = TaskOrder.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        ids = self.system.task_ids
        if order is TaskOrder.OLDEST_FIRST:
            remaining = iter(ids[bisect_right(ids, after or UUID(int=0)) :])
        else:
            last = len(ids) if after is None else bisect_left(ids, after)
            remaining = (ids[index] for index in range(last - 1, -1, -1))
        found: list[TaskRecord] = []
        for task in self._matching(filter, remaining):
            found.append(task)
            # One more than asked shows that there is a next page.
            if len(found) > limit:
                break
        return TaskPage(tasks=tuple(found[:limit]), next=found[limit - 1].id if len(found) > limit else None)

    async def count_tasks(self, filter: TaskFilter = _ALL_TASKS, *, cap: int = 10_000) -> Count:  # noqa: A002
        if filter.is_empty:
            number = len(self.system.task_ids)
        else:
            number = sum(1 for _ in self._matching(filter, self.system.task_ids))
        return Count(number=min(number, cap), is_capped=number > cap)

    async def facets(self, filter: TaskFilter = _ALL_TASKS) -> Facets:  # noqa: A002
        found = list(self._matching(filter, self.system.task_ids[-10_000:]))
        return Facets(
            statuses=_facets(task.status for task in found),
            queues=_facets(task.queue for task in found),
            names=_facets(task.name for task in found),
            error_codes=_facets(task.error_code for task in found if task.error_code),
        )

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]:
        found = (self.system.tasks.get(task_id) for task_id in sorted(ids, reverse=True))
        return tuple(task for task in found if task is not None)

    async def payload_previews(self, ids: Iterable[UUID]) -> dict[UUID, PayloadPreview]:
        found = (self.system.tasks[task_id] for task_id in ids if task_id in self.system.tasks)
        return {
            task.id: PayloadPreview(
                id=task.id, size=len(task.kwargs_json), args_json=task.args_json, kwargs_json=task.kwargs_json
            )
            for task in found
        }

    async def task(self, task_id: str | UUID) -> TaskDetail | None:
        task = self.system.tasks.get(UUID(str(task_id)))
        return None if task is None else reads.task_detail(task, self.system.now())

    async def list_schedules(self) -> tuple[ScheduleRow, ...]:
        return reads.schedules(self.system)

    async def tasks_by_short_id(self, short_id: str) -> tuple[ShortIdMatch, ...]:
        task_filter = replace(_ALL_TASKS, ids=(short_id,))
        return tuple(
            ShortIdMatch(id=task.id, name=task.name, status=task.status)
            for task in self._matching(task_filter, self.system.task_ids)
        )

    async def plan(self, action: Action, selector: Selector, options: ActionOptions | None = None) -> Plan:
        if selector.ids is not None:
            tasks = [self.system.tasks[task_id] for task_id in selector.ids if task_id in self.system.tasks]
        else:
            tasks = list(self._matching(selector.filter or _ALL_TASKS, self.system.task_ids))
        return actions.build_plan(action, replace(selector, as_of=self.system.now()), options or ActionOptions(), tasks)

    async def apply(
        self, plan: Plan, *, progress: Callable[[ActionProgress], None] | None = None, stop: asyncio.Event | None = None
    ) -> ActionReport:
        return await actions.apply_plan(self.system, plan, progress=progress, stop=stop, read_only=self._read_only)

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        return actions.undo_retry(self.system, report)

    # Queues, workers and maintenance

    async def overview(self) -> Overview:
        system = self.system
        counts = Counter(task.status for task in system.tasks.values())
        queues = reads.queue_rows(system)
        minute, day = reads.finished_counts(system, _MINUTE), reads.finished_counts(system, _DAY)
        return Overview(
            at=system.now(),
            counts={status: Count(number=counts[status]) for status in TaskStatus},
            queues=queues,
            done_last_minute=minute[TaskStatus.COMPLETED],
            failed_last_minute=minute[TaskStatus.FAILED],
            failed_last_hour=Count(number=reads.finished_counts(system, _HOUR)[TaskStatus.FAILED]),
            failed_last_day=Count(number=day[TaskStatus.FAILED]),
            expired_last_day=Count(number=day[TaskStatus.EXPIRED]),
            delayed=sum(queue.delayed for queue in queues),
            oldest_due=max((queue.oldest_due_age for queue in queues if queue.oldest_due_age), default=None),
            next_due=min((queue.next_due_in for queue in queues if queue.next_due_in), default=None),
            oldest_claimed=max(_ages(system, TaskStatus.CLAIMED), default=None),
            longest_running=max(_ages(system, TaskStatus.RUNNING), default=None),
            stale_claimed=_count_stale(system, TaskStatus.CLAIMED),
            stale_running=_count_stale(system, TaskStatus.RUNNING),
            workers=Counter("lost" if worker.is_lost else "running" for worker in WORKERS),
            workflows={status: Count(number=number) for status, number in system.workflow_runs.counts.items()},
            slots=sum(worker.processes for worker in WORKERS if not worker.is_lost),
            running=counts[TaskStatus.RUNNING],
        )

    async def list_queues(self) -> tuple[QueueRow, ...]:
        return reads.queue_rows(self.system)

    async def list_active_workers(self, threshold: timedelta) -> tuple[WorkerRow, ...]:
        del threshold
        return reads.worker_rows(self.system)

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
        return reads.worker_history(self.system, UUID(str(worker_id)), window)

    async def throughput(self, window: timedelta, buckets: int = 30) -> Throughput:
        return reads.throughput(self.system, window, buckets)

    async def queue_throughput(self, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
        return reads.queue_throughput(self.system, window, buckets)

    async def error_summary(self, window: timedelta) -> tuple[ErrorCount, ...]:
        return reads.error_summary(self.system, window)

    async def audit(
        self, *, after: int | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        rows = self.system.audit_log.rows
        if after is not None:
            return tuple(row for row in rows if row.id > after)[:limit]
        return tuple(row for row in rows if before is None or row.id < before)[-limit:]

    async def stale_candidates(self, options: SweepOptions = _DEFAULT_OPTIONS) -> SweepReport:
        return actions.stale_candidates(self.system, options)

    async def sweep(
        self, options: SweepOptions = _DEFAULT_OPTIONS, *, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> SweepReport:
        del stop  # a demo sweep is one step
        return actions.sweep(self.system, options, reason=reason, read_only=self._read_only)

    async def pause_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        return self._apply_queue_change(
            "pause_queue", queue, reason, change=lambda: self.system.audit_log.pause(queue, reason)
        )

    async def resume_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        return self._apply_queue_change(
            "resume_queue", queue, reason, change=lambda: self.system.audit_log.resume(queue)
        )

    def _apply_queue_change(
        self, action: str, queue: str, reason: str | None, *, change: Callable[[], bool]
    ) -> ActionReport:
        self._require_writable()
        affected = int(change())
        audit_id = self.system.audit_log.append(
            action, affected=affected, skipped=1 - affected, reason=reason, filter_document={"queue": queue}
        )
        return ActionReport(action=action, matched=1, affected=affected, skipped_count=1 - affected, audit_id=audit_id)

    async def nearly_stale_tasks(
        self, within: timedelta, options: SweepOptions = _DEFAULT_OPTIONS
    ) -> tuple[SweptTask, ...]:
        return actions.nearly_stale_tasks(self.system, options, within)

    async def silent_tasks(self, options: SweepOptions = _DEFAULT_OPTIONS) -> SilentTasks | None:
        return actions.silent_tasks(self.system, options)

    async def maintenance_status(self) -> MaintenanceStatus:
        return self.system.maintenance.maintenance_status()

    async def storage(self) -> Storage:
        return self.system.maintenance.storage()

    async def events(self, *, limit: int = 100) -> tuple[EventRow, ...]:
        return tuple(self.system.maintenance.events[-limit:])

    async def cleanup_candidates(self) -> CleanupSummary:
        return self.system.maintenance.candidates()

    async def cleanup(
        self,
        *,
        reason: str | None = None,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> CleanupReport:
        del stop
        self._require_writable()
        cleaned = self.system.maintenance.cleanup()
        if progress is not None:
            progress(ActionProgress(done=cleaned.rows, total=cleaned.rows, affected=cleaned.rows, skipped=0))
        audit_id = self.system.audit_log.append(CLEANUP, affected=cleaned.rows, reason=reason)
        return CleanupReport(is_dry_run=False, matched=cleaned.rows, cleaned=cleaned, audit_id=audit_id)

    # Workflow runs

    @property
    def _runs(self) -> DemoRuns:
        return self.system.workflow_runs

    async def list_workflows(
        self,
        filter: WorkflowFilter = EVERY_WORKFLOW,  # noqa: A002  # as in `Ops`
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> WorkflowPage:
        matching = (run.id for run in self._runs.runs.values() if _matches_run(run, filter))
        ids = [run_id for run_id in sorted(matching, reverse=True) if after is None or run_id < after]
        page = tuple(self._runs.row(run_id) for run_id in ids[:limit])
        return WorkflowPage(workflows=page, next=page[-1].id if len(ids) > limit else None)

    async def workflow(self, workflow_id: str | UUID) -> WorkflowDetail | None:
        return self._runs.detail(UUID(str(workflow_id)))

    async def pause_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        del reason
        return self._apply_run_change("pause_workflow", workflow_id, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED)

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        del reason
        return self._apply_run_change("resume_workflow", workflow_id, WorkflowStatus.PAUSED, WorkflowStatus.RUNNING)

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport:
        del kill, reason
        run = self._writable_run(workflow_id)
        is_open = not WorkflowStatus(run.status).is_terminal
        if is_open:
            self._set_node_statuses(run, _NOT_STARTED, WorkflowTaskStatus.SKIPPED)
            self._runs.change(run.id, status=WorkflowStatus.CANCELLED, completed_at=self.system.now())
        return _run_report("cancel_workflow", run, is_changed=is_open)

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        del reason
        run = self._writable_run(workflow_id)
        to_retry = sum(node.status in _FAILED_OR_SKIPPED for node in self._runs.nodes[run.id])
        can_retry = WorkflowStatus(run.status).is_terminal and to_retry > 0
        if can_retry:
            self._set_node_statuses(run, _FAILED_OR_SKIPPED, WorkflowTaskStatus.PENDING)
            self._runs.change(
                run.id, status=WorkflowStatus.RUNNING, completed_at=None, error_code=None, generation=run.generation + 1
            )
        return _run_report("retry_workflow", run, is_changed=can_retry, nodes=to_retry)

    def _apply_run_change(
        self,
        action: str,
        workflow_id: str | UUID,
        before: WorkflowStatus,
        after: WorkflowStatus,
    ) -> ActionReport:
        run = self._writable_run(workflow_id)
        if run.status == before:
            paused_at = self.system.now() if after is WorkflowStatus.PAUSED else None
            self._runs.change(run.id, status=after, paused_at=paused_at)
        return _run_report(action, run, is_changed=run.status == before)

    def _set_node_statuses(
        self, run: WorkflowRecord, before: set[WorkflowTaskStatus], after: WorkflowTaskStatus
    ) -> None:
        """Set nodes in one of the statuses `before` to `after` and clear their tasks."""
        nodes = self._runs.nodes[run.id]
        self._runs.set_nodes(run.id, {node.index: _reset_node(node, after) for node in nodes if node.status in before})

    def _writable_run(self, workflow_id: str | UUID) -> WorkflowRecord:
        self._require_writable()
        return self._runs.runs[UUID(str(workflow_id))]


def _facets(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())


def _count_stale(system: DemoSystem, status: TaskStatus) -> int:
    now, threshold = system.now(), STALE_AFTER[status]
    tasks = system.in_state(status)
    return sum(now - task.last_heartbeat_at > threshold for task in tasks if task.last_heartbeat_at)


def _ages(system: DemoSystem, status: TaskStatus) -> list[timedelta]:
    now = system.now()
    return [now - (task.started_at or task.claimed_at or now) for task in system.in_state(status)]


def _matches_run(run: WorkflowRecord, workflow_filter: WorkflowFilter) -> bool:
    return (
        (not workflow_filter.statuses or run.status in workflow_filter.statuses)
        and (not workflow_filter.names or any(fnmatchcase(run.name, name) for name in workflow_filter.names))
        and not (workflow_filter.root_only and run.parent_id is not None)
    )


def _reset_node(node: NodeRow, status: WorkflowTaskStatus) -> NodeRow:
    return replace(
        node, status=status, task_id=None, started_at=None, completed_at=None, error_code=None, error_message=None
    )


def _run_report(action: str, run: WorkflowRecord, *, is_changed: bool, nodes: int = 0) -> ActionReport:
    skipped = () if is_changed else (Skipped(run.id, SkipReason.WORKFLOW_STATE_NOT_ALLOWED),)
    return ActionReport(
        action=action,
        matched=1,
        affected=int(is_changed),
        skipped=skipped,
        skipped_count=len(skipped),
        audit_id=5522,
        retried_nodes=nodes if is_changed else 0,
    )
