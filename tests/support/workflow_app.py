"""`ledger_app` with workflow tasks, for tests of workers that run workflows."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

from horsies import (
    Horsies,
    RetryPolicy,
    TaskError,
    TaskFunction,
    TaskResult,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowSpec,
    from_node,
)
from tests.support.ledger_app import CONFIG, URL, ledger_app, recorded


def step(value: int, seconds: float = 0.0) -> TaskResult[int, TaskError]:
    with recorded():
        time.sleep(seconds)
        return TaskResult(ok=value)


def double(number: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    with recorded():
        return TaskResult(ok=2 * number.unwrap())


def total(workflow_ctx: WorkflowContext | None = None) -> TaskResult[int, TaskError]:
    """Sum of all upstream results."""
    with recorded():
        assert workflow_ctx is not None
        return TaskResult(ok=sum(node.result(None).unwrap() for node in workflow_ctx.upstream.values()))  # pyright: ignore[reportOptionalMemberAccess]


def fail(code: str) -> TaskResult[int, TaskError]:
    with recorded():
        return TaskResult(err=TaskError(error_code=code))


LOCATOR = f"{Path(__file__)}:app"
TASKS = {"step": step, "double": double, "total": total, "fail": fail}
CRASHES = RetryPolicy.fixed([1, 1], auto_retry_for=["WORKER_CRASHED"], jitter=False)


def register_workflow_tasks(app: Horsies) -> None:
    for name, function in TASKS.items():
        app.task(f"flow.{name}", retry_policy=CRASHES)(function)


class Doubled(WorkflowDefinition[int]):
    """A sub-workflow of two steps, with the tasks of the app that builds it."""

    name = "doubled"
    definition_key = "tests.doubled"

    @classmethod
    def build_with(cls, app: Horsies, value: int) -> WorkflowSpec[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first = task_of(app, "step").node()(value=value)
        last = task_of(app, "double").node()(number=from_node(first))
        return app.workflow("doubled", [first, last], output=last, definition_key="tests.doubled")


def task_of(app: Horsies, name: str) -> TaskFunction[Any, int]:
    return cast("TaskFunction[Any, int]", app.tasks[f"flow.{name}"])


if URL in os.environ:
    app = ledger_app(os.environ[URL], **json.loads(os.environ.get(CONFIG, "{}")))
    register_workflow_tasks(app)
