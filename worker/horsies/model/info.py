"""A task as seen from outside the engine: by its own code, by its sender, by an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from horsies.model.task import TaskAttemptOutcome, TaskStatus
    from horsies.model.task_error import TaskError
    from horsies.model.task_result import TaskResult


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The task that is running here and now.

    `task_id` with `claim_token` names this attempt and no other: the material for side effects that must happen once.
    """

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    """From 1; counts every execution that began, this one included."""
    retry_count: int
    claim_token: int
    sent_at: datetime
    good_until: datetime | None
    timeout_ms: int | None
    worker_id: str
    flags: Mapping[str, bool]
    possible_overlap: bool
    """True when an earlier attempt could not be proven dead and may still be at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttemptInfo:
    """One execution that began and came to an end."""

    task_id: str
    attempt: int
    claim_token: int
    outcome: TaskAttemptOutcome
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    worker_id: str | None = None
    worker_hostname: str | None = None
    worker_pid: int | None = None
    worker_process_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """The row of a task at the moment of asking.

    `result`, `failed_reason` and `attempts` are None unless they were asked for; attempts come newest first.
    """

    task_id: str
    task_name: str
    status: TaskStatus
    queue_name: str
    priority: int
    retry_count: int
    max_retries: int
    crash_count: int
    flags: Mapping[str, bool]
    sent_at: datetime
    enqueued_at: datetime
    next_retry_at: datetime | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    good_until: datetime | None = None
    worker_id: str | None = None
    worker_hostname: str | None = None
    worker_pid: int | None = None
    worker_process_name: str | None = None
    error_code: str | None = None
    workflow_id: str | None = None
    retry_of: str | None = None
    result: TaskResult[object, TaskError] | None = None
    failed_reason: str | None = None
    attempts: list[TaskAttemptInfo] | None = None
