"""Alias path of the workflows' types."""

from horsies.model.task_error import SubWorkflowError

__all__ = ["SubWorkflowError"]
