"""What happened to a task, in the order in which it did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies_tui.format import clean, clock, cut, short_id, took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from horsies_ops.reads.tasks import AttemptRow, TaskDetail, TaskFacts

GAP = "  "
AT_ONCE = timedelta(seconds=1)
"""What is due so soon after it was sent was not sent for later."""


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime
    what: str

    @property
    def text(self) -> str:
        return f"{clock(self.at)} {clean(self.what)}"


def moments(detail: TaskDetail) -> tuple[Moment, ...]:
    """From the sending on; what is still to come, as a retry, at the end."""
    found = [
        *_sent(detail.task),
        *(moment for attempt in detail.attempts for moment in _attempted(attempt)),
        *(Moment(event.at, event.kind) for event in detail.events),
        *_now(detail),
    ]
    return tuple(sorted(found, key=lambda moment: moment.at))


def _sent(task: TaskFacts) -> Iterator[Moment]:
    yield Moment(task.sent_at, f"sent again for {short_id(task.retry_of)}" if task.retry_of else "sent")
    if task.enqueued_at - task.sent_at > AT_ONCE and task.retry_count == 0:
        yield Moment(task.enqueued_at, "due")


def _attempted(attempt: AttemptRow) -> Iterator[Moment]:
    yield Moment(attempt.started_at, f"#{attempt.attempt} started")
    how = f"{attempt.outcome} {attempt.error_code or ''}".rstrip()
    yield Moment(attempt.finished_at, f"#{attempt.attempt} {how}{', to be retried' if attempt.will_retry else ''}")


def _now(detail: TaskDetail) -> Iterator[Moment]:
    """What the row itself says of the present."""
    task = detail.task
    if task.status in (TaskStatus.CLAIMED, TaskStatus.RUNNING):
        if task.claimed_at is not None:
            waited = task.claimed_at - task.enqueued_at
            yield Moment(task.claimed_at, f"claimed by {short_id(task.worker_id)} (wait {took(waited)})")
        if task.started_at is not None:
            yield Moment(task.started_at, f"#{task.attempt_count + 1} started")
        if detail.last_beat is not None:
            yield Moment(detail.last_beat.at, "last beat")
    # Where the last attempt says it, it is said.
    if task.finished_at is not None and not any(each.outcome == task.status for each in detail.attempts[:1]):
        yield Moment(task.finished_at, task.status)
    if task.status == TaskStatus.PENDING and task.retry_count:
        yield Moment(task.enqueued_at, "next try")
    if task.good_until is not None and task.finished_at is None:
        yield Moment(task.good_until, "not to be started after this")
    if task.recovery_hold_until is not None:
        yield Moment(task.recovery_hold_until, "left alone by sweeps until then")


def flowed(texts: Sequence[str], width: int) -> list[str]:
    """The texts beside one another, as many as fit into a line; none is broken, one that is too long is cut."""
    lines: list[str] = []
    for text in (cut(each, width) for each in texts):
        joined = f"{lines[-1]}{GAP}{text}" if lines else text
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(text)
    return lines
