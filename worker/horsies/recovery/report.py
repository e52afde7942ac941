"""The report of a sweep and its audit entry."""

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
    """The steps of a sweep, in order."""

    LOST_WORKERS = "mark lost workers"
    CLAIMED = "requeue claimed"
    RUNNING = "recover running"
    PENDING = "expire pending"
    WORKFLOWS = "heal workflows"


EVERY_STEP: Final = tuple(SweepStep)


class SweepStatus(StrEnum):
    """How a sweep ended."""

    NOTHING = "nothing"
    DONE = "done"
    WOULD_ACT = "would_act"
    BUSY = "busy"
    """Another process was sweeping; nothing was checked."""
    OUTAGE_GRACE = "outage_grace"
    """Outage grace holds back every candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptTask:
    """A task that is past its threshold or `good_until`, and the decision about it."""

    task_id: UUID
    task_name: str
    queue_name: str
    state: TaskStatus
    owner_id: UUID | None
    owner_state: str | None
    """None for an unclaimed task, `missing` if the owner's row is gone."""
    heartbeat_age: timedelta | None
    effective_threshold: timedelta | None
    resilient: bool
    decision: DecisionKind
    reason: str
    code: str | None = None
    """The error code, for the decision `fail`."""
    retries_left: int = 0
    run_at: datetime | None = None
    held_until: datetime | None = None
    """When a hold or outage grace ends."""
    overdue_by: timedelta | None = None
    """How long an unclaimed task is past its `good_until`."""
    hook: str | None = None
    """The hook that decided."""
    applied: bool = False
    """False in a dry run, if the row changed in the meantime, and if the database rejected the update."""
    refusal: str | None = None
    """Why the database rejected the update."""

    @property
    def changes_state(self) -> bool:
        """Whether the decision changes the task's status."""
        return self.decision in _STATE_CHANGES

    @property
    def is_exempt(self) -> bool:
        """Whether only outage grace holds it back."""
        return self.decision is DecisionKind.LEAVE and self.reason == OUTAGE_GRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptWorkflow:
    """A healed run, and which case of healing it was."""

    id: UUID
    case: str
    task_id: UUID | None = None
    """The cancelled task, if the case was an orphaned task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    """A step that failed; the other steps still run."""

    step: SweepStep
    error: HorsiesError


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep did or, in a dry run, would do."""

    status: SweepStatus
    dry_run: bool
    thresholds: Thresholds
    hooks_loaded: bool = False
    recovered_count: int = 0
    """Recovered CLAIMED and RUNNING tasks; 0 in a dry run."""
    worker_ids: tuple[UUID, ...] = ()
    """Owners of the recovered tasks (in a dry run: of those to be recovered), and workers marked lost."""
    tasks: tuple[SweptTask, ...] = ()
    workflows: tuple[SweptWorkflow, ...] = ()
    warnings: tuple[str, ...] = ()
    failures: tuple[StepFailure, ...] = ()
    locked_runs: tuple[UUID, ...] = ()
    """Stuck runs that were locked by another transaction; left to the next sweep."""
    was_stopped: bool = False
    """Whether the sweep was stopped early; tasks recovered until then stay recovered."""

    @property
    def refused(self) -> tuple[SweptTask, ...]:
        """Tasks whose update the database rejected; every sweep tries them again."""
        return tuple(task for task in self.tasks if task.refusal is not None)


# Audit of manual sweeps


class SweepAudit(Protocol):
    """The audit entry of a sweep, updated with every change so that it is correct even if the sweep is interrupted."""

    async def begin(self) -> None:
        """Create the entry; called with the leader lock held, before any change."""
        ...

    async def add(self, transaction: Transaction, progress: AuditProgress) -> None:
        """Add changes made in this transaction."""
        ...


@dataclass(frozen=True, slots=True)
class AuditTrail:
    """Writes the audit entry of a sweep; does nothing if `record` is None."""

    database: Database
    record: SweepAudit | None

    async def begin(self) -> None:
        if self.record is not None:
            await self.record.begin()

    @property
    def task_recorder(self) -> RecordCallback | None:
        """Callback for the transactions that change tasks."""
        record = self.record
        if record is None:
            return None

        # In the transaction of the change, so that the audit entry never disagrees with the rows.
        async def record_tasks(transaction: Transaction, task_ids: Sequence[UUID]) -> None:
            await record.add(
                transaction, AuditProgress(matched=len(task_ids), affected=len(task_ids), task_ids=task_ids)
            )

        return record_tasks

    async def record_skipped(self, count: int) -> None:
        """Record tasks or runs that changed in the meantime, were locked, or whose update was rejected."""
        # In a transaction of its own: the update it reports has changed nothing.
        await self._add(count, AuditProgress(matched=count, skipped=count))

    async def record_healed(self, count: int) -> None:
        await self._add(count, AuditProgress(matched=count, affected=count))

    async def _add(self, count: int, progress: AuditProgress) -> None:
        record = self.record
        if count and record is not None:
            await self.database.run(lambda transaction: record.add(transaction, progress))
