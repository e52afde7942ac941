"""Running tasks come to an end, or back for another attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from horsies.model.task import TaskAttemptOutcome
from horsies.store.queries import Query, load
from horsies.store.work import CANCELLED_DOCUMENTS, MovedRow, hold_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.store.db import Database
    from horsies.store.work import Hold


class Finish(NamedTuple):
    """How an execution ended, and what shall become of its task.

    `document` is stored if the task ends here. With `retry_delay_s` it is run again instead, that long from now, where
    retries are left, good_until allows and its workflow was neither paused nor cancelled.
    """

    hold: Hold
    outcome: TaskAttemptOutcome
    document: str
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    """Why it failed where the task's own code is not to blame; stays on the row until it completes."""
    retry_delay_s: float | None = None
    poison_document: str | None = None
    """Given for a crash, and only then: stored in place of `document` when this crash is one too many."""
    pid: int | None = None
    """The process that ran it, where it may be another than the one it was started for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt that is on record."""

    id: UUID
    claim_token: int
    outcome: str
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Who has a task, and since when: the evidence for an outcome that was refused."""

    id: UUID
    status: str
    claim_token: int
    worker_id: UUID | None
    claimed_at: datetime | None
    started_at: datetime | None
    terminal_at: datetime | None
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishQueries:
    finish: Query[MovedRow]
    complete: Query[MovedRow]
    attempts_under: Query[EndedAttempt]
    standing: Query[Standing]


FINISHES = load(FinishQueries, "horsies.store", "finishes")


@dataclass(frozen=True, slots=True)
class FinishStore:
    """Outcomes in one database."""

    database: Database

    async def finish(
        self, finishes: Sequence[Finish], *, max_crashes: int, events: Sequence[str] = ()
    ) -> list[MovedRow]:
        """Store a batch in one statement, or in one for those that completed and one for the others, with messages for
        viewers riding along.

        Returns where each task stands now; PENDING is a retry. One that does not come back was refused: another hand
        moved it first, or the same batch has been stored before (`outcome_of` tells).
        """
        completed = [each for each in finishes if each.outcome is TaskAttemptOutcome.COMPLETED]
        if len(completed) == len(finishes):
            return await self._complete(completed, events)
        # These first: where one is refused, nothing of the batch is stored, as if it were one statement.
        moved = await self._complete(completed, ()) if completed else []
        judged = [each for each in finishes if each.outcome is not TaskAttemptOutcome.COMPLETED]
        return moved + await self.database.fetch(
            FINISHES.finish, *_columns(judged), max_crashes, CANCELLED_DOCUMENTS, events
        )

    async def _complete(self, finishes: Sequence[Finish], events: Sequence[str]) -> list[MovedRow]:
        return await self.database.fetch(
            FINISHES.complete,
            *hold_columns([each.hold for each in finishes]),
            [each.document for each in finishes],
            [each.pid for each in finishes],
            events,
        )

    async def outcome_of(self, holds: Sequence[Hold]) -> list[EndedAttempt]:
        """The attempts on record under exactly these claims."""
        ids, tokens, _ = hold_columns(holds)
        return await self.database.fetch(FINISHES.attempts_under, ids, tokens)

    async def standing(self, task_ids: Sequence[UUID]) -> list[Standing]:
        return await self.database.fetch(FINISHES.standing, task_ids)


def _columns(finishes: Sequence[Finish]) -> tuple[object, ...]:
    return (
        *hold_columns([each.hold for each in finishes]),
        [each.outcome for each in finishes],
        [each.document for each in finishes],
        [each.error_code for each in finishes],
        [each.error_message for each in finishes],
        [each.failed_reason for each in finishes],
        [each.retry_delay_s for each in finishes],
        [each.poison_document for each in finishes],
        [each.pid for each in finishes],
    )
