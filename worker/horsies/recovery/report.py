"""The report of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import Thresholds
from horsies.model.task import TaskStatus

OUTAGE_GRACE: Final = "outage_grace"
GOOD_UNTIL: Final = "GOOD_UNTIL"

PAST_TENSE: Final[Mapping[DecisionKind, str]] = {
    DecisionKind.REQUEUE: "requeued",
    DecisionKind.RETRY: "retried",
    DecisionKind.FAIL: "failed",
    DecisionKind.EXPIRE: "expired",
}
"""The decisions that change the status of a task, as words for reports."""


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
    decision: DecisionKind
    reason: str
    owner_id: UUID | None = None
    """None for an unclaimed task, as in the next three fields."""
    owner_state: str | None = None
    """`missing` if the owner's row is gone."""
    heartbeat_age: timedelta | None = None
    effective_threshold: timedelta | None = None
    resilient: bool = False
    code: str | None = None
    """The error code, for the decision `fail`."""
    max_retries: int = 0
    retries_left: int = 0
    run_at: datetime | None = None
    held_until: datetime | None = None
    """When a hold or outage grace ends."""
    due_in: timedelta | None = None
    """Only in a forecast: time until the decision, if the task sends no further heartbeat."""
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
        return self.decision in PAST_TENSE

    @property
    def phrase(self) -> str:
        """The decision in a few words, such as `retry, attempt 2 of 3` or `fail with WORKER_CRASHED`."""
        if self.decision is DecisionKind.RETRY:
            return f"retry, attempt {self.next_attempt} of {self.max_retries + 1}"
        return f"{self.decision} with {self.code}" if self.code else self.decision.value

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that a retry starts."""
        return self.max_retries - self.retries_left + 2

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
    worker_ids: tuple[str, ...] = ()
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
