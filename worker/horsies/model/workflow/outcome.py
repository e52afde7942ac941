"""How a run ends once all of its nodes have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.model.codes import OutcomeCode
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horsies.model.workflow.plan import SuccessRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run. A failure has the error of the node `error_from`, or a `code` where no node is to blame."""

    status: WorkflowStatus
    error_from: int | None = None
    code: OutcomeCode | None = None


_COMPLETED = Outcome(status=WorkflowStatus.COMPLETED)


def outcome_of(statuses: Sequence[WorkflowTaskStatus], rule: SuccessRule | None) -> Outcome:
    """The outcome for nodes that are all terminal, given by index."""
    if not statuses:
        return Outcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_FAILED)
    if rule is not None:
        return _by_rule(statuses, rule)
    failed = first_failed(statuses, range(len(statuses)))
    return _COMPLETED if failed is None else Outcome(status=WorkflowStatus.FAILED, error_from=failed)


def _by_rule(statuses: Sequence[WorkflowTaskStatus], rule: SuccessRule) -> Outcome:
    if any(all(statuses[index] is WorkflowTaskStatus.COMPLETED for index in case) for case in rule.cases):
        return _COMPLETED
    failed = first_failed(statuses, (index for case in rule.cases for index in case))
    if failed is not None:
        return Outcome(status=WorkflowStatus.FAILED, error_from=failed)
    return Outcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET)


def first_failed(statuses: Sequence[WorkflowTaskStatus], indexes: Iterable[int]) -> int | None:
    """The first of these nodes that is FAILED."""
    return next((index for index in indexes if statuses[index] is WorkflowTaskStatus.FAILED), None)


def last_nodes(dependencies: Sequence[Sequence[int]]) -> list[int]:
    """The nodes that nobody waits for, whose results are the result of a run without an output node."""
    waited_for = {index for each in dependencies for index in each}
    return [index for index in range(len(dependencies)) if index not in waited_for]
