"""Queues with their tasks, throughput, pauses and workers; and schedules with their next runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from horsies.store.queries import Query, load_queries
from horsies.store.recovery import RecoveryStore

if TYPE_CHECKING:
    from horsies.model.settings import TaskSchedule
    from horsies_ops.ops import Ops


MAX_FINISHED_COUNTED: Final = 20_000
"""Most rows counted for the last minute; beyond that the number of tasks that did not fail is extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue. Priority and limit are those published by the most recently seen worker, None without one."""

    name: str
    priority: int | None
    max_concurrency: int | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    pending: int
    """Due and not claimed yet."""
    delayed: int
    """Not due yet."""
    claimed: int
    running: int
    oldest_due_age: timedelta | None
    next_due_in: timedelta | None
    finished_last_minute: int
    """With any outcome; see `is_estimate`."""
    failed_last_minute: int
    """Always exact."""
    served_by: int
    """Number of workers that respond and serve it."""
    is_estimate: bool = False
    """So many tasks finished in the last minute that the number of those that did not fail is extrapolated."""

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReadQueries:
    list: Query[QueueRow]
    has_work: Query[bool]


QUEUE_READS = load_queries(QueueReadQueries, "horsies_ops.reads", "queues")


async def list_queues(ops: Ops) -> tuple[QueueRow, ...]:
    """Return every queue that a task, a worker or a pause mentions, by priority."""
    fleet = await RecoveryStore(ops.reader).fleet()
    return tuple(await ops.reader.fetch(QUEUE_READS.list, MAX_FINISHED_COUNTED, fleet.responsive_ids))


async def has_work(ops: Ops, queues: Sequence[str]) -> bool:
    """Whether tasks of these queues are due, waiting for a retry or in flight, or workflow runs have to advance.

    Delayed tasks and due tasks of paused queues do not count.
    """
    return await ops.reader.fetch_single(QUEUE_READS.has_work, list(queues))


# Schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """Stored state of a schedule; all but the name is empty before a scheduler has stored it."""

    name: str
    next_run_at: datetime | None = None
    due_in: timedelta | None = None
    last_run_at: datetime | None = None
    last_task_id: UUID | None = None
    last_status: str | None = None
    last_error_code: str | None = None
    run_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow(ScheduleState):
    """One schedule; task, pattern, timezone and `is_enabled` are None if it is not configured in this process."""

    task_name: str | None
    pattern: str | None
    timezone: str | None
    is_enabled: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReadQueries:
    states: Query[ScheduleState]


SCHEDULE_READS = load_queries(ScheduleReadQueries, "horsies_ops.reads", "schedules")


async def list_schedules(ops: Ops, configured: Sequence[TaskSchedule] | None = None) -> tuple[ScheduleRow, ...]:
    """Return all stored schedules and those in `configured` [default: from the settings].

    The next run comes first; schedules without a next run come last.
    """
    if configured is None:
        configured = ops.settings.schedule.schedules if ops.settings.schedule is not None else ()
    by_name = {schedule.name: schedule for schedule in configured}
    states = await ops.reader.fetch(SCHEDULE_READS.states)
    unsaved = sorted(by_name.keys() - {state.name for state in states})
    return (
        *(_row(state, by_name.get(state.name)) for state in states),
        *(_row(ScheduleState(name=name), by_name[name]) for name in unsaved),
    )


def _row(state: ScheduleState, configured: TaskSchedule | None) -> ScheduleRow:
    return ScheduleRow(
        **{field.name: getattr(state, field.name) for field in fields(state)},
        task_name=configured.task_name if configured else None,
        pattern=format_pattern(configured.pattern) if configured else None,
        timezone=configured.timezone if configured else None,
        is_enabled=configured.enabled if configured else None,
    )


def format_pattern(pattern: Mapping[str, Any]) -> str:
    """Format a pattern in one line, such as `daily time=02:00`."""
    kind = str(pattern.get("type", ""))
    return " ".join([kind, *(f"{name}={value}" for name, value in pattern.items() if name != "type")]).strip()
