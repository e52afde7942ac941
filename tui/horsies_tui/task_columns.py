"""Tasks in columns: what each shows, how, and which go first where there is no room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.model.task import TaskStatus
from horsies_tui.format import age, short_age, short_id
from horsies_tui.widgets.columns import Cell, Column, Tone

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from horsies_ops.reads.tasks import TaskSummary

LIVE: Final = (TaskStatus.CLAIMED, TaskStatus.RUNNING)

TONES: Final = {
    TaskStatus.PENDING: Tone.PLAIN,
    TaskStatus.CLAIMED: Tone.BUSY,
    TaskStatus.RUNNING: Tone.BUSY,
    TaskStatus.COMPLETED: Tone.GOOD,
    TaskStatus.FAILED: Tone.BAD,
    TaskStatus.CANCELLED: Tone.DIM,
    TaskStatus.EXPIRED: Tone.WARN,
}
"""How a status looks, beside its word."""


def silence(task: TaskSummary, now: datetime) -> timedelta | None:
    """How long a live task has been silent; None for every other one."""
    return None if task.last_beat_at is None else now - task.last_beat_at


def waited(task: TaskSummary, now: datetime) -> timedelta | None:
    """From when it was due until it was claimed, or until now where it still waits; None where it is not yet due."""
    if task.claimed_at is None and task.status != TaskStatus.PENDING:
        return None
    span = (task.claimed_at or now) - task.enqueued_at
    return span if span.total_seconds() >= 0 else None


def tone_of(status: str) -> Tone:
    return TONES.get(TaskStatus(status), Tone.PLAIN)


def _status(task: TaskSummary, now: datetime) -> Cell:
    is_delayed = task.status == TaskStatus.PENDING and task.enqueued_at > now
    return Cell("DELAYED", Tone.DIM) if is_delayed else Cell(task.status, tone_of(task.status))


def _note(task: TaskSummary, now: datetime) -> Cell:
    """What went wrong; else when it is due."""
    if task.error_code is not None:
        return Cell(task.error_code, Tone.BAD)
    if task.status == TaskStatus.PENDING and task.enqueued_at > now:
        return Cell(f"due in {age(task.enqueued_at - now)}", Tone.DIM)
    return Cell("")


def _attempt(task: TaskSummary) -> Cell:
    """Which attempt it is, of how many; the row counts those that have ended."""
    under_way = task.status == TaskStatus.RUNNING
    return Cell(f"{task.attempt_count + under_way}/{task.max_retries + 1}")


def _silent(task: TaskSummary, now: datetime) -> Cell:
    span = silence(task, now)
    return Cell("" if span is None else age(span), Tone.BUSY)


TASK_COLUMNS: Final[tuple[Column[TaskSummary], ...]] = (
    Column(title="ID", width=8, cell=lambda task, _: Cell(short_id(task.id))),
    Column(title="TASK", width=15, grows=4, cell=lambda task, _: Cell(task.name)),
    Column(title="QUEUE", width=8, grows=1, rank=1, cell=lambda task, _: Cell(task.queue)),
    Column(title="STATUS", width=9, cell=_status),
    Column(
        title="ATT", width=4, rank=2, cell=lambda task, _: _attempt(task)
    ),
    Column(title="WORKER", width=8, rank=3, cell=lambda task, _: Cell(short_id(task.worker_id), Tone.DIM)),
    Column(
        title="HB", width=6, rank=4, right=True, ticks=True, cell=_silent
    ),
    Column(
        title="WAIT", width=6, rank=6, right=True, ticks=True, cell=lambda task, now: Cell(age(waited(task, now)))
    ),
    Column(title="PRIO", width=4, rank=7, right=True, cell=lambda task, _: Cell(str(task.priority))),
    Column(
        title="AGE", width=4, right=True, ticks=True, cell=lambda task, now: Cell(short_age(now - task.sent_at))
    ),
    Column(title="ERROR", width=13, grows=3, rank=1, ticks=True, cell=_note),
)  # fmt: skip
