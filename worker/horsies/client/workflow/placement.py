"""What can be wrong with the app, the queue, the priority or the deadline of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.client.workflow.nodes import TaskNode
from horsies.errors import ErrorCode, WorkflowValidationError
from horsies.model.expiry import check_good_until
from horsies.model.queues import is_priority, queue_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horsies.client.workflow.draft import Draft


class ForeignTask(WorkflowValidationError):
    """A node runs a task of another app, which the workers of this one do not know."""


def ownership_faults(draft: Draft) -> Iterator[WorkflowValidationError]:
    for node in (each for each in draft.nodes if isinstance(each, TaskNode)):
        if node.fn.host is not draft.host:
            yield ForeignTask(
                f"node {node.node_id!r}: {node.name!r} is a task of another app",
                code=ErrorCode.TASK_NOT_REGISTERED,
                hint="the nodes of a workflow are tasks of one app",
            )


def placement_faults(draft: Draft) -> Iterator[WorkflowValidationError]:
    for node in (each for each in draft.nodes if isinstance(each, TaskNode)):
        where = f"node {node.node_id!r}"
        if fault := queue_fault(node.queue or node.fn.definition.options.queue_name, draft.queues):
            text = f"{where}: {fault.message}"
            yield WorkflowValidationError(text, code=ErrorCode.WORKFLOW_UNRESOLVED_QUEUE, hint=fault.help_text)
        if node.priority is not None and not is_priority(node.priority):
            text = f"{where}: priority must be a whole number of 1 to 100, 1 first"
            yield WorkflowValidationError(text, code=ErrorCode.WORKFLOW_UNRESOLVED_PRIORITY)
        if node.good_until is None:
            continue
        try:
            check_good_until(node.good_until)
        except ValueError as refused:
            # No code is for this alone; it is a value of the node that cannot be stored.
            code = ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE
            yield WorkflowValidationError(f"{where}: {refused}", code=code)
