"""What an app knows of its tasks: their definitions, checked when they are made, found by name."""

from horsies.registry.definition import TaskDefinition, TaskOptions, TaskRegistry, define_task

__all__ = ["TaskDefinition", "TaskOptions", "TaskRegistry", "define_task"]
