"""What an invented task has been through: attempts, beats and events that fit its row."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.model.recovery.verdicts import Decision, RecoveryReason
from horsies.model.task import TaskStatus
from horsies_ops.reads.tasks import NEWEST_SHOWN, AttemptRow, Beat, TaskDetail, TaskEvent
from horsies_ops.reads.verdicts import TaskVerdict
from horsies_tui.demo.catalogue import KINDS, STALE_AFTER, WORKERS

if TYPE_CHECKING:
    from datetime import datetime

    from horsies_ops.reads.tasks import TaskFacts

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
