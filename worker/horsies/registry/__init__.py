"""Task definitions, validated when they are created, and the registry of an app's tasks."""

from horsies.registry.definition import TaskDefinition, TaskOptions, TaskRegistry, define_task

__all__ = ["TaskDefinition", "TaskOptions", "TaskRegistry", "define_task"]
