"""The report of a sweep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import EffectivePolicy, Thresholds
from horsies.model.task import TaskStatus

OUTAGE_GRACE: Final = "outage_grace"
GOOD_UNTIL: Final = "GOOD_UNTIL"

_LEAVE_REASONS: Final = {
    "fresh": "not stale",
    OUTAGE_GRACE: "outage grace period",
    "disabled": "disabled in the settings",
    "hook_skip": "held by a recovery hook",
}
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
    def description(self) -> str:
        """The decision and its reason as a sentence."""
        if self.changes_state:
            code = f" with {self.code}" if self.code else ""
            return f"a sweep would {self.decision} it{code}: {self.reason or 'stale'}"
        until = "" if self.held_until is None else f" until {self.held_until.astimezone(UTC):%H:%M:%S}Z"
        return f"a sweep would not change it{until}: {_LEAVE_REASONS.get(self.reason, self.reason)}"

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


@dataclass(slots=True, kw_only=True)
class SweepReportBuilder:
    """Collects the results of a sweep."""

    effective_policy: EffectivePolicy
    dry_run: bool
    hooks_loaded: bool
    tasks: list[SweptTask] = field(default_factory=list[SweptTask])
    workflows: list[SweptWorkflow] = field(default_factory=list[SweptWorkflow])
    lost_workers: list[UUID] = field(default_factory=list[UUID])
    warnings: list[str] = field(default_factory=list[str])
    failures: list[StepFailure] = field(default_factory=list[StepFailure])
    locked_runs: list[UUID] = field(default_factory=list[UUID])
    was_stopped: bool = False

    @property
    def counts(self) -> dict[str, object]:
        """Counts for the `sweep_finished` event."""
        decisions = Counter(str(task.decision) for task in self.tasks if task.applied)
        return {**decisions, "workflows": len(self.workflows), "lost_workers": len(self.lost_workers)}

    def build(self) -> SweepReport:
        recovered = [task for task in self._changed if task.state is not TaskStatus.PENDING]
        owners = {task.owner_id for task in recovered if task.owner_id is not None}
        status = self._status
        warnings = [*self.effective_policy.warnings, *self.warnings]
        # With status OUTAGE_GRACE every task is held back, so the status says it already.
        if (held_back := self._exempt_count) and status is not SweepStatus.OUTAGE_GRACE:
            warnings.append(
                f"stale tasks held back by outage grace: {held_back} (no worker connected for a full threshold)"
            )
        warnings += [
            f"run {run_id} is locked by another transaction, left to the next sweep" for run_id in self.locked_runs
        ]
        return SweepReport(
            status=status,
            dry_run=self.dry_run,
            thresholds=self.effective_policy.thresholds,
            hooks_loaded=self.hooks_loaded,
            recovered_count=0 if self.dry_run else len(recovered),
            worker_ids=tuple(sorted(owners | set(self.lost_workers))),
            tasks=tuple(self.tasks),
            workflows=tuple(self.workflows),
            warnings=tuple(warnings),
            failures=tuple(self.failures),
            locked_runs=tuple(self.locked_runs),
            was_stopped=self.was_stopped,
        )

    @property
    def _changed(self) -> list[SweptTask]:
        """Tasks whose status was changed or, in a dry run, would be."""
        return [task for task in self.tasks if task.changes_state and (self.dry_run or task.applied)]

    @property
    def _exempt_count(self) -> int:
        return sum(task.is_exempt for task in self.tasks)

    @property
    def _status(self) -> SweepStatus:
        if self._changed or self.workflows or self.lost_workers:
            return SweepStatus.WOULD_ACT if self.dry_run else SweepStatus.DONE
        if self.tasks and self._exempt_count == len(self.tasks):
            return SweepStatus.OUTAGE_GRACE
        return SweepStatus.NOTHING
