"""Rows of tasks as the library shows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from horsies.codec.result import read_result
from horsies.model.info import TaskAttemptInfo, TaskInfo
from horsies.model.task import TaskAttemptOutcome, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from horsies.store.tasks import AttemptRow, TaskRow


def task_info(
    row: TaskRow, attempts: Sequence[AttemptRow] | None = None, *, include_failed_reason: bool = False
) -> TaskInfo:
    return TaskInfo(
        task_id=str(row.id),
        task_name=row.task_name,
        status=TaskStatus(row.status),
        queue_name=row.queue_name,
        priority=row.priority,
        retry_count=row.retry_count,
        max_retries=row.max_retries,
        crash_count=row.crash_count,
        flags=json.loads(row.flags),
        sent_at=row.sent_at,
        enqueued_at=row.enqueued_at,
        next_retry_at=row.next_retry_at,
        claimed_at=row.claimed_at,
        started_at=row.started_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        good_until=row.good_until,
        worker_id=_text(row.worker_id),
        worker_hostname=row.worker_hostname,
        worker_pid=row.worker_pid,
        worker_process_name=row.worker_process_name,
        error_code=row.error_code,
        workflow_id=_text(row.workflow_id),
        retry_of=_text(row.retry_of),
        result=None if row.document is None else read_result(row.document),
        failed_reason=row.failed_reason if include_failed_reason else None,
        attempts=None if attempts is None else [_attempt_info(each) for each in attempts],
    )


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
