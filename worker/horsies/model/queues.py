"""Which queue a task goes to and how early it is claimed there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.errors import ConfigurationError, ErrorCode, TaskDefinitionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies.errors import HorsiesError

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 100
"""Priorities run from 1, claimed first, to 100."""


def queue_fault(queue_name: str | None, configured: Mapping[str, int] | None) -> HorsiesError | None:
    """What is wrong with a task's queue, given the priorities of the custom queues; None of them is DEFAULT mode."""
    if configured is None:
        if queue_name is None:
            return None
        return ConfigurationError(
            f"queue_name {queue_name!r} given, but the app has only its default queue",
            code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
            hint=f"leave queue_name out, or add [queues.{queue_name}] in horsies.toml or custom_queues in AppConfig",
        )
    if queue_name is None:
        return ConfigurationError(
            "queue_name is missing, and the app has custom queues",
            code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
            hint=f"choose one of: {', '.join(sorted(configured))}",
        )
    if queue_name not in configured:
        return TaskDefinitionError(
            f"queue {queue_name!r} is not configured",
            code=ErrorCode.TASK_INVALID_QUEUE,
            hint=f"choose one of: {', '.join(sorted(configured))}",
        )
    return None


def effective_priority(*, sent_with: int | None, task: int | None, queue: int | None) -> int:
    """The most particular priority that was given: of this send, of the task, of its queue, else 100."""
    for priority in (sent_with, task, queue):
        if priority is not None:
            return priority
    return DEFAULT_PRIORITY


def is_priority(value: object) -> bool:
    """Whether value is an int of 1..100; a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= DEFAULT_PRIORITY
