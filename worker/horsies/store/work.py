"""What a worker holds, as every statement that moves its tasks is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horsies.codec.failure import stored_error
from horsies.codec.wire import canonical
from horsies.model.codes import OutcomeCode
from horsies.model.task_error import TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from pydantic import JsonValue


class Hold(NamedTuple):
    """A task in a worker's hands, under the token of its claim; worth nothing once the row has another."""

    task_id: UUID
    claim_token: int
    worker_id: UUID


class HeldRow(NamedTuple):
    """A row that was still held as asked."""

    id: UUID
    claim_token: int


class MovedRow(NamedTuple):
    """A row that was still held as asked, and where it stands since."""

    id: UUID
    claim_token: int
    status: str


def hold_columns(holds: Sequence[Hold]) -> tuple[list[UUID], list[int], list[UUID]]:
    """The three arrays that guard a statement: ids, tokens, owners."""
    return (
        [hold.task_id for hold in holds],
        [hold.claim_token for hold in holds],
        [hold.worker_id for hold in holds],
    )


def _cancelled(because: str) -> JsonValue:
    error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message=f"not started again: its workflow was {because}")
    return {"err": stored_error(error)}


CANCELLED_DOCUMENTS = canonical({mark: _cancelled(mark) for mark in ("paused", "cancelled")})
"""Results of tasks that would start again but must not, by what `no_restart` says; JSON."""
