"""Rows of tasks as the library shows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from horsies.codec.result import read_result
from horsies.model.info import TaskAttemptInfo, TaskInfo
from horsies.model.task import TaskAttemptOutcome, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from horsies.store.recovery import StaleRow
    from horsies.store.tasks import AttemptRow, TaskRow

_COLUMNS = (
    "task_name", "queue_name", "priority", "retry_count", "max_retries", "crash_count", "sent_at", "enqueued_at",
    "claimed_at", "started_at", "good_until", "worker_hostname", "worker_pid", "worker_process_name",
)  # fmt: skip


def task_info(
    row: TaskRow, attempts: Sequence[AttemptRow] | None = None, *, include_failed_reason: bool = False
) -> TaskInfo:
    return TaskInfo(
        **_alike(row),
        next_retry_at=row.next_retry_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        worker_id=_text(row.worker_id),
        error_code=row.error_code,
        result=None if row.document is None else read_result(row.document),
        failed_reason=row.failed_reason if include_failed_reason else None,
        attempts=None if attempts is None else [_attempt_info(each) for each in attempts],
    )


def stale_task_info(row: StaleRow) -> TaskInfo:
    """A task that somebody was to run, as hooks of recovery see it."""
    return TaskInfo(**_alike(row), worker_id=_text(row.owner_id), failed_reason=row.failed_reason)


def _alike(row: TaskRow | StaleRow) -> dict[str, Any]:
    """What every row of a task has."""
    return {
        "task_id": str(row.id),
        "status": TaskStatus(row.status),
        "flags": _flags(row.flags),
        "workflow_id": _text(row.workflow_id),
        "retry_of": _text(row.retry_of),
        **{name: getattr(row, name) for name in _COLUMNS},
    }


def _flags(text: str) -> dict[str, bool]:
    """What is no object, which only a hand can have written, says nothing."""
    flags = json.loads(text)
    return cast("dict[str, bool]", flags) if isinstance(flags, dict) else {}


def _attempt_info(row: AttemptRow) -> TaskAttemptInfo:
    return TaskAttemptInfo(
        task_id=str(row.task_id),
        attempt=row.attempt,
        claim_token=row.claim_token,
        outcome=TaskAttemptOutcome(row.outcome),
        will_retry=row.will_retry,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error_code=row.error_code,
        error_message=row.error_message,
        failed_reason=row.failed_reason,
        worker_id=_text(row.worker_id),
        worker_hostname=row.worker_hostname,
        worker_pid=row.worker_pid,
        worker_process_name=row.worker_process_name,
    )


def _text(identity: UUID | None) -> str | None:
    return None if identity is None else str(identity)
