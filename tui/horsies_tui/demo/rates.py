"""How fast the invented system goes and what goes wrong in it, reckoned from its tasks."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from statistics import quantiles
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies_ops.reads.throughput import Bucket, ErrorCount, QueueBucket, Throughput, Times

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from horsies_ops.reads.tasks import TaskFacts
    from horsies_tui.demo.system import System

_HOUR = timedelta(hours=1)


def throughput(system: System, window: timedelta, count: int) -> Throughput:
    ended = [task for _, task in _ended(system, window)]
    starts = _starts(system.now(), window, count)
    done, failed = _tally(ended, TaskStatus.COMPLETED, window / count), _tally(ended, TaskStatus.FAILED, window / count)
    return Throughput(
        buckets=tuple(Bucket(at=at, done=done[at], failed=failed[at]) for at in starts), times=_times(ended)
    )


def queue_throughput(system: System, window: timedelta, count: int) -> tuple[QueueBucket, ...]:
    groups: dict[tuple[str, datetime], list[TaskFacts]] = {}
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


def error_summary(system: System, window: timedelta) -> tuple[ErrorCount, ...]:
    failed = [(at, task) for at, task in _ended(system, window) if task.error_code is not None]
    counts = Counter((task.name, task.error_code or "", task.status) for _, task in failed)
    recent = Counter(
        (task.name, task.error_code or "", task.status) for at, task in failed if system.now() - at < _HOUR
    )
    return tuple(
        ErrorCount(name=key[0], code=key[1], status=key[2], count=count, last_hour=recent[key])
        for key, count in counts.most_common()
    )


def ended_since(system: System, window: timedelta, *, queue: str | None = None) -> Counter[str]:
    """How many ended in each state."""
    return Counter(task.status for _, task in _ended(system, window) if queue in (None, task.queue))


def _ended(system: System, window: timedelta) -> Iterator[tuple[datetime, TaskFacts]]:
    since = system.now() - window
    for task in system.tasks.values():
        if task.finished_at is not None and since < task.finished_at <= system.now():
            yield task.finished_at, task


def _floor(at: datetime, step: timedelta) -> datetime:
    seconds = step.total_seconds()
    return at - timedelta(seconds=at.timestamp() % seconds)


def _starts(now: datetime, window: timedelta, count: int) -> list[datetime]:
    last = _floor(now, window / count)
    return [last - back * (window / count) for back in range(count - 1, -1, -1)]


def _tally(ended: Sequence[TaskFacts], status: TaskStatus, step: timedelta) -> Counter[datetime]:
    return Counter(_floor(task.finished_at, step) for task in ended if task.status == status and task.finished_at)


def _wait(task: TaskFacts) -> timedelta:
    return (task.started_at or task.enqueued_at) - task.enqueued_at


def _times(ended: Sequence[TaskFacts]) -> Times:
    waits = sorted(_wait(task).total_seconds() for task in ended)
    runs = sorted(
        (task.finished_at - task.started_at).total_seconds() for task in ended if task.finished_at and task.started_at
    )
    return Times(wait_p50=_at(waits, 50), wait_p95=_at(waits, 95), run_p50=_at(runs, 50), run_p95=_at(runs, 95))


def _at(values: Sequence[float], percent: int) -> timedelta | None:
    return timedelta(seconds=quantiles(values, n=100)[percent - 1]) if len(values) > 1 else None
