from __future__ import annotations

import inspect

import pytest

from horsies.model.task import (
    TaskAttemptInfo,
    TaskContext,
    TaskInfo,
    TaskStatus,
)


def test_terminal_statuses() -> None:
    assert {status for status in TaskStatus if status.is_terminal} == {"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"}
    assert all(status.value == status.name for status in TaskStatus)


CONTEXT = """
    task_id task_name queue_name attempt retry_count claim_token sent_at good_until timeout_ms worker_id flags
    possible_overlap schedule
"""
INFO = """
    task_id task_name status queue_name priority retry_count max_retries crash_count flags next_retry_at sent_at
    enqueued_at claimed_at started_at completed_at failed_at good_until worker_id worker_hostname worker_pid
    worker_process_name error_code workflow_id retry_of result failed_reason attempts
"""
ATTEMPT = """
    task_id attempt claim_token outcome will_retry started_at finished_at error_code error_message failed_reason
    worker_id worker_hostname worker_pid worker_process_name
"""


@pytest.mark.parametrize(("kind", "names"), [(TaskContext, CONTEXT), (TaskInfo, INFO), (TaskAttemptInfo, ATTEMPT)])
def test_public_views_have_the_documented_fields(kind: type, names: str) -> None:
    assert set(inspect.signature(kind).parameters) == set(names.split())
