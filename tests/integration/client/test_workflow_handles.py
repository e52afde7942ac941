"""Starts and handles of workflow runs on a real server."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from horsies import (
    ContractCode,
    Horsies,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowHandle,
    WorkflowStartErrorCode,
)
from horsies.testing import drain_async


async def test_id_of_another_workflows_run_is_rejected(app: Horsies) -> None:
    @app.task("one")
    def one() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    first, other = (app.workflow("same name", [one.node()()], definition_key=key) for key in ("a.v1", "b.v1"))
    workflow_id = str(uuid4())
    started = (await first.start_async(workflow_id)).unwrap()
    assert (await first.start_async(workflow_id)).unwrap().workflow_id == started.workflow_id
    error = (await other.start_async(workflow_id)).unwrap_err()
    assert (error.code, error.retryable) == (WorkflowStartErrorCode.VALIDATION_FAILED, False)
    assert error.message == f"workflow {workflow_id} is a run of 'a.v1', not of 'b.v1'"
    assert len((await started.tasks_async()).unwrap()) == 1


async def test_node_without_an_id_is_an_error_result(app: Horsies) -> None:
    @app.task("one")
    def one() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    handle = WorkflowHandle[Any](uuid4(), app.get_broker())
    error = (await handle.result_for_async(one.node()())).err_value
    assert error.error_code is ContractCode.WORKFLOW_CTX_MISSING_ID
    assert error.message is not None
    assert error.message.startswith("node 'one' has no id")


async def test_results_reach_the_keywords_of_a_task(app: Horsies) -> None:
    @app.task("number")
    def number(value: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=value) if value else TaskResult(err=TaskError(error_code="NO_VALUE"))

    @app.task("collect")
    def collect(**results: Any) -> TaskResult[dict[str, Any], TaskError]:
        return TaskResult(ok={name: result.ok for name, result in results.items()})

    sources = {f"n{value}": number.node()(value=value) for value in range(3)}
    last = TaskNode(collect, args_from=sources, waits_for=list(sources.values()), allow_failed_deps=True)
    spec = app.workflow("collected", [*sources.values(), last], output=last, definition_key="collected.v1")
    handle = (await spec.start_async()).unwrap()
    await drain_async(app)
    assert (await handle.result_for_async(last)).ok == {"n0": None, "n1": 1, "n2": 2}
