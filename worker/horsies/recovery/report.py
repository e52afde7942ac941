"""What a sweep did, or would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import Thresholds
from horsies.model.task import TaskStatus
from horsies.store.operators import AuditProgress

if TYPE_CHECKING:
    from horsies.store.database import Database, Transaction
    from horsies.store.recovery import RecordCallback


OUTAGE_GRACE: Final = "outage_grace"
GOOD_UNTIL: Final = "GOOD_UNTIL"

_STATE_CHANGES = frozenset({DecisionKind.REQUEUE, DecisionKind.RETRY, DecisionKind.FAIL, DecisionKind.EXPIRE})


class SweepStep(StrEnum):
    """The parts of a sweep, in their order."""

    LOST_WORKERS = "mark lost workers"
    CLAIMED = "requeue claimed"
    RUNNING = "settle running"
    PENDING = "expire pending"
    WORKFLOWS = "heal workflows"


EVERY_STEP: Final = tuple(SweepStep)


class SweepStatus(StrEnum):
    """How a sweep ended."""

    NOTHING = "nothing"
    DONE = "done"
    WOULD_ACT = "would_act"
    BUSY = "busy"
    """Somebody else was sweeping; nothing was looked at."""
    OUTAGE_GRACE = "outage_grace"
    """Every candidate is held back, for nobody has listened long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptTask:
    """One task that is not simply within its limit, and the verdict on it."""

    task_id: UUID
    task_name: str
    queue_name: str
    state: TaskStatus
    owner_id: UUID | None
    owner_state: str | None
    """None for a task that nobody holds, `missing` where the owner's row is gone."""
    heartbeat_age: timedelta | None
    effective_threshold: timedelta | None
    resilient: bool
    decision: DecisionKind
    reason: str
    code: str | None = None
    """The error code that it fails with."""
    retries_left: int = 0
    run_at: datetime | None = None
    held_until: datetime | None = None
    """How long a hold or outage grace lasts."""
    overdue_by: timedelta | None = None
    """How long a task that nobody holds is past its good_until."""
    hook: str | None = None
    """The hook whose answer this is."""
    applied: bool = False
    """False in a dry run, and where another hand was quicker or the database refused."""
    refusal: str | None = None
    """Why the database would not have the verdict written."""

    @property
    def changes_state(self) -> bool:
        """Whether the verdict is to move the task."""
        return self.decision in _STATE_CHANGES

    @property
    def is_exempt(self) -> bool:
        """Whether nothing but outage grace holds it back."""
        return self.decision is DecisionKind.LEAVE and self.reason == OUTAGE_GRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptWorkflow:
    """A run that was put right, and in which case of healing."""

    id: UUID
    case: str
    task_id: UUID | None = None
    """The task that no node of the run waits for, where it was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    """A step that could not be carried out; the others were."""

    step: SweepStep
    error: HorsiesError


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """`recovered_count` counts CLAIMED and RUNNING tasks that were settled; none in a dry run."""

    status: SweepStatus
    dry_run: bool
    thresholds: Thresholds
    hooks_loaded: bool = False
    recovered_count: int = 0
    worker_ids: tuple[UUID, ...] = ()
    """Owners of what was settled or would be, and workers found lost."""
    tasks: tuple[SweptTask, ...] = ()
    workflows: tuple[SweptWorkflow, ...] = ()
    warnings: tuple[str, ...] = ()
    failures: tuple[StepFailure, ...] = ()
    locked_runs: tuple[UUID, ...] = ()
    """Runs to be put right that another transaction held; the next sweep has them."""
    was_stopped: bool = False
    """Whether somebody ended it before it had seen everything; what it settled until then is settled."""

    @property
    def refused(self) -> tuple[SweptTask, ...]:
        """The tasks whose verdict the database would not have written; each sweep tries them again."""
        return tuple(task for task in self.tasks if task.refusal is not None)


# What a sweep at an operator's word leaves on record, while it goes on.


class SweepAudit(Protocol):
    """The one row of a sweep, true at every moment: what cuts a sweep off does not cut off what is known of it."""

    async def begin(self) -> None:
        """The turn is ours, and nothing has been done yet."""
        ...

    async def add(self, transaction: Transaction, progress: AuditProgress) -> None:
        """Some of it is done, in this transaction."""
        ...


@dataclass(frozen=True, slots=True)
class AuditTrail:
    """Where one sweep notes its deeds; without a record, nowhere."""

    database: Database
    record: SweepAudit | None

    async def begin(self) -> None:
        if self.record is not None:
            await self.record.begin()

    @property
    def task_recorder(self) -> RecordCallback | None:
        """For the transactions that move tasks."""
        record = self.record
        if record is None:
            return None

        async def note(transaction: Transaction, task_ids: Sequence[UUID]) -> None:
            await record.add(
                transaction, AuditProgress(matched=len(task_ids), affected=len(task_ids), task_ids=task_ids)
            )

        return note

    async def record_skipped(self, number: int) -> None:
        """So many were to be moved, and another hand was quicker or the database refused."""
        await self._add(number, AuditProgress(matched=number, skipped=number))

    async def record_healed(self, number: int) -> None:
        await self._add(number, AuditProgress(matched=number, affected=number))

    async def _add(self, number: int, done: AuditProgress) -> None:
        record = self.record
        if number and record is not None:
            await self.database.run(lambda transaction: record.add(transaction, done))
