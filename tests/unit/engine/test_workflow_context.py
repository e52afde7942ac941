"""What a task that belongs to a workflow finds in its parameters when a child runs it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

from horsies import (
    Horsies,
    NodeKey,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowMeta,
)
from horsies.engine.child.execution import TaskExecutor
from horsies.engine.pool.protocol import Assignment

app = Horsies()
META = {"workflow_id": "w", "task_index": 3, "task_name": "told"}


@app.task("day")
def day() -> TaskResult[date, TaskError]:
    return TaskResult(ok=date.min)


@app.task("later")
async def later(start: TaskResult[date, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=start.ok_value.year)


@app.task("told")
def told(workflow_ctx: WorkflowContext, workflow_meta: WorkflowMeta) -> TaskResult[list[str], TaskError]:
    found = workflow_ctx.result_for(NodeKey[date]("a")).ok_value
    return TaskResult(ok=[f"{found:%d.%m.%Y}", f"{workflow_meta.workflow_id}/{workflow_meta.task_index}"])


@app.task("lost")
def lost(workflow_ctx: WorkflowContext) -> TaskResult[bool, TaskError]:
    return TaskResult(ok=workflow_ctx.has_result(TaskNode(day)))


def assignment(task_name: str, **context: Any) -> Assignment:
    return Assignment(
        task_id="t",
        claim_token=1,
        task_name=task_name,
        args=b"[]",
        kwargs=b"{}",
        context=json.dumps(context).encode(),
        queue_name="default",
        attempt=1,
        retry_count=0,
        sent_at=datetime.now(UTC),
        worker_id="w",
    )


def test_a_task_is_told_of_its_run_and_finds_typed_results() -> None:
    upstream = {"a": {"result": {"ok": "2024-02-29"}, "task_name": "day"}}
    ending = TaskExecutor(app).run(assignment("told", workflow_meta=META, workflow_ctx=upstream))
    assert json.loads(ending.document) == {"ok": ["29.02.2024", "w/3"]}


async def test_a_coroutine_gets_the_result_of_another_node() -> None:
    ending = await TaskExecutor(app).run_async(assignment("later", args_from={"start": {"ok": "2024-02-29"}}))
    assert json.loads(ending.document) == {"ok": 2024}


def test_looking_up_a_node_without_an_id_has_a_code_of_its_own() -> None:
    ending = TaskExecutor(app).run(assignment("lost", workflow_meta=META, workflow_ctx={}))
    assert ending.error_code == "WORKFLOW_CTX_MISSING_ID"


def test_a_context_that_cannot_be_read_is_no_fault_of_the_task() -> None:
    ending = TaskExecutor(app).run(assignment("later", args_from=[1]))
    assert ending.error_code == "WORKER_SERIALIZATION_ERROR"
    assert ending.outcome == "WORKER_FAILURE"
