"""What happened to one task, in the order of time, as the detail screen and `horsies task show` list it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from horsies.model.task import TaskAttemptInfo, TaskStatus, short_form
from horsies.model.text import format_elapsed
from horsies_ops.reads.tasks import TaskDetail, TaskRecord

IMMEDIATE = timedelta(seconds=1)
"""A task due this soon after it was sent counts as not delayed."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at: datetime
    description: str


def timeline_entries(detail: TaskDetail) -> tuple[TimelineEntry, ...]:
    """Return everything that happened to the task in order, with future events such as a retry last."""
    entries = [
        *_sent_entries(detail.task),
        *(entry for attempt in detail.attempts for entry in _attempt_entries(attempt)),
        *(TimelineEntry(event.at, event.kind) for event in detail.events),
        *_current_entries(detail),
    ]
    return tuple(sorted(entries, key=lambda entry: entry.at))


def _sent_entries(task: TaskRecord) -> Iterator[TimelineEntry]:
    yield TimelineEntry(task.sent_at, f"sent as a retry of {short_form(task.retry_of)}" if task.retry_of else "sent")
    if task.enqueued_at - task.sent_at > IMMEDIATE and task.retry_count == 0:
        yield TimelineEntry(task.enqueued_at, "due")


def _attempt_entries(attempt: TaskAttemptInfo) -> Iterator[TimelineEntry]:
    yield TimelineEntry(attempt.started_at, f"#{attempt.attempt} started")
    outcome = f"{attempt.outcome} {attempt.error_code or ''}".rstrip()
    retry = ", will retry" if attempt.will_retry else ""
    yield TimelineEntry(attempt.finished_at, f"#{attempt.attempt} {outcome}{retry}")


def _current_entries(detail: TaskDetail) -> Iterator[TimelineEntry]:
    """Return the entries that come from the task row itself."""
    task = detail.task
    if task.status in (TaskStatus.CLAIMED, TaskStatus.RUNNING):
        if task.claimed_at is not None:
            owner = short_form(task.worker_id) if task.worker_id else "-"
            waited = format_elapsed(task.claimed_at - task.enqueued_at)
            yield TimelineEntry(task.claimed_at, f"claimed by {owner} (wait {waited})")
        if task.started_at is not None:
            yield TimelineEntry(task.started_at, f"#{task.attempt_count + 1} started")
        if detail.last_heartbeat is not None:
            yield TimelineEntry(detail.last_heartbeat.at, "last heartbeat")
    # Skipped if the last attempt already shows this outcome.
    if task.finished_at is not None and not any(attempt.outcome == task.status for attempt in detail.attempts[:1]):
        yield TimelineEntry(task.finished_at, task.status)
    if task.status == TaskStatus.PENDING and task.retry_count:
        yield TimelineEntry(task.enqueued_at, "next attempt")
    if task.good_until is not None and task.finished_at is None:
        yield TimelineEntry(task.good_until, "good_until")
    if task.recovery_hold_until is not None:
        yield TimelineEntry(task.recovery_hold_until, "recovery hold ends")
