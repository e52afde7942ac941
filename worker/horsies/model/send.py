"""Sending a task: what is sent, what can go wrong, and what it means when the row is there already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from horsies.model.result import Result

T = TypeVar("T")


class TaskSendErrorCode(StrEnum):
    """Why a send did not store a task."""

    SEND_SUPPRESSED = "SEND_SUPPRESSED"
    ASYNC_CONTEXT = "ASYNC_CONTEXT"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    IDEMPOTENCY_KEY_CONFLICT = "IDEMPOTENCY_KEY_CONFLICT"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSendPayload:
    """A task as it is stored, before it is: sending it twice stores it once. Arguments, options and flags are JSON."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    args: str = field(repr=False)
    kwargs: str = field(repr=False)
    sent_at: datetime
    good_until: datetime | None
    enqueue_delay_seconds: float | None
    task_options: str
    flags: str
    max_retries: int
    idempotency_key: str | None
    command_sha: str | None
    enqueue_sha: str


class CompactPayload(NamedTuple):
    """A payload that is due at once, never ends and has no key, as most: its columns in the order in which they are
    stored. It is made in a fifth of the time, and only a send that fails needs the whole of it."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    args: str
    kwargs: str
    sent_at: str
    """As ISO 8601: its fingerprint is made of that, and the driver has nothing to convert."""
    max_retries: int
    task_options: str
    flags: str
    enqueue_sha: str

    @property
    def full_payload(self) -> TaskSendPayload:
        columns: dict[str, Any] = {**self._asdict(), "sent_at": datetime.fromisoformat(self.sent_at)}
        return TaskSendPayload(
            **columns, good_until=None, enqueue_delay_seconds=None, idempotency_key=None, command_sha=None
        )

    def __repr__(self) -> str:
        return repr(self.full_payload)  # which hides the arguments


def to_full_payload(send: CompactPayload | TaskSendPayload) -> TaskSendPayload:
    return send.full_payload if isinstance(send, CompactPayload) else send


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSendError:
    """A send that stored nothing that is known of; `payload` is what `retry_send` would send again."""

    code: TaskSendErrorCode
    message: str
    retryable: bool = False
    task_id: str | None = None
    payload: TaskSendPayload | None = None
    exception: BaseException | None = None
    needs_connection: bool = field(default=False, repr=False)
    """Whether it was sent with `connection=`: what was part of a transaction is never sent again outside of one."""


TaskSendResult: TypeAlias = Result[T, TaskSendError]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictingTask:
    """A row that stood in the way of an insert."""

    id: UUID
    enqueue_sha: str
    command_sha: str | None
    has_same_key: bool


class SendOutcome(StrEnum):
    """What came of storing a task."""

    STORED = "stored"
    ALREADY_STORED = "repeated"
    """The same send had been stored before."""
    DEDUPLICATED = "first stands"
    """Another send with the same idempotency key and the same arguments came first."""
    PAYLOAD_MISMATCH = "other payload"
    IDEMPOTENCY_KEY_CONFLICT = "other arguments"
    CONFLICT_GONE = "gone"
    """What stood in the way is no longer there; try again."""


def resolve_conflict(payload: TaskSendPayload, existing: Iterable[ConflictingTask]) -> tuple[SendOutcome, str]:
    """What the rows in the way of `payload` mean, and the id of the task that stands for it."""
    rows = list(existing)
    for row in rows:
        if str(row.id) == payload.task_id:
            is_same = row.enqueue_sha == payload.enqueue_sha
            return (SendOutcome.ALREADY_STORED if is_same else SendOutcome.PAYLOAD_MISMATCH), payload.task_id
    for row in rows:
        if row.has_same_key:
            is_same = row.command_sha == payload.command_sha
            return (SendOutcome.DEDUPLICATED if is_same else SendOutcome.IDEMPOTENCY_KEY_CONFLICT), str(row.id)
    return SendOutcome.CONFLICT_GONE, payload.task_id
