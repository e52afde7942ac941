"""Why nothing was done to a run, and what its operator can do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.errors import HorsiesError, NotFound, Refused
from horsies.model.workflow.status import WORKFLOW_TERMINAL_STATES, WorkflowStatus

if TYPE_CHECKING:
    from uuid import UUID

    from horsies_ops.reads.workflows import WorkflowHead


def refusal(action: str, run_id: UUID, run: WorkflowHead | None) -> HorsiesError:
    """The error that says so, of a run as it stands; None is a run that does not exist."""
    if run is None:
        return NotFound(f"there is no run {run_id}", hint="horsies workflow list shows the runs there are")
    status = WorkflowStatus(run.status)
    match action:
        case "retry_workflow":
            return _no_retry(run, status)
        case "pause_workflow" if status is WorkflowStatus.PAUSED:
            return Refused(f"the run {run.id} is PAUSED already", hint=_resumed(run))
        case "resume_workflow" if status is WorkflowStatus.RUNNING:
            return Refused(f"the run {run.id} is RUNNING, not PAUSED", hint=_shown(run))
        case _ if status in WORKFLOW_TERMINAL_STATES:
            return Refused(f"the run {run.id} has ended: it is {status}", hint=_begun_again(run, status))
        case _:
            return Refused(f"the run {run.id} was in another state, and has just become {status}", hint="try again")


def _no_retry(run: WorkflowHead, status: WorkflowStatus) -> Refused:
    if run.parent_id is not None:
        message = f"the run {run.id} is a step of another, and begins again with that"
        return Refused(message, hint=f"horsies workflow retry {run.root_id}")
    if status is WorkflowStatus.PAUSED:
        return Refused(f"the run {run.id} has not ended: it is PAUSED", hint=f"{_resumed(run)}; cancel ends it")
    if status not in WORKFLOW_TERMINAL_STATES:
        hint = f"wait for its end, or horsies workflow cancel {run.id} first"
        return Refused(f"the run {run.id} has not ended: it is {status}", hint=hint)
    return Refused(f"the run {run.id} is {status}, and none of its nodes has to run again", hint=_shown(run))


def _begun_again(run: WorkflowHead, status: WorkflowStatus) -> str:
    if status is WorkflowStatus.COMPLETED:
        return _shown(run)
    return f"horsies workflow retry {run.root_id} runs what failed or was skipped"


def _resumed(run: WorkflowHead) -> str:
    return f"horsies workflow resume {run.id} lets it go on"


def _shown(run: WorkflowHead) -> str:
    return f"horsies workflow show {run.id} shows how it stands"
