"""Payloads of sends, send errors, and what a conflict with an existing row means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, TypeAlias, TypeVar
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


class TaskSendPayload(NamedTuple):
    """A task ready to be stored; sending it twice stores it once. Arguments, options and flags are JSON text.

    A tuple, because it holds the parameters of the INSERT in their order.
    """

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    args: str
    kwargs: str
    sent_at: datetime
    good_until: datetime | None
    enqueue_delay_seconds: float | None
    task_options: str
    flags: str
    max_retries: int
    idempotency_key: str | None
    command_sha: str | None
    enqueue_sha: str

    def __repr__(self) -> str:
        """Without the arguments, which may be secret."""
        shown = [f"{name}={value!r}" for name, value in self._asdict().items() if name not in ("args", "kwargs")]
        return f"TaskSendPayload({', '.join(shown)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPayload:
    """Payloads that differ only in id, arguments and fingerprint, as columns."""

    first: TaskSendPayload
    """The first payload; all others have its remaining fields."""
    task_ids: Sequence[str]
    args: Sequence[str]
    kwargs: Sequence[str]
    enqueue_sha: Callable[[str, str], str]
    """Returns the fingerprint for `args` and `kwargs`; called while the server stores the previous rows."""

    def __iter__(self) -> Iterator[TaskSendPayload]:
        for task_id, args, kwargs in zip(self.task_ids, self.args, self.kwargs, strict=True):
            sha = self.enqueue_sha(args, kwargs)
            yield self.first._replace(task_id=task_id, args=args, kwargs=kwargs, enqueue_sha=sha)


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
