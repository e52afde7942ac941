"""Workflows of tasks that write down when they begin and end; the app of workers under test, as `ledger_app` is."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

from horsies import (
    Horsies,
    RetryPolicy,
    SubWorkflowNode,
    TaskError,
    TaskFunction,
    TaskResult,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowSpec,
    from_node,
)
from tests.support.ledger_app import CONFIG, URL, ledger_app, on_record


def step(value: int, seconds: float = 0.0) -> TaskResult[int, TaskError]:
    with on_record():
        time.sleep(seconds)
        return TaskResult(ok=value)


def double(number: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    with on_record():
        return TaskResult(ok=2 * number.unwrap())


def total(workflow_ctx: WorkflowContext | None = None) -> TaskResult[int, TaskError]:
    """The sum of all it may read."""
    with on_record():
        assert workflow_ctx is not None
        return TaskResult(ok=sum(each.result(None).unwrap() for each in workflow_ctx.upstream.values()))  # pyright: ignore[reportOptionalMemberAccess]


def fail(code: str) -> TaskResult[int, TaskError]:
    with on_record():
        return TaskResult(err=TaskError(error_code=code))


LOCATOR = f"{Path(__file__)}:app"
TASKS = {"step": step, "double": double, "total": total, "fail": fail}
CRASHES = RetryPolicy.fixed([1, 1], auto_retry_for=["WORKER_CRASHED"], jitter=False)


def add_flows(app: Horsies) -> None:
    for name, function in TASKS.items():
        app.task(f"flow.{name}", retry_policy=CRASHES)(function)


class Doubled(WorkflowDefinition[int]):
    """A sub-workflow of two steps; its tasks are those of the app that builds it."""

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
    add_flows(app)


# Workflows of the tasks of `flow_app`, made for whichever app asks.


def diamond(app: Horsies, *, seconds: float = 0.0) -> WorkflowSpec[int]:
    """1, then 2 and 4 beside each other, then their sum: 6."""
    first = task_of(app, "step").node(node_id="first")(value=1, seconds=seconds)
    left = task_of(app, "double").node(node_id="left")(number=from_node(first))
    right = task_of(app, "step").node(node_id="right", waits_for=[first])(value=4, seconds=seconds)
    both = [left, right]
    last = task_of(app, "total").node(node_id="sum", waits_for=both, workflow_ctx_from=both)()
    return app.workflow("diamond", [first, left, right, last], output=last, definition_key="tests.diamond")


def nested(app: Horsies, *, seconds: float = 0.0) -> WorkflowSpec[int]:
    """5, doubled by a sub-workflow, and doubled again: 20."""
    first = task_of(app, "step").node(node_id="first")(value=5, seconds=seconds)
    child: SubWorkflowNode[int] = SubWorkflowNode(Doubled, kwargs={"value": 5}, waits_for=[first], node_id="child")
    last = task_of(app, "double").node(node_id="last")(number=from_node(child))
    return app.workflow("nested", [first, child, last], output=last, definition_key="tests.nested")
