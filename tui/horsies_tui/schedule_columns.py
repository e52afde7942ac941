"""Schedules in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.model.task import TaskStatus
from horsies_tui.format import age, short_age
from horsies_tui.task_columns import tone_of
from horsies_tui.widgets.columns import Cell, Column, Tone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from horsies_ops.reads.schedules import ScheduleRow
    from horsies_ops.reads.tasks import TaskSummary
    from horsies_tui.glyphs import Glyphs

UNKNOWN: Final = "not in these settings"


def when(schedule: ScheduleRow) -> str:
    """Its pattern, and the zone where that is not UTC."""
    if schedule.pattern is None:
        return UNKNOWN
    zone = "" if schedule.timezone in (None, "UTC") else f" {schedule.timezone}"
    return f"{schedule.pattern}{zone}"


def _next(schedule: ScheduleRow, now: datetime) -> Cell:
    if schedule.is_enabled is False:
        return Cell("disabled", Tone.DIM)
    if schedule.next_run_at is None:
        return Cell("-", Tone.DIM)
    left = schedule.next_run_at - now
    is_late = left.total_seconds() < 0
    return Cell(f"late {age(-left)}", Tone.WARN) if is_late else Cell(f"in {age(left)}")


def _last(schedule: ScheduleRow, now: datetime) -> Cell:
    return Cell("never" if schedule.last_run_at is None else f"{short_age(now - schedule.last_run_at)} ago")


def _result(schedule: ScheduleRow) -> Cell:
    if schedule.last_status is None:
        return Cell("-", Tone.DIM)
    return Cell(schedule.last_error_code or schedule.last_status, tone_of(schedule.last_status))


def fortunes(tasks: Sequence[TaskSummary], signs: Glyphs) -> str:
    """A sign for each task, the oldest first."""
    known = {
        TaskStatus.COMPLETED: signs.done, TaskStatus.FAILED: signs.failed, TaskStatus.RUNNING: signs.running,
        TaskStatus.CANCELLED: signs.skipped, TaskStatus.EXPIRED: signs.skipped,
    }  # fmt: skip
    return "".join(known.get(TaskStatus(task.status), signs.waiting) for task in reversed(tasks))


SCHEDULE_COLUMNS: Final[tuple[Column[ScheduleRow], ...]] = (
    Column(title="SCHEDULE", width=14, grows=2, cell=lambda row, _: Cell(row.name)),
    Column(title="WHEN", width=20, grows=2, rank=1, cell=lambda row, _: Cell(when(row))),
    Column(title="NEXT RUN", width=11, ticks=True, cell=_next),
    Column(title="LAST RUN", width=8, rank=2, ticks=True, cell=_last),
    Column(title="RESULT", width=11, grows=1, cell=lambda row, _: _result(row)),
    Column(title="RUNS", width=6, right=True, rank=3, cell=lambda row, _: Cell(f"{row.run_count:,}")),
)
