"""Alias path of the workflows' types."""

from horsies.client.workflow.definition import WorkflowDefinition
from horsies.client.workflow.nodes import AnyNode, SubWorkflowNode, TaskNode, from_node
from horsies.client.workflow.policies import SuccessCase, SuccessPolicy
from horsies.client.workflow.spec import WorkflowSpec
from horsies.model.task_error import SubWorkflowError
from horsies.model.workflow.context import WorkflowContext, WorkflowMeta
from horsies.model.workflow.info import SubWorkflowSummary, WorkflowTaskInfo
from horsies.model.workflow.names import NodeKey, WorkflowContextMissingIdError, slugify
from horsies.model.workflow.plan import OnError
from horsies.model.workflow.status import (
    WORKFLOW_TASK_TERMINAL_STATES,
    WORKFLOW_TERMINAL_STATES,
    WorkflowStatus,
    WorkflowTaskStatus,
)

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
