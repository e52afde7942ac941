"""Workflow parameters of a task that a child runs as a node."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

from msgspec import Raw

from horsies import (
    Horsies,
    NodeKey,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowMeta,
)
from horsies.engine.child.runner import Attempt, TaskExecutor
from tests.support import pool

app = Horsies()
META = {"workflow_id": "w", "task_index": 3, "task_name": "with_context"}


@app.task("day")
def day() -> TaskResult[date, TaskError]:
    return TaskResult(ok=date.min)


@app.task("later")
async def later(start: TaskResult[date, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=start.ok_value.year)


@app.task("with_context")
def with_context(workflow_ctx: WorkflowContext, workflow_meta: WorkflowMeta) -> TaskResult[list[str], TaskError]:
    result = workflow_ctx.result_for(NodeKey[date]("a")).ok_value
    return TaskResult(ok=[f"{result:%d.%m.%Y}", f"{workflow_meta.workflow_id}/{workflow_meta.task_index}"])


@app.task("missing_id")
def missing_id(workflow_ctx: WorkflowContext) -> TaskResult[bool, TaskError]:
    return TaskResult(ok=workflow_ctx.has_result(TaskNode(day)))


def attempt(task_name: str, **context: Any) -> Attempt:
    return Attempt(pool.assignment(task_name, context=Raw(json.dumps(context).encode())), "a worker")


def test_task_gets_run_metadata_and_typed_upstream_results() -> None:
    upstream = {"a": {"result": {"ok": "2024-02-29"}, "task_name": "day"}}
    outcome = TaskExecutor(app).run(attempt("with_context", workflow_meta=META, workflow_ctx=upstream))
    assert json.loads(outcome.document) == {"ok": ["29.02.2024", "w/3"]}


async def test_coroutine_gets_the_result_of_another_node() -> None:
    outcome = await TaskExecutor(app).run_async(attempt("later", args_from={"start": {"ok": "2024-02-29"}}))
    assert json.loads(outcome.document) == {"ok": 2024}


def test_node_without_id_fails_with_its_own_code() -> None:
    outcome = TaskExecutor(app).run(attempt("missing_id", workflow_meta=META, workflow_ctx={}))
    assert outcome.error_code == "WORKFLOW_CTX_MISSING_ID"


def test_undecodable_context_is_a_worker_failure() -> None:
    outcome = TaskExecutor(app).run(attempt("later", args_from=[1]))
    assert outcome.error_code == "WORKER_SERIALIZATION_ERROR"
    assert outcome.outcome == "WORKER_FAILURE"
