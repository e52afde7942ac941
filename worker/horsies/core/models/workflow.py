"""Alias path of the types of workflows, their runs and handles."""

# ruff: noqa: PLC0414  # the alias tells type checkers that the name is exported

from horsies import WORKFLOW_TASK_TERMINAL_STATES as WORKFLOW_TASK_TERMINAL_STATES
from horsies import WORKFLOW_TERMINAL_STATES as WORKFLOW_TERMINAL_STATES
from horsies import AnyNode as AnyNode
from horsies import HandleErrorCode as HandleErrorCode
from horsies import HandleOperationError as HandleOperationError
from horsies import HandleResult as HandleResult
from horsies import NodeKey as NodeKey
from horsies import OnError as OnError
from horsies import SubWorkflowError as SubWorkflowError
from horsies import SubWorkflowNode as SubWorkflowNode
from horsies import SubWorkflowSummary as SubWorkflowSummary
from horsies import SuccessCase as SuccessCase
from horsies import SuccessPolicy as SuccessPolicy
from horsies import TaskNode as TaskNode
from horsies import WorkflowContext as WorkflowContext
from horsies import WorkflowContextMissingIdError as WorkflowContextMissingIdError
from horsies import WorkflowDefinition as WorkflowDefinition
from horsies import WorkflowHandle as WorkflowHandle
from horsies import WorkflowMeta as WorkflowMeta
from horsies import WorkflowSpec as WorkflowSpec
from horsies import WorkflowStartError as WorkflowStartError
from horsies import WorkflowStartErrorCode as WorkflowStartErrorCode
from horsies import WorkflowStartResult as WorkflowStartResult
from horsies import WorkflowStatus as WorkflowStatus
from horsies import WorkflowTaskInfo as WorkflowTaskInfo
from horsies import WorkflowTaskStatus as WorkflowTaskStatus
from horsies import WorkflowValidationError as WorkflowValidationError
from horsies import cancel_workflow as cancel_workflow
from horsies import cancel_workflow_sync as cancel_workflow_sync
from horsies import from_node as from_node
from horsies import pause_workflow as pause_workflow
from horsies import pause_workflow_sync as pause_workflow_sync
from horsies import resume_workflow as resume_workflow
from horsies import resume_workflow_sync as resume_workflow_sync
from horsies import slugify as slugify
from horsies import start_workflow as start_workflow
from horsies import start_workflow_async as start_workflow_async
