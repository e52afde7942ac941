"""The invented system as a source: what `Ops` answers from the database, answered from memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.errors import Refused
from horsies.model.operator_actions import Action, ActionOptions, SkipReason
from horsies.model.recovery.decision import DecisionKind, RecoveryReason
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
from horsies_ops.reads.stale import RecoveryDecision, SilentTasks
from horsies_ops.reads.tasks import (
    MAX_DETAIL_ROWS,
    AttemptRow,
    HeartbeatRow,
    PayloadPreview,
    TaskDetail,
    TaskEventRow,
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
from horsies_tui.demo import actions
from horsies_tui.demo import system as fleet
from horsies_tui.demo import system as rates
from horsies_tui.demo.workflows import KINDS, STALE_AFTER, WORKERS

if TYPE_CHECKING:
    from horsies_tui.demo.system import DemoSystem
    from horsies_tui.demo.workflows import DemoRuns


# A filter, applied to invented tasks: what the statements of the real reads do, in a few lines of Python.


def matches(task: TaskRecord, task_filter: TaskFilter, now: datetime) -> bool:
    """Whether every part holds and nothing that is excluded does."""
    return all(_conditions(task, task_filter, now)) and not any(
        matches(task, each, now) for each in task_filter.excluded
    )


def _conditions(task: TaskRecord, task_filter: TaskFilter, now: datetime) -> Iterator[bool]:
    yield not task_filter.statuses or task.status in task_filter.statuses
    yield not task_filter.queues or task.queue in task_filter.queues
    yield not task_filter.names or _matches_any(task.name, task_filter.names)
    yield not task_filter.error_codes or _matches_any(task.error_code or "", task_filter.error_codes)
    yield not task_filter.ids or any(_id_matches(task.id, each) for each in task_filter.ids)
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
    yield from _times(task, task_filter, now)


def _times(task: TaskRecord, task_filter: TaskFilter, now: datetime) -> Iterator[bool]:
    yield task_filter.older_than is None or now - task.sent_at > task_filter.older_than
    yield task_filter.newer_than is None or now - task.sent_at < task_filter.newer_than
    yield _at_least((task.claimed_at or now) - task.enqueued_at, task_filter.min_wait)
    yield _at_least(
        None if task.started_at is None else (task.finished_at or now) - task.started_at, task_filter.min_run
    )
    yield _at_least(None if task.last_heartbeat_at is None else now - task.last_heartbeat_at, task_filter.min_silence)


def _at_least(span: timedelta | None, least: timedelta | None) -> bool:
    return least is None or (span is not None and span >= least)


def _matches_any(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


def _id_matches(identity: UUID | None, named: str) -> bool:
    return identity is not None and str(identity).endswith(named.lower())


# What starts by the clock in the invented system.


def schedules(system: DemoSystem) -> tuple[ScheduleRow, ...]:
    """Three that run and one that is switched off; none where nothing was ever sent."""
    if not system.tasks:
        return ()
    return (
        _row(system, "digest", "mail.digest", "interval minutes=15", next_s=628, last_s=272, runs=9_120),
        _row(system, "nightly-etl", "etl.load", "daily time=02:00", next_s=50_129, last_s=36_271, runs=311),
        _row(
            system,
            "purge-tokens",
            "billing.charge",
            "weekly days=['monday'] time=04:30",
            next_s=145_529,
            last_s=459_271,
            runs=44,
            timezone="Europe/Oslo",
        ),
        _row(system, "legacy-sync", "scrape.page", "interval minutes=5", next_s=None, last_s=1_036_800, runs=1_002),
    )


def _row(
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
    last = next((task for task in reversed(system.in_state(*_ENDED)) if task.name == task_name), None)
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


_ENDED = (TaskStatus.COMPLETED, TaskStatus.FAILED)


# What an invented task has been through: attempts, beats and events that fit its row.

BEAT_INTERVAL: Final = timedelta(seconds=30)
RETRY_DELAY: Final = timedelta(seconds=60)
"""Between an attempt that failed and the next."""

_KINDS = {kind.name: kind for kind in KINDS}
_GONE = {member.id for member in WORKERS if member.is_lost}


def task_detail(task: TaskRecord, now: datetime) -> TaskDetail:
    """Everything about it."""
    attempts = _attempts(task)
    return TaskDetail(
        task=task,
        attempts=attempts,
        heartbeats=_beats(task, attempts),
        events=_events(attempts),
        recovery_decision=_decision(task, now),
    )


def _attempts(task: TaskRecord) -> tuple[AttemptRow, ...]:
    """Those that have ended, the newest first; the last one ended with the task."""
    is_over = task.finished_at is not None
    began, ended = task.started_at or task.sent_at, task.finished_at
    found: list[AttemptRow] = []
    for number in range(task.attempt_count, 0, -1):
        is_last = number == task.attempt_count and is_over
        if not is_last or ended is None:
            ended = began - RETRY_DELAY
            began = ended - timedelta(seconds=_KINDS[task.name].run_s * 40)
        found.append(_attempt(task, number, began, ended, is_last=is_last))
    return tuple(found)


def _attempt(task: TaskRecord, number: int, began: datetime, ended: datetime, *, is_last: bool) -> AttemptRow:
    kind, is_done = _KINDS[task.name], is_last and task.status == TaskStatus.COMPLETED
    return AttemptRow(
        task_id=task.id,
        attempt=number,
        claim_token=number,
        outcome="COMPLETED" if is_done else "FAILED",
        will_retry=not is_last,
        started_at=began,
        finished_at=ended,
        error_code=None if is_done else kind.error_code,
        error_message=None if is_done else kind.message,
        failed_reason=None,
        worker_id=task.worker_id,
        worker_hostname=task.worker_hostname,
        worker_pid=task.worker_pid,
        worker_process_name="child-2",
    )


def _beats(task: TaskRecord, attempts: tuple[AttemptRow, ...]) -> tuple[HeartbeatRow, ...]:
    """One every half minute while it ran, the newest first."""
    beats = [beat for each in attempts for beat in _beats_between(each.started_at, each.finished_at, each.attempt)]
    if task.last_heartbeat_at is not None and task.started_at is not None:
        beats += _beats_between(task.started_at, task.last_heartbeat_at + timedelta(seconds=1), task.claim_token)
    return tuple(sorted(beats, key=lambda beat: beat.at, reverse=True)[:MAX_DETAIL_ROWS])


def _beats_between(began: datetime, ended: datetime, token: int) -> list[HeartbeatRow]:
    count = int((ended - began) / BEAT_INTERVAL)
    return [
        HeartbeatRow(
            role="runner", sender_id="w", claim_token=token, at=began + BEAT_INTERVAL * number, age=timedelta(0)
        )
        for number in range(1, count + 1)
    ]


def _events(attempts: tuple[AttemptRow, ...]) -> tuple[TaskEventRow, ...]:
    retried = [each for each in attempts if each.will_retry]
    return tuple(
        TaskEventRow(at=each.finished_at, kind="task_retry", evidence_json='{"delay_s": 60}') for each in retried
    )


def _decision(task: TaskRecord, now: datetime) -> RecoveryDecision | None:
    limit = STALE_AFTER.get(TaskStatus(task.status))
    if limit is None or task.last_heartbeat_at is None:
        return None
    is_gone = task.worker_id in _GONE
    decision = DecisionKind.LEAVE
    if now - task.last_heartbeat_at > limit:
        decision = DecisionKind.RETRY if task.status == TaskStatus.RUNNING else DecisionKind.REQUEUE
    return RecoveryDecision(
        decision=decision,
        reason=RecoveryReason.OWNER_LOST if is_gone else None,
        threshold=limit,
        owner_state="lost" if is_gone else "running",
    )


# What the invented system answers about itself as a whole, about queues and workers, and what is done to those.

_DEFAULT_OPTIONS: Final = SweepOptions()
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class FleetSourceMixin:
    """A part of the source."""

    system: DemoSystem
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
            workers=Counter("lost" if member.is_lost else "running" for member in WORKERS),
            workflows={status: Count(number=number) for status, number in system.workflow_runs.counts.items()},
            slots=sum(member.processes for member in WORKERS if not member.is_lost),
            running=counts[TaskStatus.RUNNING],
        )

    async def list_queues(self) -> tuple[QueueRow, ...]:
        return fleet.queue_rows(self.system)

    async def list_active_workers(self, threshold: timedelta) -> tuple[WorkerRow, ...]:
        del threshold
        return fleet.worker_rows(self.system)

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
        member = next(each for each in WORKERS if str(each.id) == str(worker_id))
        return fleet.worker_history(self.system, member.id, window)

    async def throughput(self, window: timedelta, buckets: int = 30) -> Throughput:
        return rates.throughput(self.system, window, buckets)

    async def queue_throughput(self, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
        return rates.queue_throughput(self.system, window, buckets)

    async def error_summary(self, window: timedelta) -> tuple[ErrorCount, ...]:
        return rates.error_summary(self.system, window)

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
        del stop  # it is done at once
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
        if self._read_only:
            raise Refused("this connection is read-only")
        affected = int(change())
        audit_id = self.system.audit_log.append(
            action, affected=affected, skipped=1 - affected, reason=reason, filter_document={"queue": queue}
        )
        return ActionReport(action=action, matched=1, affected=affected, skipped_count=1 - affected, audit_id=audit_id)


def _silences(system: DemoSystem, status: TaskStatus) -> list[timedelta]:
    now = system.now()
    return [now - task.last_heartbeat_at for task in system.in_state(status) if task.last_heartbeat_at]


def _ages(system: DemoSystem, status: TaskStatus) -> list[timedelta]:
    now = system.now()
    return [now - (task.started_at or task.claimed_at or now) for task in system.in_state(status)]


# What the invented system answers about runs, and what can be done to them.

_NOT_STARTED = {WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY, WorkflowTaskStatus.ENQUEUED}
_FAILED_OR_SKIPPED = {WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED}


class WorkflowSourceMixin:
    """A part of the source."""

    system: DemoSystem
    _read_only: bool

    @property
    def _flows(self) -> DemoRuns:
        return self.system.workflow_runs

    async def list_workflows(
        self,
        filter: WorkflowFilter = EVERY_WORKFLOW,  # noqa: A002  # as in `Ops`
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> WorkflowPage:
        runs = sorted((run for run in self._flows.runs.values() if _run_fits(run, filter)), key=_identity, reverse=True)
        following = [run.id for run in runs if after is None or run.id < after]
        page = tuple(self._flows.row(each) for each in following[:limit])
        return WorkflowPage(workflows=page, next=page[-1].id if len(following) > limit else None)

    async def workflow(self, workflow_id: str | UUID) -> WorkflowDetail | None:
        return self._flows.detail(UUID(str(workflow_id)))

    async def pause_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._apply_run_change(
            "pause_workflow", workflow_id, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED, reason
        )

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._apply_run_change(
            "resume_workflow", workflow_id, WorkflowStatus.PAUSED, WorkflowStatus.RUNNING, reason
        )

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport:
        del kill, reason
        run = self._writable_run(workflow_id)
        is_open = not WorkflowStatus(run.status).is_terminal
        if is_open:
            self._set_node_statuses(run, _NOT_STARTED, WorkflowTaskStatus.SKIPPED)
            self._flows.change(run.id, status=WorkflowStatus.CANCELLED, completed_at=self.system.now())
        return _report("cancel_workflow", run, is_changed=is_open)

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        del reason
        run = self._writable_run(workflow_id)
        lost = sum(node.status in _FAILED_OR_SKIPPED for node in self._flows.nodes[run.id])
        is_over = WorkflowStatus(run.status).is_terminal and lost > 0
        if is_over:
            self._set_node_statuses(run, _FAILED_OR_SKIPPED, WorkflowTaskStatus.PENDING)
            self._flows.change(
                run.id, status=WorkflowStatus.RUNNING, completed_at=None, error_code=None, generation=run.generation + 1
            )
        return _report("retry_workflow", run, is_changed=is_over, nodes=lost)

    def _apply_run_change(
        self,
        action: str,
        workflow_id: str | UUID,
        before: WorkflowStatus,
        after: WorkflowStatus,
        reason: str | None,  # noqa: ARG002  # nobody reads the log of an invented system
    ) -> ActionReport:
        run = self._writable_run(workflow_id)
        if run.status == before:
            paused_at = self.system.now() if after is WorkflowStatus.PAUSED else None
            self._flows.change(run.id, status=after, paused_at=paused_at)
        return _report(action, run, is_changed=run.status == before)

    def _set_node_statuses(
        self, run: WorkflowRecord, which: set[WorkflowTaskStatus], status: WorkflowTaskStatus
    ) -> None:
        self._flows.set_nodes(
            run.id,
            {node.index: _reset_node(node, status) for node in self._flows.nodes[run.id] if node.status in which},
        )

    def _writable_run(self, workflow_id: str | UUID) -> WorkflowRecord:
        if self._read_only:
            raise Refused("this connection is read-only")
        return self._flows.runs[UUID(str(workflow_id))]


def _run_fits(run: WorkflowRecord, wanted: WorkflowFilter) -> bool:
    return (
        (not wanted.statuses or run.status in wanted.statuses)
        and (not wanted.names or any(fnmatchcase(run.name, name) for name in wanted.names))
        and not (wanted.root_only and run.parent_id is not None)
    )


def _identity(run: WorkflowRecord) -> UUID:
    return run.id


def _reset_node(node: NodeRow, status: WorkflowTaskStatus) -> NodeRow:
    return replace(
        node, status=status, task_id=None, started_at=None, completed_at=None, error_code=None, error_message=None
    )


def _report(action: str, run: WorkflowRecord, *, is_changed: bool, nodes: int = 0) -> ActionReport:
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


# What the invented system answers about its housekeeping.


class MaintenanceSourceMixin:
    """A part of the source."""

    system: DemoSystem
    _read_only: bool

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
        if self._read_only:
            raise Refused("this connection is read-only")
        cleaned = self.system.maintenance.cleanup()
        if progress is not None:
            progress(ActionProgress(done=cleaned.rows, total=cleaned.rows, affected=cleaned.rows, skipped=0))
        audit_id = self.system.audit_log.append(CLEANUP, affected=cleaned.rows, reason=reason)
        return CleanupReport(is_dry_run=False, matched=cleaned.rows, cleaned=cleaned, audit_id=audit_id)


_EVERY = TaskFilter()


class DemoSource(FleetSourceMixin, WorkflowSourceMixin, MaintenanceSourceMixin):
    """Reads and actions over a `System`; `pace_s` is how often it moves, None for never."""

    def __init__(self, system: DemoSystem, *, read_only: bool, pace_s: float | None) -> None:
        self.system = system
        self._read_only = read_only
        self._pace_s = pace_s

    async def database_time(self) -> datetime:
        return self.system.now()

    async def listen(self) -> AsyncIterator[Change]:
        yield Change(topic=Topic.FEED, kind=FeedStatus.LIVE, at=self.system.now())
        while self._pace_s is not None:
            await asyncio.sleep(self._pace_s)
            self.system.step()
            for change in self.system.changes():
                yield change
        await asyncio.Event().wait()

    def _matching(self, task_filter: TaskFilter, ids: Iterable[UUID]) -> Iterator[TaskRecord]:
        now = self.system.now()
        tasks = (self.system.tasks[each] for each in ids)
        return tasks if task_filter.is_empty else (task for task in tasks if matches(task, task_filter, now))

    async def list_tasks(
        self,
        filter: TaskFilter = _EVERY,  # noqa: A002
        *,
        order: TaskOrder = TaskOrder.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        ids = self.system.task_ids
        if order is TaskOrder.OLDEST_FIRST:
            following = iter(ids[bisect_right(ids, after or UUID(int=0)) :])
        else:
            last = len(ids) if after is None else bisect_left(ids, after)
            following = (ids[index] for index in range(last - 1, -1, -1))
        found: list[TaskRecord] = []
        for task in self._matching(filter, following):
            found.append(task)
            if len(found) > limit:
                break
        return TaskPage(tasks=tuple(found[:limit]), next=found[limit - 1].id if len(found) > limit else None)

    async def count_tasks(self, filter: TaskFilter = _EVERY, *, cap: int = 10_000) -> Count:  # noqa: A002
        if filter.is_empty:
            number = len(self.system.task_ids)
        else:
            number = sum(1 for _ in self._matching(filter, self.system.task_ids))
        return Count(number=min(number, cap), is_capped=number > cap)

    async def facets(self, filter: TaskFilter = _EVERY) -> Facets:  # noqa: A002
        found = list(self._matching(filter, self.system.task_ids[-10_000:]))
        return Facets(
            statuses=_counted(task.status for task in found),
            queues=_counted(task.queue for task in found),
            names=_counted(task.name for task in found),
            error_codes=_counted(task.error_code for task in found if task.error_code),
        )

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]:
        known = (self.system.tasks.get(each) for each in sorted(ids, reverse=True))
        return tuple(task for task in known if task is not None)

    async def payload_previews(self, ids: Iterable[UUID]) -> dict[UUID, PayloadPreview]:
        known = (self.system.tasks[each] for each in ids if each in self.system.tasks)
        return {
            task.id: PayloadPreview(
                id=task.id, size=len(task.kwargs_json), args_json=task.args_json, kwargs_json=task.kwargs_json
            )
            for task in known
        }

    async def task(self, task_id: str | UUID) -> TaskDetail | None:
        task = self.system.tasks.get(UUID(str(task_id)))
        return None if task is None else task_detail(task, self.system.now())

    async def list_schedules(self) -> tuple[ScheduleRow, ...]:
        return schedules(self.system)

    async def tasks_by_short_id(self, short_id: str) -> tuple[ShortIdMatch, ...]:
        wanted = replace(_EVERY, ids=(short_id,))
        return tuple(
            ShortIdMatch(id=task.id, name=task.name, status=task.status)
            for task in self._matching(wanted, self.system.task_ids)
        )

    async def plan(self, action: Action, selector: Selector, options: ActionOptions | None = None) -> Plan:
        if selector.ids is not None:
            tasks = [self.system.tasks[each] for each in selector.ids if each in self.system.tasks]
        else:
            tasks = list(self._matching(selector.filter or _EVERY, self.system.task_ids))
        return actions.build_plan(action, replace(selector, as_of=self.system.now()), options or ActionOptions(), tasks)

    async def apply(
        self, plan: Plan, *, progress: Callable[[ActionProgress], None] | None = None, stop: asyncio.Event | None = None
    ) -> ActionReport:
        return await actions.apply_plan(self.system, plan, progress=progress, stop=stop, read_only=self._read_only)

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        return actions.undo_retry(self.system, report)


def _counted(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())
