"""Payloads of sends, send errors, and what a conflict with an existing row means."""

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
    """A task ready to be stored; sending it twice stores it once. Arguments, options and flags are JSON text."""

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
    """A payload without delay, `good_until` and idempotency key, its fields in the order of the inserted columns.

    Most sends are of this kind. Building it takes a fifth of the time; only a failed send needs the full payload.
    """

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    args: str
    kwargs: str
    sent_at: str
    """As ISO 8601 text: the fingerprint needs it in this form, and the driver need not convert it."""
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
        return repr(self.full_payload)  # its repr hides the arguments


def to_full_payload(send: CompactPayload | TaskSendPayload) -> TaskSendPayload:
    return send.full_payload if isinstance(send, CompactPayload) else send


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSendError:
    """A failed send; `retry_send` sends its `payload` again. With a lost answer the task may have been stored."""

    code: TaskSendErrorCode
    message: str
    retryable: bool = False
    task_id: str | None = None
    payload: TaskSendPayload | None = None
    exception: BaseException | None = None
    needs_connection: bool = field(default=False, repr=False)
    """Whether it was sent with `connection=`: a send inside a transaction is never repeated outside of it."""


TaskSendResult: TypeAlias = Result[T, TaskSendError]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictingTask:
    """An existing row with the same id or idempotency key."""

    id: UUID
    enqueue_sha: str
    command_sha: str | None
    has_same_key: bool


class SendOutcome(StrEnum):
    """The outcome of storing a task."""

    STORED = "stored"
    ALREADY_STORED = "already stored"
    """The same send was stored before."""
    DEDUPLICATED = "deduplicated"
    """An earlier send with the same idempotency key and the same arguments is kept."""
    PAYLOAD_MISMATCH = "payload mismatch"
    """A row with this id holds a different payload."""
    IDEMPOTENCY_KEY_CONFLICT = "idempotency key conflict"
    """An earlier send with the same idempotency key has different arguments."""
    CONFLICT_GONE = "conflict gone"
    """The conflicting row was deleted in the meantime; send again."""


def resolve_conflict(payload: TaskSendPayload, existing: Iterable[ConflictingTask]) -> tuple[SendOutcome, str]:
    """Return the outcome of a send that conflicts with `existing` rows, and the id of the task that represents it."""
    rows = list(existing)
    # The id first: a resend finds its own row, which has the same idempotency key too.
    for row in rows:
        if str(row.id) == payload.task_id:
            is_same = row.enqueue_sha == payload.enqueue_sha
            return (SendOutcome.ALREADY_STORED if is_same else SendOutcome.PAYLOAD_MISMATCH), payload.task_id
    for row in rows:
        if row.has_same_key:
            is_same = row.command_sha == payload.command_sha
            return (SendOutcome.DEDUPLICATED if is_same else SendOutcome.IDEMPOTENCY_KEY_CONFLICT), str(row.id)
    return SendOutcome.CONFLICT_GONE, payload.task_id
