"""Outcome of a send that conflicts with stored rows."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from horsies.model.send import (
    ConflictingTask,
    SendOutcome,
    TaskSendError,
    TaskSendErrorCode,
    TaskSendPayload,
    resolve_conflict,
)

MINE, OTHER = UUID(int=1), UUID(int=2)
PAYLOAD = TaskSendPayload(
    task_id=str(MINE),
    task_name="t",
    queue_name="default",
    priority=100,
    args='["secret"]',
    kwargs='{"password":"secret"}',
    sent_at=datetime(2030, 1, 1, tzinfo=UTC),
    good_until=None,
    enqueue_delay_seconds=None,
    task_options="{}",
    flags="{}",
    max_retries=0,
    idempotency_key="k",
    command_sha="command",
    enqueue_sha="enqueue",
)


def row(task_id: UUID, *, enqueue: str = "enqueue", command: str = "command", same_key: bool = True) -> ConflictingTask:
    return ConflictingTask(id=task_id, enqueue_sha=enqueue, command_sha=command, has_same_key=same_key)


@pytest.mark.parametrize(
    ("rows", "outcome", "task_id"),
    [
        ([], SendOutcome.CONFLICT_GONE, MINE),
        ([row(MINE)], SendOutcome.ALREADY_STORED, MINE),
        ([row(MINE, same_key=False)], SendOutcome.ALREADY_STORED, MINE),
        ([row(MINE, enqueue="other")], SendOutcome.PAYLOAD_MISMATCH, MINE),
        ([row(OTHER)], SendOutcome.DEDUPLICATED, OTHER),
        ([row(OTHER, enqueue="other")], SendOutcome.DEDUPLICATED, OTHER),
        ([row(OTHER, command="other")], SendOutcome.IDEMPOTENCY_KEY_CONFLICT, OTHER),
        ([row(OTHER), row(MINE, same_key=False)], SendOutcome.ALREADY_STORED, MINE),
        ([row(OTHER), row(MINE, enqueue="other", same_key=False)], SendOutcome.PAYLOAD_MISMATCH, MINE),
    ],
)
def test_conflicting_rows_determine_the_outcome(
    rows: list[ConflictingTask], outcome: SendOutcome, task_id: UUID
) -> None:
    assert resolve_conflict(PAYLOAD, rows) == (outcome, str(task_id))


def test_repr_of_an_error_hides_arguments() -> None:
    error = TaskSendError(code=TaskSendErrorCode.ENQUEUE_FAILED, message="no server", payload=PAYLOAD)
    assert "secret" not in repr(error)
    assert PAYLOAD.task_id in repr(error)
