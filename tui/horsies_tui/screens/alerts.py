"""Alerts of the dashboard: what needs an operator's attention, most severe first, with the rows behind each line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from uuid import UUID

from horsies.model.recovery.decision import DecisionKind
from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.fleet import TARGET_WAIT, QueueHealth, queue_health
from horsies_tui.format import format_age, format_count, plural, short_id

if TYPE_CHECKING:
    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.reads.overview import ErrorCount, QueueRow
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.workers import WorkerRow
    from horsies_ops.reads.workflows import WorkflowRow

R = TypeVar("R", "QueueRow", "SweptTask", "WorkerRow")

LOST_WORKER_ALERT_AGE: Final = timedelta(hours=1)
"""A lost worker without tasks is no longer reported after this time."""

STALLED_AFTER: Final = timedelta(minutes=2)
"""Due tasks that wait this long while no task finishes are reported."""


@dataclass(frozen=True, slots=True)
class RunTarget:
    workflow_id: UUID


@dataclass(frozen=True, slots=True)
class UnservedQueue:
    """Opens instructions."""

    queue: str


AlertTarget: TypeAlias = TaskFilter | UUID | RunTarget | UnservedQueue
"""What Enter opens: the tasks that match a filter, a worker by its id, a run, or instructions."""


class Severity(IntEnum):
    """Alerts are shown in this order."""

    BAD = 0
    WARN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    key: str
    """Stable while the problem lasts, so that the cursor stays on its line."""
    severity: Severity
    text: str
    target: AlertTarget
    label: str = "tasks"
    """What its key does."""
    verb: str = ""
    """The operator action `op.VERB` that fixes it; empty: only Enter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertInputs:
    """What alerts are computed from; fields not read yet are empty."""

    queues: Sequence[QueueRow] = ()
    workers: Sequence[WorkerRow] = ()
    stale: SweepReport | None = None
    failed: Count | None = None
    """Tasks that failed in the last hour."""
    errors: Sequence[ErrorCount] = ()
    """Errors of the last hour; they say which are frequent, `failed` how many there are."""
    runs: Sequence[WorkflowRow] = ()
    """Failed and paused runs."""
    idle: timedelta | None = None
    """Time since a task last finished, as far as the chart goes back; None if unknown."""
    read_at: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """When the fields above were read, by their names."""

    def at(self, now: datetime) -> AlertInputs:
        """The same with all ages as of `now`; without it they would stand still between two reads."""

        def elapsed(name: str) -> timedelta:
            return max(now - self.read_at.get(name, now), timedelta(0))

        stale = self.stale and replace(
            self.stale, tasks=tuple(_aged(task, "heartbeat_age", elapsed("stale")) for task in self.stale.tasks)
        )
        queues = [_aged(queue, "oldest_due_age", elapsed("queues")) for queue in self.queues]
        workers = [_aged(worker, "heartbeat_age", elapsed("workers")) for worker in self.workers]
        return replace(self, queues=queues, workers=workers, stale=stale)


def _aged(row: R, name: str, elapsed: timedelta) -> R:
    age: timedelta | None = getattr(row, name)
    return row if age is None else replace(row, **{name: age + elapsed})


def find_alerts(inputs: AlertInputs) -> tuple[Alert, ...]:
    """Return all alerts, most severe first; within a severity stale tasks, queues, workers, runs, failures."""
    alerts = [
        *_stale_alerts(inputs.stale),
        *_queue_alerts(inputs.queues),
        *_stall_alerts(inputs.queues, inputs.idle),
        *_worker_alerts(inputs.workers),
        *_run_alerts(inputs.runs),
        *_failure_alerts(inputs.failed, inputs.errors),
    ]
    # Sorting is stable: within a severity the order above remains.
    return tuple(sorted(alerts, key=lambda alert: alert.severity))


def _stale_alerts(report: SweepReport | None) -> Iterator[Alert]:
    if report is None:
        return
    thresholds = {TaskStatus.RUNNING: report.thresholds.running, TaskStatus.CLAIMED: report.thresholds.claimed}
    for status, threshold in thresholds.items():
        silent = [task for task in report.tasks if task.state is status and task.heartbeat_age is not None]
        if silent:
            yield Alert(
                key=f"stale {status}",
                severity=Severity.BAD if status is TaskStatus.RUNNING else Severity.WARN,
                text=f"{len(silent):,} {status} silent > {format_age(threshold)}   {_worst_task_text(silent)}",
                target=TaskFilter(statuses=(status,), min_silence=threshold),
                label="sweep",
                verb="sweep",
            )


def _worst_task_text(silent: Sequence[SweptTask]) -> str:
    """Describe the task silent for longest, unless all of them are safe to requeue."""
    if all(task.decision is DecisionKind.REQUEUE for task in silent):
        return "safe to requeue"
    worst = max(silent, key=lambda task: task.heartbeat_age or timedelta(0))
    # A running owner is the normal case and not worth the space.
    where = "" if worst.owner_state in (None, "running") else f", worker {worst.owner_state}"
    return f"worst {worst.task_name} {format_age(worst.heartbeat_age)}{where}"


_QUEUE_FIXES: Final = {QueueHealth.UNSERVED: ("how to", ""), QueueHealth.PAUSED: ("resume", "pause")}
"""Label and verb."""


def _queue_alerts(queues: Sequence[QueueRow]) -> Iterator[Alert]:
    for queue in sorted(queues, key=lambda queue: queue.oldest_due_age or timedelta(0), reverse=True):
        if problem := _queue_problem(queue):
            severity, text = problem
            health = queue_health(queue)
            waiting = TaskFilter(queues=(queue.name,), statuses=(TaskStatus.PENDING,))
            label, verb = _QUEUE_FIXES.get(health, ("tasks", ""))
            yield Alert(
                key=f"queue {queue.name}",
                severity=severity,
                text=f"queue {queue.name}: {text}",
                target=UnservedQueue(queue.name) if health is QueueHealth.UNSERVED else waiting,
                label=label,
                verb=verb,
            )


def _queue_problem(queue: QueueRow) -> tuple[Severity, str] | None:
    """Return the problem of a queue with due tasks, if any."""
    match queue_health(queue):
        case QueueHealth.UNSERVED if queue.pending:
            waiting = f"{queue.pending:,} wait, oldest {format_age(queue.oldest_due_age)}"
            return Severity.BAD, f"no worker serves it, {waiting}"
        case QueueHealth.PAUSED if queue.pending:
            by = f" by {queue.paused_by}" if queue.paused_by else ""
            # The reason comes last: a long one must not push the numbers out of the line.
            reason = f' "{queue.pause_reason}"' if queue.pause_reason else ""
            waiting = f"{queue.pending:,} wait, oldest {format_age(queue.oldest_due_age)}"
            return Severity.WARN, f"paused{by}, {waiting}{reason}"
        case QueueHealth.BACKLOG:
            oldest = f"oldest {format_age(queue.oldest_due_age)} (target {format_age(TARGET_WAIT)})"
            return Severity.WARN, f"{queue.pending:,} wait, {oldest}, {plural(queue.served_by, 'worker')}"
        case _:
            return None


def _stall_alerts(queues: Sequence[QueueRow], idle: timedelta | None) -> Iterator[Alert]:
    """Report that no task finishes. Queues that are paused or unserved have their own alerts."""
    active = [queue for queue in queues if queue_health(queue) in (QueueHealth.OK, QueueHealth.BACKLOG)]
    oldest = max((queue.oldest_due_age or timedelta(0) for queue in active), default=timedelta(0))
    # After a quiet time the first new task has not waited long: nothing is stalled.
    stalled = min(idle or timedelta(0), oldest)
    if stalled >= STALLED_AFTER:
        waiting = sum(queue.pending for queue in active)
        yield Alert(
            key="stalled",
            severity=Severity.WARN,
            text=f"nothing finished for {stalled // timedelta(minutes=1)} min while {waiting:,} wait",
            target=TaskFilter(statuses=(TaskStatus.RUNNING, TaskStatus.CLAIMED)),
        )


def _run_alerts(runs: Sequence[WorkflowRow]) -> Iterator[Alert]:
    """Report failed and paused runs, one alert for each status."""
    for status, label, verb in (("FAILED", "retry", "requeue"), ("PAUSED", "resume", "pause")):
        found = [run for run in runs if run.status == status]
        if found:
            names = ", ".join(list(dict.fromkeys(run.name for run in found))[:3])
            yield Alert(
                key=f"runs {status}",
                severity=Severity.WARN,
                text=f"{plural(len(found), 'workflow run')} {status.lower()}: {names}",
                target=RunTarget(found[0].id),
                # With several runs, the operator picks one on the Flows screen.
                label=label if len(found) == 1 else "open",
                verb=verb if len(found) == 1 else "",
            )


def _worker_alerts(workers: Sequence[WorkerRow]) -> Iterator[Alert]:
    idle_lost = [
        worker
        for worker in workers
        if worker.is_presumed_dead and worker.heartbeat_age < LOST_WORKER_ALERT_AGE and not _held(worker)
    ]
    if len(idle_lost) > 1:
        newest = min(idle_lost, key=lambda worker: worker.heartbeat_age)
        seen = f"last seen {format_age(newest.heartbeat_age)} ago"
        yield Alert(
            key="lost workers",
            severity=Severity.WARN,
            text=f"{len(idle_lost)} workers lost in 1h, {seen}, hold no tasks",
            target=newest.worker_id,
            label="open",
        )
        workers = [worker for worker in workers if worker not in idle_lost]
    for worker in sorted(workers, key=_held, reverse=True):
        label = f"worker {short_id(worker.worker_id)} {worker.hostname}:{worker.pid}"
        held = _held(worker)
        if worker.is_responsive:
            for warning in worker.problems:
                yield Alert(
                    key=f"warning {worker.worker_id} {warning}",
                    severity=Severity.WARN,
                    text=f"{label}: {warning}",
                    target=worker.worker_id,
                    label="open",
                )
        elif held or worker.heartbeat_age < LOST_WORKER_ALERT_AGE:
            seen = f"{label} {worker.display_state}, seen {format_age(worker.heartbeat_age)} ago"
            yield Alert(
                key=f"dead {worker.worker_id}",
                severity=Severity.BAD if held and worker.is_presumed_dead else Severity.WARN,
                text=f"{seen}, holds {plural(held, 'task')}" if held else f"{seen}, holds no tasks",
                target=worker.worker_id,
                label="recover" if held else "open",
                verb="requeue" if held else "",
            )


def _held(worker: WorkerRow) -> int:
    return worker.tasks_running + worker.tasks_claimed


def _failure_alerts(failed: Count | None, errors: Sequence[ErrorCount]) -> Iterator[Alert]:
    counts = Counter(
        {(error.name, error.code): error.last_hour for error in errors if error.status == TaskStatus.FAILED}
    )
    if failed is None or not failed.number or not counts.total():
        return
    (name, code), most = counts.most_common(1)[0]
    # If at least half of the failures have one cause, Enter lists only those.
    is_dominant = 2 * most >= counts.total()
    # No number of its own: `failed` is exact, but was read at another instant.
    share = "all" if most == counts.total() else "mostly" if is_dominant else "most frequent"
    total = format_count(failed.number, is_capped=failed.is_capped)
    yield Alert(
        key="failures",
        severity=Severity.WARN,
        text=f"{total} {'failure' if failed.number == 1 else 'failures'} in 1h, {share} {code} in {name}",
        target=TaskFilter(
            statuses=(TaskStatus.FAILED,),
            names=(name,) if is_dominant else (),
            error_codes=(code,) if is_dominant else (),
        ),
    )
