"""What a sweep has come to so far, and the report that it makes in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.model.task import TaskStatus
from horsies.recovery.report import StepFailure, SweepReport, SweepStatus, SweptTask, SweptWorkflow

if TYPE_CHECKING:
    from horsies.model.recovery.judging import Ruling


@dataclass(slots=True, kw_only=True)
class Tally:
    """One sweep's findings and deeds."""

    ruling: Ruling
    dry_run: bool
    hooks_loaded: bool
    tasks: list[SweptTask] = field(default_factory=list[SweptTask])
    workflows: list[SweptWorkflow] = field(default_factory=list[SweptWorkflow])
    lost: list[UUID] = field(default_factory=list[UUID])
    warnings: list[str] = field(default_factory=list[str])
    failures: list[StepFailure] = field(default_factory=list[StepFailure])
    held: list[UUID] = field(default_factory=list[UUID])
    was_stopped: bool = False

    @property
    def counts(self) -> dict[str, object]:
        """How many of each, for the event that tells of the sweep."""
        decisions = Counter(str(task.decision) for task in self.tasks if task.applied)
        return {**decisions, "workflows": len(self.workflows), "lost_workers": len(self.lost)}

    def report(self) -> SweepReport:
        recovered = [task for task in self._moved if task.state is not TaskStatus.PENDING]
        owners = {task.owner_id for task in recovered if task.owner_id is not None}
        status = self._status
        return SweepReport(
            status=status,
            dry_run=self.dry_run,
            thresholds=self.ruling.thresholds,
            hooks_loaded=self.hooks_loaded,
            recovered_count=0 if self.dry_run else len(recovered),
            worker_ids=tuple(sorted(owners | set(self.lost))),
            tasks=tuple(self.tasks),
            workflows=tuple(self.workflows),
            warnings=(
                *self.ruling.warnings,
                *self.warnings,
                *self._held_back(status),
                *map(_in_another_hand, self.held),
            ),
            failures=tuple(self.failures),
            held=tuple(self.held),
            was_stopped=self.was_stopped,
        )

    @property
    def _moved(self) -> list[SweptTask]:
        """Those that were moved, or would be."""
        return [task for task in self.tasks if task.is_due and (self.dry_run or task.applied)]

    @property
    def _spared(self) -> int:
        return sum(task.is_spared for task in self.tasks)

    @property
    def _status(self) -> SweepStatus:
        if self._moved or self.workflows or self.lost:
            return SweepStatus.WOULD_ACT if self.dry_run else SweepStatus.DONE
        if self.tasks and self._spared == len(self.tasks):
            return SweepStatus.AMNESTY
        return SweepStatus.NOTHING

    def _held_back(self, status: SweepStatus) -> list[str]:
        if not self._spared or status is SweepStatus.AMNESTY:
            return []
        return [f"{self._spared} held back: nobody has listened for a whole threshold yet"]


def _in_another_hand(workflow_id: UUID) -> str:
    return f"run {workflow_id} is held by another transaction, left to the next sweep"
