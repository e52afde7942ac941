"""Alias path of the workflows' types."""

from horsies.client.workflow.definition import WorkflowDefinition
from horsies.client.workflow.nodes import AnyNode, SubWorkflowNode, SuccessCase, SuccessPolicy, TaskNode, from_node
from horsies.client.workflow.spec import WorkflowSpec
from horsies.model.task_result import SubWorkflowError
from horsies.model.workflow.plan import (
    WORKFLOW_TASK_TERMINAL_STATES,
    WORKFLOW_TERMINAL_STATES,
    NodeKey,
    OnError,
    WorkflowContextMissingIdError,
    WorkflowStatus,
    WorkflowTaskStatus,
    slugify,
)
from horsies.model.workflow.views import SubWorkflowSummary, WorkflowContext, WorkflowMeta, WorkflowTaskInfo

__all__ = [
    "WORKFLOW_TASK_TERMINAL_STATES",
    "WORKFLOW_TERMINAL_STATES",
    "AnyNode",
    "NodeKey",
    "OnError",
    "SubWorkflowError",
    "SubWorkflowNode",
    "SubWorkflowSummary",
    "SuccessCase",
    "SuccessPolicy",
    "TaskNode",
    "WorkflowContext",
    "WorkflowContextMissingIdError",
    "WorkflowDefinition",
    "WorkflowMeta",
    "WorkflowSpec",
    "WorkflowStatus",
    "WorkflowTaskInfo",
    "WorkflowTaskStatus",
    "from_node",
    "slugify",
]
