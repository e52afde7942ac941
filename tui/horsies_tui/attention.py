"""What needs an operator's attention, the worst first, each with the list that it is about."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from horsies.model.recovery.verdicts import Decision
from horsies.model.task import TaskStatus
from horsies_ops.reads.filter import TaskFilter
from horsies_tui.format import age, plural, short_id
from horsies_tui.health import TARGET_WAIT, QueueHealth, queue_health

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.reads.queues import QueueRow
    from horsies_ops.reads.throughput import ErrorCount
    from horsies_ops.reads.workers import WorkerRow

FORGOTTEN_AFTER: Final = timedelta(hours=1)
"""A worker that is lost and holds nothing is news for so long."""

Behind: TypeAlias = TaskFilter | UUID
"""Tasks, or a worker."""


class Severity(IntEnum):
    """The lower, the sooner it is shown."""

    BAD = 0
    WARN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """One thing to look at."""

    key: str
    """The same for as long as it is about the same thing."""
    severity: Severity
    text: str
    behind: Behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of the system; parts that have not been read yet are empty."""

    queues: Sequence[QueueRow] = ()
    workers: Sequence[WorkerRow] = ()
    stale: SweepReport | None = None
    errors: Sequence[ErrorCount] = ()
    """Of the last hour."""


def attention(seen: Seen) -> tuple[Concern, ...]:
    """Everything that needs attention: first what is broken, then what may become so, of each kind the worst first."""
    found = [*_stale(seen.stale), *_queues(seen.queues), *_workers(seen.workers), *_failures(seen.errors)]
    return tuple(sorted(found, key=lambda concern: concern.severity))


def _stale(report: SweepReport | None) -> Iterator[Concern]:
    if report is None:
        return
    limits = {TaskStatus.RUNNING: report.thresholds.running, TaskStatus.CLAIMED: report.thresholds.claimed}
    for status, limit in limits.items():
        silent = [task for task in report.tasks if task.state is status and task.last_beat_age is not None]
        if silent:
            yield Concern(
                key=f"stale {status}",
                severity=Severity.BAD if status is TaskStatus.RUNNING else Severity.WARN,
                text=f"{len(silent):,} {status} silent > {age(limit)}   {_about(silent)}",
                behind=TaskFilter(statuses=(status,), min_silence=limit),
            )


def _about(silent: Sequence[SweptTask]) -> str:
    """The longest silence, or where all of them would do no harm, that."""
    if all(task.decision is Decision.REQUEUE for task in silent):
        return "safe to requeue"
    worst = max(silent, key=lambda task: task.last_beat_age or timedelta(0))
    where = "" if worst.owner_state in (None, "running") else f"  worker {worst.owner_state}"
    return f"worst {worst.task_name} {short_id(worst.task_id)} {age(worst.last_beat_age)}{where}"


def _queues(queues: Sequence[QueueRow]) -> Iterator[Concern]:
    for queue in sorted(queues, key=lambda each: each.oldest_due_age or timedelta(0), reverse=True):
        if told := _told(queue):
            severity, text = told
            yield Concern(
                key=f"queue {queue.name}",
                severity=severity,
                text=f"queue {queue.name}: {text}",
                behind=TaskFilter(queues=(queue.name,), statuses=(TaskStatus.PENDING,)),
            )


def _told(queue: QueueRow) -> tuple[Severity, str] | None:
    """What is wrong with a queue in which something is due."""
    match queue_health(queue):
        case QueueHealth.NOBODY if queue.pending:
            waits = f"{queue.pending:,} waiting, the oldest for {age(queue.oldest_due_age)}"
            return Severity.BAD, f"nobody serves it, {waits}"
        case QueueHealth.PAUSED if queue.pending:
            by = f" by {queue.paused_by}" if queue.paused_by else ""
            why = f" ({queue.pause_reason})" if queue.pause_reason else ""
            return Severity.WARN, f"paused{by}{why}, {queue.pending:,} waiting for {age(queue.oldest_due_age)}"
        case QueueHealth.BACKLOG:
            waits = f"oldest wait {age(queue.oldest_due_age)} (target {age(TARGET_WAIT)})"
            return Severity.WARN, f"{waits}   {queue.pending:,} pending, {plural(queue.served_by, 'worker')}"
        case _:
            return None


def _workers(workers: Sequence[WorkerRow]) -> Iterator[Concern]:
    for worker in sorted(workers, key=lambda each: each.tasks_running + each.tasks_claimed, reverse=True):
        who = f"worker {short_id(worker.worker_id)} {worker.hostname}:{worker.pid}"
        held = worker.tasks_running + worker.tasks_claimed
        if worker.is_alive:
            yield from _complaints(worker, who)
        elif held or worker.heartbeat_age < FORGOTTEN_AFTER:
            seen = f"{who} {worker.standing}, last seen {age(worker.heartbeat_age)} ago"
            yield Concern(
                key=f"gone {worker.worker_id}",
                severity=Severity.BAD if held and worker.is_given_up else Severity.WARN,
                text=f"{seen}, holds {plural(held, 'task')}" if held else f"{seen}, holds nothing",
                behind=worker.worker_id,
            )


def _complaints(worker: WorkerRow, who: str) -> Iterator[Concern]:
    """What a live worker says is wrong with it."""
    failing = [f"{operation} keeps failing, and is tried rarely" for operation in worker.disabled_operations]
    for text in (*failing, *worker.warnings):
        yield Concern(
            key=f"says {worker.worker_id} {text}",
            severity=Severity.WARN,
            text=f"{who}: {text}",
            behind=worker.worker_id,
        )


def _failures(errors: Sequence[ErrorCount]) -> Iterator[Concern]:
    counts = Counter({(each.name, each.code): each.last_hour for each in errors if each.status == TaskStatus.FAILED})
    total = counts.total()
    if not total:
        return
    (name, code), most = counts.most_common(1)[0]
    # Where most of them are of one kind, that kind is the news.
    is_one_kind = 2 * most >= total
    share = "all" if most == total else f"{most:,} are" if is_one_kind else "the most frequent"
    wanted = TaskFilter(
        statuses=(TaskStatus.FAILED,),
        names=(name,) if is_one_kind else (),
        error_codes=(code,) if is_one_kind else (),
    )
    yield Concern(
        key="failures",
        severity=Severity.WARN,
        text=f"{plural(total, 'failure')} in 1h, {share} {code} in {name}",
        behind=wanted,
    )
