"""Calling a task's function, so that whatever happens in it is a result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from horsies.codec.result import AnyResult, checked_result
from horsies.model.mapping import ExceptionRules, error_from
from horsies.model.task_result import TaskResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horsies.registry.definition import TaskDefinition

# What user code may raise and still have failed as a task: everything but the orders to this process to stop.
FAILURES = (Exception, SystemExit, asyncio.CancelledError)


def call(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], *, app: ExceptionRules) -> AnyResult:
    """Run a `def` task here and now."""
    try:
        # The check is inside: validators, and whatever else it touches of the value, are the task's code as well.
        return checked_result(task.function(*args, **kwargs), task.codec.ok)
    except FAILURES as raised:
        return TaskResult(err=error_from(raised, task=task.exception_rules, app=app))


async def call_async(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], *, app: ExceptionRules
) -> AnyResult:
    """Run an `async def` task on the running loop."""
    try:
        return checked_result(await task.function(*args, **kwargs), task.codec.ok)
    except FAILURES as raised:
        if isinstance(raised, asyncio.CancelledError) and _was_cancelled():
            raise
        return TaskResult(err=error_from(raised, task=task.exception_rules, app=app))


def _was_cancelled() -> bool:
    """Whether someone asked the running task to stop, as opposed to its code raising the error by itself."""
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0
