"""Task statuses, the public views of a task, ids, queues, priorities and expiry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypedDict
from uuid import UUID

from msgspec import Struct

from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, TaskDefinitionError
from horsies.model.task_result import OutcomeCode, TaskError, TaskResult


class TaskStatus(StrEnum):
    """The status of a task; the last four are terminal."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        return self in TASK_TERMINAL_STATES


# The store has one guarded statement per transition; nothing else changes a status. A terminal status never changes.
TASK_TERMINAL_STATES: Final = frozenset(
    {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}
)


class TaskAttemptOutcome(StrEnum):
    """How an attempt ended; WORKER_FAILURE when a living child could not produce an outcome."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    WORKER_FAILURE = "WORKER_FAILURE"


# Public views of a task


class ScheduledSlot(Struct, frozen=True, kw_only=True):
    """The slot of a schedule that sent a task: process what happened in [previous_slot_at, slot_at).

    `previous_slot_at` is the slot that fired before, None for the first one.
    """

    name: str
    slot_at: datetime
    previous_slot_at: datetime | None
    fired_at: datetime

    @property
    def lateness(self) -> timedelta:
        """How long after its slot time the task was sent, by the database clock."""
        return self.fired_at - self.slot_at


class TaskContext(Struct, frozen=True, kw_only=True, array_like=True):
    """The task that is currently running, returned by `current_task()`.

    `task_id` and `claim_token` together identify this attempt; use them as an idempotency key for side effects.
    """

    # A Struct, because every assignment carries one and msgspec decodes it at no cost in Python.

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    """Number of this attempt, from 1; every started attempt counts."""
    retry_count: int
    claim_token: int
    sent_at: datetime
    good_until: datetime | None
    timeout_ms: int | None
    worker_id: str
    flags: Mapping[str, bool]
    possible_overlap: bool
    """Whether an earlier attempt may still be running because its process could not be proven dead."""
    schedule: ScheduledSlot | None = None
    """The slot that sent this task; None if it was not sent by a schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttemptInfo:
    """One finished attempt."""

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
    """A task's row at the time of the read.

    `result`, `failed_reason` and `attempts` (newest first) are None unless requested.
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


class InfoParts(TypedDict, total=False):
    """Which parts of a `TaskInfo` to read that are left out by default."""

    include_result: bool
    include_failed_reason: bool
    include_attempts: bool


# Ids of tasks and runs: UUIDv7, so that id order is creation order

SHORT_FORM_DIGITS = 8

_CANONICAL = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def parse_id(text: str) -> str:
    """Normalise an id to lower case; raises `ValueError` if it is not a UUID."""
    if not _CANONICAL.fullmatch(text):
        shown = repr(text[:40] + "…" if len(text) > 40 else text)
        raise ValueError(f"invalid id {shown}: expected a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057")
    return text.lower()


def short_form(task_id: str | UUID) -> str:
    """Return the last eight hex digits; the first ones are a timestamp and look alike."""
    return str(task_id)[-SHORT_FORM_DIGITS:]


# Queues and priorities

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 100
"""Priorities range from 1 (claimed first) to 100."""


def queue_fault(queue_name: str | None, configured: Mapping[str, int] | None) -> HorsiesError | None:
    """Return the error in a task's queue name, if any; `configured` are the custom queues, None in DEFAULT mode."""
    if configured is None:
        if queue_name is None:
            return None
        return ConfigurationError(
            f"queue_name {queue_name!r} given, but the app has only the default queue",
            code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
            hint=f"omit queue_name, or add [queues.{queue_name}] in horsies.toml or custom_queues in AppConfig",
        )
    if queue_name is None:
        return ConfigurationError(
            "queue_name is missing: it is required because the app has custom queues",
            code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
            hint=f"choose one of: {', '.join(sorted(configured))}",
        )
    if queue_name not in configured:
        return TaskDefinitionError(
            f"queue {queue_name!r} is not configured",
            code=ErrorCode.TASK_INVALID_QUEUE,
            hint=f"choose one of: {', '.join(sorted(configured))}",
        )
    return None


def effective_priority(*, sent_with: int | None, task: int | None, queue: int | None) -> int:
    """Return the most specific priority given: of the send, else of the task, else of its queue, else 100."""
    for priority in (sent_with, task, queue):
        if priority is not None:
            return priority
    return DEFAULT_PRIORITY


def is_priority(value: object) -> bool:
    """Whether value is an int from 1 to 100; a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= DEFAULT_PRIORITY


# Expiry (`good_until`)

# The driver maps datetime.min and datetime.max to -infinity and infinity, and either may overflow in another time zone.
EARLIEST_INSTANT = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST_INSTANT = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


def check_good_until(good_until: datetime) -> None:
    """Raise `ValueError` unless `good_until` is a timezone-aware datetime in range; one in the past is allowed."""
    if not isinstance(good_until, datetime) or good_until.utcoffset() is None:
        example = "datetime.now(timezone.utc) + timedelta(hours=1)"
        raise ValueError(f"good_until must have a time zone, such as {example}; got {good_until!r}")
    if not EARLIEST_INSTANT <= good_until <= LATEST_INSTANT:
        earliest, latest = EARLIEST_INSTANT.date(), LATEST_INSTANT.date()
        raise ValueError(f"good_until must be between {earliest} and {latest}, got {good_until}")


def expired_error(*, task_id: str, good_until: datetime, worker_id: str | None = None) -> TaskError:
    """The error stored for an expired task; `worker_id` is given if a worker had claimed it."""
    return TaskError(
        error_code=OutcomeCode.TASK_EXPIRED,
        message=f"not started before its good_until, {good_until.isoformat()}",
        data={"task_id": task_id, "worker_id": worker_id},
    )
