"""The errors that the engine itself writes into nodes and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.codec.failure import stored_error
from horsies.codec.wire import canonical
from horsies.model.codes import BuiltInTaskCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.task_error import SubWorkflowError, TaskError

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.store.flows import NodeRow

_MESSAGES: dict[BuiltInTaskCode, str] = {
    RetrievalCode.RESULT_NOT_AVAILABLE: "the task left no result, or somebody deleted it",
    OperationalErrorCode.WORKER_CRASHED: "the task ended without a result that can be read",
    OutcomeCode.TASK_CANCELLED: "the task was cancelled",
    OutcomeCode.TASK_EXPIRED: "the task was not started before its good_until",
    OutcomeCode.WORKFLOW_FAILED: "the run has no nodes",
    OutcomeCode.WORKFLOW_CANCELLED: "the run was cancelled",
    OutcomeCode.WORKFLOW_EXPIRED: "the run was paused for too long",
    OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET: "no case of the success policy is met",
}


def error_text(error: TaskError) -> str:
    """An error as it is stored."""
    return canonical(stored_error(error))


def error_of(code: BuiltInTaskCode) -> str:
    return error_text(TaskError(error_code=code, message=_MESSAGES[code]))


def error_of_child(workflow_id: UUID | None) -> str:
    """Of the node whose child did not complete; the summary is filled in by the statement that stores it."""
    message = "the sub-workflow did not complete"
    return error_text(
        SubWorkflowError(
            error_code=OutcomeCode.SUBWORKFLOW_FAILED, message=message, sub_workflow_id=str(workflow_id or "")
        )
    )


def error_of_skip(index: int, because: NodeRow | None) -> str:
    """Of a node that never ran: what those who read it are told, and which node is behind it."""
    if because is None:
        return error_of(OutcomeCode.WORKFLOW_CANCELLED)
    data = {"dependency_index": index, "because": because.task_index}
    message = f"skipped, for {because.node_id} did not complete"
    return error_text(TaskError(error_code=OutcomeCode.UPSTREAM_SKIPPED, message=message, data=data))
