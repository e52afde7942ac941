"""A small app to make workflows of, and what a refused one says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    QueueMode,
    RetryPolicy,
    TaskError,
    TaskResult,
    WorkflowContext,
    WorkflowMeta,
    WorkflowValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

app = Horsies(AppConfig())

queued = Horsies(
    AppConfig(
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[CustomQueueConfig(name="mail", priority=7), CustomQueueConfig(name="slow", priority=50)],
    )
)


@app.task("add")
def add(a: int, b: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("total")
def total(
    first: TaskResult[int, TaskError], second: TaskResult[int, TaskError] | None = None
) -> TaskResult[int, TaskError]:
    return TaskResult(ok=first.ok_value + (second.ok_value if second else 0))


@app.task("spell")
def spell(number: TaskResult[str, TaskError]) -> TaskResult[str, TaskError]:
    return number


@app.task("report")
def report(
    title: str, workflow_ctx: WorkflowContext | None = None, workflow_meta: WorkflowMeta | None = None
) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{title} {workflow_ctx} {workflow_meta}")


@queued.task(
    "post",
    queue_name="mail",
    retry_policy=RetryPolicy.fixed([5], auto_retry_for=["BUSY"]),
    timeout_ms=9000,
    flags=["infrastructure_resilient"],
)
def post(to: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=to)


def refusal_of(make: Callable[[], Any]) -> list[object]:
    """The codes of all faults that `make` is refused for, in order."""
    with pytest.raises(WorkflowValidationError) as refused:
        make()
    return [fault.code for fault in refused.value.faults]
