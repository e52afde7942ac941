"""The invented system as a source: what `Ops` answers from the database, answered from memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.errors import Refused
from horsies.model.operator_actions import ActionOptions, Refusal
from horsies.model.recovery.decision import Decision, RecoveryReason
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.actions.plan import Skipped
from horsies_ops.actions.report import ActionReport, Progress
from horsies_ops.cleanup import ACTION, CleanupReport
from horsies_ops.reads.changes import Change, Feed, Topic
from horsies_ops.reads.filters import Found, TaskFilter
from horsies_ops.reads.overview import Overview
from horsies_ops.reads.schedules import ScheduleRow
from horsies_ops.reads.search import Count, Facet, Facets
from horsies_ops.reads.stale import TaskVerdict
from horsies_ops.reads.tasks import NEWEST_SHOWN, AttemptRow, Beat, Order, Payload, TaskDetail, TaskEvent, TaskPage
from horsies_ops.reads.workflows import EVERY_WORKFLOW, WorkflowDetail, WorkflowFilter, WorkflowPage
from horsies_tui.demo import actions
from horsies_tui.demo import system as fleet
from horsies_tui.demo import system as rates
from horsies_tui.demo.workflows import KINDS, STALE_AFTER, WORKERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from horsies.model.operator_actions import Action
    from horsies.model.retention import Cleaned
    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.actions.plan import Plan, Selector
    from horsies_ops.reads.events import AuditRow, EventRow
    from horsies_ops.reads.overview import ErrorCount, QueueBucket, Throughput
    from horsies_ops.reads.queues import QueueRow
    from horsies_ops.reads.server import Storage
    from horsies_ops.reads.stale import Silent
    from horsies_ops.reads.tasks import TaskFacts, TaskSummary
    from horsies_ops.reads.workers import Snapshot, Upkeep, WorkerRow
    from horsies_ops.reads.workflows import NodeRow, WorkflowFacts
    from horsies_tui.demo.system import System
    from horsies_tui.demo.workflows import Flows


# A filter, applied to invented tasks: what the statements of the real reads do, in a few lines of Python.


def matches(task: TaskFacts, wanted: TaskFilter, now: datetime) -> bool:
    """Whether every part holds and nothing that is excluded does."""
    return all(_parts(task, wanted, now)) and not any(matches(task, each, now) for each in wanted.excluded)


def _parts(task: TaskFacts, wanted: TaskFilter, now: datetime) -> Iterator[bool]:
    yield not wanted.statuses or task.status in wanted.statuses
    yield not wanted.queues or task.queue in wanted.queues
    yield not wanted.names or _fits(task.name, wanted.names)
    yield not wanted.error_codes or _fits(task.error_code or "", wanted.error_codes)
    yield not wanted.ids or any(_is(task.id, each) for each in wanted.ids)
    yield wanted.worker_id is None or _is(task.worker_id, wanted.worker_id)
    yield wanted.workflow_id is None or _is(task.workflow_id, wanted.workflow_id)
    yield wanted.text is None or wanted.text.lower() in f"{task.name} {task.kwargs_json} {task.error_code}".lower()
    yield wanted.min_attempts is None or task.attempt_count >= wanted.min_attempts
    yield wanted.due_later is None or wanted.due_later == (task.status == TaskStatus.PENDING and task.enqueued_at > now)
    yield from _times(task, wanted, now)


def _times(task: TaskFacts, wanted: TaskFilter, now: datetime) -> Iterator[bool]:
    yield wanted.older_than is None or now - task.sent_at > wanted.older_than
    yield wanted.newer_than is None or now - task.sent_at < wanted.newer_than
    yield _at_least((task.claimed_at or now) - task.enqueued_at, wanted.min_wait)
    yield _at_least(None if task.started_at is None else (task.finished_at or now) - task.started_at, wanted.min_run)
    yield _at_least(None if task.last_beat_at is None else now - task.last_beat_at, wanted.min_silence)


def _at_least(span: timedelta | None, least: timedelta | None) -> bool:
    return least is None or (span is not None and span >= least)


def _fits(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


def _is(identity: UUID | None, named: str) -> bool:
    return identity is not None and str(identity).endswith(named.lower())


# What starts by the clock in the invented system.


def schedules(system: System) -> tuple[ScheduleRow, ...]:
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
    system: System,
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
        name=name, task_name=task_name, pattern=pattern, timezone=timezone, is_enabled=next_s is not None,
        next_run_at=None if next_s is None else now + timedelta(seconds=next_s),
        due_in=None if next_s is None else timedelta(seconds=next_s), last_run_at=now - timedelta(seconds=last_s),
        last_task_id=last.id if last else None, last_status=last.status if last else None,
        last_error_code=last.error_code if last else None, run_count=runs,
    )  # fmt: skip


_ENDED = (TaskStatus.COMPLETED, TaskStatus.FAILED)


# What an invented task has been through: attempts, beats and events that fit its row.

EVERY: Final = timedelta(seconds=30)
PAUSE: Final = timedelta(seconds=60)
"""Between an attempt that failed and the next."""

_KINDS = {kind.name: kind for kind in KINDS}
_GONE = {member.id for member in WORKERS if member.is_gone}


def detail(task: TaskFacts, now: datetime) -> TaskDetail:
    """Everything about it."""
    attempts = _attempts(task)
    return TaskDetail(
        task=task,
        attempts=attempts,
        beats=_beats(task, attempts),
        events=_events(attempts),
        verdict=_verdict(task, now),
    )


def _attempts(task: TaskFacts) -> tuple[AttemptRow, ...]:
    """Those that have ended, the newest first; the last one ended with the task."""
    is_over = task.finished_at is not None
    began, ended = task.started_at or task.sent_at, task.finished_at
    found: list[AttemptRow] = []
    for number in range(task.attempt_count, 0, -1):
        is_last = number == task.attempt_count and is_over
        if not is_last or ended is None:
            ended = began - PAUSE
            began = ended - timedelta(seconds=_KINDS[task.name].run_s * 40)
        found.append(_attempt(task, number, began, ended, is_last=is_last))
    return tuple(found)


def _attempt(task: TaskFacts, number: int, began: datetime, ended: datetime, *, is_last: bool) -> AttemptRow:
    kind, is_done = _KINDS[task.name], is_last and task.status == TaskStatus.COMPLETED
    return AttemptRow(
        task_id=task.id, attempt=number, claim_token=number, outcome="COMPLETED" if is_done else "FAILED",
        will_retry=not is_last, started_at=began, finished_at=ended,
        error_code=None if is_done else kind.error, error_message=None if is_done else kind.message,
        failed_reason=None, worker_id=task.worker_id, worker_hostname=task.worker_hostname,
        worker_pid=task.worker_pid, worker_process_name="child-2",
    )  # fmt: skip


def _beats(task: TaskFacts, attempts: tuple[AttemptRow, ...]) -> tuple[Beat, ...]:
    """One every half minute while it ran, the newest first."""
    beats = [beat for each in attempts for beat in _between(each.started_at, each.finished_at, each.attempt)]
    if task.last_beat_at is not None and task.started_at is not None:
        beats += _between(task.started_at, task.last_beat_at + timedelta(seconds=1), task.claim_token)
    return tuple(sorted(beats, key=lambda beat: beat.at, reverse=True)[:NEWEST_SHOWN])


def _between(began: datetime, ended: datetime, token: int) -> list[Beat]:
    count = int((ended - began) / EVERY)
    return [
        Beat(role="runner", sender_id="w", claim_token=token, at=began + EVERY * number, age=timedelta(0))
        for number in range(1, count + 1)
    ]


def _events(attempts: tuple[AttemptRow, ...]) -> tuple[TaskEvent, ...]:
    retried = [each for each in attempts if each.will_retry]
    return tuple(TaskEvent(at=each.finished_at, kind="task_retry", evidence_json='{"delay_s": 60}') for each in retried)


def _verdict(task: TaskFacts, now: datetime) -> TaskVerdict | None:
    limit = STALE_AFTER.get(TaskStatus(task.status))
    if limit is None or task.last_beat_at is None:
        return None
    is_gone = task.worker_id in _GONE
    decision = Decision.LEAVE
    if now - task.last_beat_at > limit:
        decision = Decision.RETRY if task.status == TaskStatus.RUNNING else Decision.REQUEUE
    return TaskVerdict(
        decision=decision,
        reason=RecoveryReason.OWNER_LOST if is_gone else None,
        threshold=limit,
        owner_state="lost" if is_gone else "running",
    )


# What the invented system answers about itself as a whole, about queues and workers, and what is done to those.

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
        return actions.candidates(self.system, options)

    async def sweep(
        self, options: SweepOptions = _AS_USUAL, *, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> SweepReport:
        del stop  # it is done at once
        return actions.sweep(self.system, options, reason=reason, read_only=self._read_only)

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


# What the invented system answers about runs, and what can be done to them.

_OPEN = {WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY, WorkflowTaskStatus.ENQUEUED}
_LOST = {WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED}


class FlowAnswers:
    """A part of the source."""

    system: System
    _read_only: bool

    @property
    def _flows(self) -> Flows:
        return self.system.flows

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
        return self._turn("pause_workflow", workflow_id, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED, reason)

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._turn("resume_workflow", workflow_id, WorkflowStatus.PAUSED, WorkflowStatus.RUNNING, reason)

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport:
        del kill, reason
        run = self._may_change(workflow_id)
        is_open = not WorkflowStatus(run.status).is_terminal
        if is_open:
            self._give(run, _OPEN, WorkflowTaskStatus.SKIPPED)
            self._flows.change(run.id, status=WorkflowStatus.CANCELLED, completed_at=self.system.now())
        return _report("cancel_workflow", run, is_changed=is_open)

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        del reason
        run = self._may_change(workflow_id)
        lost = sum(node.status in _LOST for node in self._flows.nodes[run.id])
        is_over = WorkflowStatus(run.status).is_terminal and lost > 0
        if is_over:
            self._give(run, _LOST, WorkflowTaskStatus.PENDING)
            self._flows.change(
                run.id, status=WorkflowStatus.RUNNING, completed_at=None, error_code=None, generation=run.generation + 1
            )
        return _report("retry_workflow", run, is_changed=is_over, nodes=lost)

    def _turn(
        self,
        action: str,
        workflow_id: str | UUID,
        before: WorkflowStatus,
        after: WorkflowStatus,
        reason: str | None,  # noqa: ARG002  # nobody reads the log of an invented system
    ) -> ActionReport:
        run = self._may_change(workflow_id)
        if run.status == before:
            paused_at = self.system.now() if after is WorkflowStatus.PAUSED else None
            self._flows.change(run.id, status=after, paused_at=paused_at)
        return _report(action, run, is_changed=run.status == before)

    def _give(self, run: WorkflowFacts, which: set[WorkflowTaskStatus], status: WorkflowTaskStatus) -> None:
        self._flows.set_nodes(
            run.id, {node.index: _as(node, status) for node in self._flows.nodes[run.id] if node.status in which}
        )

    def _may_change(self, workflow_id: str | UUID) -> WorkflowFacts:
        if self._read_only:
            raise Refused("this connection is read-only")
        return self._flows.runs[UUID(str(workflow_id))]


def _run_fits(run: WorkflowFacts, wanted: WorkflowFilter) -> bool:
    return (
        (not wanted.statuses or run.status in wanted.statuses)
        and (not wanted.names or any(fnmatchcase(run.name, name) for name in wanted.names))
        and not (wanted.root_only and run.parent_id is not None)
    )


def _identity(run: WorkflowFacts) -> UUID:
    return run.id


def _as(node: NodeRow, status: WorkflowTaskStatus) -> NodeRow:
    return replace(
        node, status=status, task_id=None, started_at=None, completed_at=None, error_code=None, error_message=None
    )


def _report(action: str, run: WorkflowFacts, *, is_changed: bool, nodes: int = 0) -> ActionReport:
    skipped = () if is_changed else (Skipped(run.id, Refusal.WORKFLOW_STATE_NOT_ALLOWED),)
    return ActionReport(
        action=action, matched=1, affected=int(is_changed), skipped=skipped, skipped_count=len(skipped),
        audit_id=5522, nodes=nodes if is_changed else 0,
    )  # fmt: skip


# What the invented system answers about its housekeeping.


class KeepingAnswers:
    """A part of the source."""

    system: System
    _read_only: bool

    async def near_limit(self, within: timedelta, options: SweepOptions = _AS_USUAL) -> tuple[SweptTask, ...]:
        return actions.near_limit(self.system, options, within)

    async def not_yet_stale(self, options: SweepOptions = _AS_USUAL) -> Silent | None:
        return actions.not_yet_stale(self.system, options)

    async def upkeep(self) -> Upkeep:
        return self.system.keeping.upkeep()

    async def storage(self) -> Storage:
        return self.system.keeping.storage()

    async def events(self, *, limit: int = 100) -> tuple[EventRow, ...]:
        return tuple(self.system.keeping.events[-limit:])

    async def cleanup_candidates(self) -> Cleaned:
        return self.system.keeping.candidates()

    async def cleanup(
        self,
        *,
        reason: str | None = None,
        progress: Callable[[Progress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> CleanupReport:
        del stop
        if self._read_only:
            raise Refused("this connection is read-only")
        cleaned = self.system.keeping.clean()
        if progress is not None:
            progress(Progress(done=cleaned.rows, total=cleaned.rows, affected=cleaned.rows, skipped=0))
        audit_id = self.system.record.write(ACTION, affected=cleaned.rows, reason=reason)
        return CleanupReport(is_dry_run=False, matched=cleaned.rows, cleaned=cleaned, audit_id=audit_id)


_EVERY = TaskFilter()


class DemoSource(FleetAnswers, FlowAnswers, KeepingAnswers):
    """Reads and actions over a `System`; `pace_s` is how often it moves, None for never."""

    def __init__(self, system: System, *, read_only: bool, pace_s: float | None) -> None:
        self.system = system
        self._read_only = read_only
        self._pace_s = pace_s

    async def clock(self) -> datetime:
        return self.system.now()

    async def listen(self) -> AsyncIterator[Change]:
        yield Change(topic=Topic.FEED, kind=Feed.LIVE, at=self.system.now())
        while self._pace_s is not None:
            await asyncio.sleep(self._pace_s)
            self.system.step()
            for change in self.system.changes():
                yield change
        await asyncio.Event().wait()

    def _matching(self, wanted: TaskFilter, ids: Iterable[UUID]) -> Iterator[TaskFacts]:
        now = self.system.now()
        tasks = (self.system.tasks[each] for each in ids)
        return tasks if wanted.is_empty else (task for task in tasks if matches(task, wanted, now))

    async def list_tasks(
        self,
        filter: TaskFilter = _EVERY,  # noqa: A002
        *,
        order: Order = Order.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        ids = self.system.order
        if order is Order.OLDEST_FIRST:
            following = iter(ids[bisect_right(ids, after or UUID(int=0)) :])
        else:
            last = len(ids) if after is None else bisect_left(ids, after)
            following = (ids[index] for index in range(last - 1, -1, -1))
        found: list[TaskFacts] = []
        for task in self._matching(filter, following):
            found.append(task)
            if len(found) > limit:
                break
        return TaskPage(tasks=tuple(found[:limit]), next=found[limit - 1].id if len(found) > limit else None)

    async def count_tasks(self, filter: TaskFilter = _EVERY, *, cap: int = 10_000) -> Count:  # noqa: A002
        if filter.is_empty:
            number = len(self.system.order)
        else:
            number = sum(1 for _ in self._matching(filter, self.system.order))
        return Count(number=min(number, cap), is_capped=number > cap)

    async def facets(self, filter: TaskFilter = _EVERY) -> Facets:  # noqa: A002
        found = list(self._matching(filter, self.system.order[-10_000:]))
        return Facets(
            statuses=_counted(task.status for task in found),
            queues=_counted(task.queue for task in found),
            names=_counted(task.name for task in found),
            error_codes=_counted(task.error_code for task in found if task.error_code),
        )

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]:
        known = (self.system.tasks.get(each) for each in sorted(ids, reverse=True))
        return tuple(task for task in known if task is not None)

    async def payloads_of(self, ids: Iterable[UUID]) -> dict[UUID, Payload]:
        known = (self.system.tasks[each] for each in ids if each in self.system.tasks)
        return {
            task.id: Payload(
                id=task.id, size=len(task.kwargs_json), args_json=task.args_json, kwargs_json=task.kwargs_json
            )
            for task in known
        }

    async def task(self, task_id: str | UUID) -> TaskDetail | None:
        task = self.system.tasks.get(UUID(str(task_id)))
        return None if task is None else detail(task, self.system.now())

    async def list_schedules(self) -> tuple[ScheduleRow, ...]:
        return schedules(self.system)

    async def tasks_ending(self, short_form: str) -> tuple[Found, ...]:
        wanted = replace(_EVERY, ids=(short_form,))
        return tuple(
            Found(id=task.id, name=task.name, status=task.status) for task in self._matching(wanted, self.system.order)
        )

    async def plan(self, action: Action, which: Selector, options: ActionOptions | None = None) -> Plan:
        if which.ids is not None:
            tasks = [self.system.tasks[each] for each in which.ids if each in self.system.tasks]
        else:
            tasks = list(self._matching(which.filter or _EVERY, self.system.order))
        return actions.plan(action, replace(which, as_of=self.system.now()), options or ActionOptions(), tasks)

    async def apply(
        self, plan: Plan, *, progress: Callable[[Progress], None] | None = None, stop: asyncio.Event | None = None
    ) -> ActionReport:
        return await actions.apply(self.system, plan, progress=progress, stop=stop, read_only=self._read_only)

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        return actions.undo(self.system, report)


def _counted(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())
