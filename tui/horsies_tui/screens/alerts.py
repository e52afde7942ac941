"""Alerts of the dashboard: what needs an operator's attention, most severe first, with the rows behind each line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from horsies.model.recovery.decision import DecisionKind
from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.fleet import TARGET_WAIT, QueueHealth, queue_health, worker_warnings
from horsies_tui.format import format_age, plural, short_id

if TYPE_CHECKING:
    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.reads.overview import ErrorCount
    from horsies_ops.reads.queues import QueueRow
    from horsies_ops.reads.workers import WorkerRow

LOST_WORKER_ALERT_AGE: Final = timedelta(hours=1)
"""A lost worker without tasks is no longer reported after this time."""

AlertTarget: TypeAlias = TaskFilter | UUID
"""The tasks that match a filter, or a worker id."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertInputs:
    """What alerts are computed from; fields not read yet are empty."""

    queues: Sequence[QueueRow] = ()
    workers: Sequence[WorkerRow] = ()
    stale: SweepReport | None = None
    errors: Sequence[ErrorCount] = ()
    """Errors of the last hour."""


def find_alerts(inputs: AlertInputs) -> tuple[Alert, ...]:
    """Return all alerts, most severe first; within a severity stale tasks, queues, workers, failures."""
    alerts = [
        *_stale_alerts(inputs.stale),
        *_queue_alerts(inputs.queues),
        *_worker_alerts(inputs.workers),
        *_failure_alerts(inputs.errors),
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
            )


def _worst_task_text(silent: Sequence[SweptTask]) -> str:
    """Describe the task silent for longest, unless all of them are safe to requeue."""
    if all(task.decision is DecisionKind.REQUEUE for task in silent):
        return "safe to requeue"
    worst = max(silent, key=lambda task: task.heartbeat_age or timedelta(0))
    # A running owner is the normal case and not worth the space.
    where = "" if worst.owner_state in (None, "running") else f"  worker {worst.owner_state}"
    return f"worst {worst.task_name} {short_id(worst.task_id)} {format_age(worst.heartbeat_age)}{where}"


def _queue_alerts(queues: Sequence[QueueRow]) -> Iterator[Alert]:
    for queue in sorted(queues, key=lambda queue: queue.oldest_due_age or timedelta(0), reverse=True):
        if problem := _queue_problem(queue):
            severity, text = problem
            yield Alert(
                key=f"queue {queue.name}",
                severity=severity,
                text=f"queue {queue.name}: {text}",
                target=TaskFilter(queues=(queue.name,), statuses=(TaskStatus.PENDING,)),
            )


def _queue_problem(queue: QueueRow) -> tuple[Severity, str] | None:
    """Return the problem of a queue with due tasks, if any."""
    match queue_health(queue):
        case QueueHealth.UNSERVED if queue.pending:
            waiting = f"{queue.pending:,} waiting, oldest {format_age(queue.oldest_due_age)}"
            return Severity.BAD, f"no worker serves it, {waiting}"
        case QueueHealth.PAUSED if queue.pending:
            by = f" by {queue.paused_by}" if queue.paused_by else ""
            reason = f" ({queue.pause_reason})" if queue.pause_reason else ""
            waiting = f"{queue.pending:,} waiting, oldest {format_age(queue.oldest_due_age)}"
            return Severity.WARN, f"paused{by}{reason}, {waiting}"
        case QueueHealth.BACKLOG:
            waiting = f"oldest wait {format_age(queue.oldest_due_age)} (target {format_age(TARGET_WAIT)})"
            return Severity.WARN, f"{waiting}   {queue.pending:,} pending, {plural(queue.served_by, 'worker')}"
        case _:
            return None


def _worker_alerts(workers: Sequence[WorkerRow]) -> Iterator[Alert]:
    for worker in sorted(workers, key=lambda worker: worker.tasks_running + worker.tasks_claimed, reverse=True):
        label = f"worker {short_id(worker.worker_id)} {worker.hostname}:{worker.pid}"
        held = worker.tasks_running + worker.tasks_claimed
        if worker.is_responsive:
            for warning in worker_warnings(worker):
                yield Alert(
                    key=f"warning {worker.worker_id} {warning}",
                    severity=Severity.WARN,
                    text=f"{label}: {warning}",
                    target=worker.worker_id,
                )
        elif held or worker.heartbeat_age < LOST_WORKER_ALERT_AGE:
            seen = f"{label} {worker.display_state}, last seen {format_age(worker.heartbeat_age)} ago"
            yield Alert(
                key=f"dead {worker.worker_id}",
                severity=Severity.BAD if held and worker.is_presumed_dead else Severity.WARN,
                text=f"{seen}, holds {plural(held, 'task')}" if held else f"{seen}, holds no tasks",
                target=worker.worker_id,
            )


def _failure_alerts(errors: Sequence[ErrorCount]) -> Iterator[Alert]:
    failed = [error for error in errors if error.status == TaskStatus.FAILED]
    counts = Counter({(error.name, error.code): error.last_hour for error in failed})
    total = counts.total()
    if not total:
        return
    (name, code), most = counts.most_common(1)[0]
    # If at least half of the failures have one cause, Enter lists only those.
    is_dominant = 2 * most >= total
    share = "all" if most == total else f"{most:,} are" if is_dominant else "most frequent"
    yield Alert(
        key="failures",
        severity=Severity.WARN,
        text=f"{plural(total, 'failure')} in 1h, {share} {code} in {name}",
        target=TaskFilter(
            statuses=(TaskStatus.FAILED,),
            names=(name,) if is_dominant else (),
            error_codes=(code,) if is_dominant else (),
        ),
    )
