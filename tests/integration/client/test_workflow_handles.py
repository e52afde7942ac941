"""Starts and handles of workflow runs on a real server."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from horsies import (
    ContractCode,
    ErrorCode,
    Horsies,
    NodeKey,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowHandle,
    WorkflowStartErrorCode,
    WorkflowValidationError,
    chain,
    group,
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


async def test_wait_that_times_out_says_so_and_ends_bursts(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horsies.client.delivery.FLUSH_AFTER_S", 3600.0)
    monkeypatch.setattr("horsies.client.delivery.BURST_LENGTH", 1)
    monkeypatch.setattr("horsies.client.delivery.BURST_GAP_S", 3600.0)

    @app.task("one")
    def one() -> int:
        return 1

    handle = (await chain(one.s()).start_async()).unwrap()
    for _ in range(2):
        (await one.send_async()).unwrap()
    coalescer = (await app.get_broker().session()).notify_coalescer
    assert coalescer.has_deferred
    with pytest.raises(TimeoutError, match=r"did not finish in time; it was RUNNING .* call value"):
        await handle.value_async(timeout_ms=50)
    await coalescer.flush()
    (await one.send_async()).unwrap()
    assert not coalescer.has_deferred


async def test_poll_finds_the_end_of_a_run_whose_notification_is_lost(
    app: Horsies, connection: asyncpg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.waiter.POLL_S", 0.2)
    monkeypatch.setattr("horsies.client.waiter.POLL_NOT_LISTENING_S", 0.2)

    @app.task("one")
    def one() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    spec = app.workflow("silent", [one.node()()], definition_key="silent.v1")
    handle = (await spec.start_async()).unwrap()
    waiting = asyncio.create_task(handle.get_async(20_000))
    await asyncio.sleep(0.1)  # it has read the run once, which has not ended
    await connection.execute(
        "UPDATE horsies_workflows SET status = 'COMPLETED', completed_at = now(), result = '{\"ok\": {}}'"
    )
    assert (await waiting).ok_value == {}


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


async def test_plain_parameters_take_the_values_of_other_nodes(app: Horsies) -> None:
    @app.task("number")
    def number(value: int) -> int:
        if not value:
            raise ValueError("no value")
        return value

    @app.task("twice")
    def double(value: int) -> int:
        return 2 * value

    for value, expected in ((4, 8), (0, None)):
        first = number.node()(value=value)
        last = double.node(args_from={"value": first}, waits_for=[first])()
        spec = app.workflow("doubled", [first, last], output=last, definition_key="doubled.v1")
        handle = (await spec.start_async()).unwrap()
        await drain_async(app)
        assert (await handle.result_for_async(last)).ok == expected
        statuses = [node.status for node in (await handle.tasks_async()).unwrap()]
        assert statuses == (["COMPLETED", "COMPLETED"] if value else ["FAILED", "SKIPPED"])


async def test_chain_passes_each_result_to_the_next_call(app: Horsies) -> None:
    @app.task("fetch")
    def fetch(url: str) -> str:
        return f"page of {url}"

    @app.task("parse")
    def parse(page: TaskResult[str, TaskError], limit: int = 3) -> list[str]:
        return page.ok_value.split()[:limit]

    @app.task("store")
    def store(words: list[str], *, folder: str) -> str:
        return f"{folder}/{'-'.join(words)}"

    spec = chain(fetch.s("x.org"), parse.s(limit=2), store.s(folder="all"))
    assert (spec.name, spec.definition_key) == ("chain:fetch-parse-store", "chain:fetch-parse-store")
    handle = (await spec.start_async()).unwrap()
    await drain_async(app)
    assert await handle.value_async() == "all/page-of"


async def test_group_runs_calls_and_continues_with_their_results(app: Horsies) -> None:
    @app.task("square")
    def square(number: int) -> int:
        return number * number

    @app.task("total")
    def total(start: int, **results: Any) -> int:
        return start + sum(result.ok for result in results.values())

    @app.task("listed")
    def listed(workflow_ctx: WorkflowContext | None = None) -> list[Any]:
        assert workflow_ctx is not None
        return [workflow_ctx.result_for(NodeKey(f"squares:{number}")).ok for number in range(3)]

    mapped = (await square.map([1, 2, 3]).start_async()).unwrap()
    calls = [square.s(number) for number in (1, 2, 3)]
    summed = (await group(calls).then(total.s(100)).start_async()).unwrap()
    collected = (await group(calls).then(listed.s(), name="squares").start_async()).unwrap()
    await drain_async(app)
    values = await mapped.value_async()
    assert {node_id: result.ok for node_id, result in values.items()} == {
        "group:square:0": 1,
        "group:square:1": 4,
        "group:square:2": 9,
    }
    assert await summed.value_async() == 114
    assert await collected.value_async() == [1, 4, 9]


def test_chain_reports_what_does_not_fit(app: Horsies) -> None:
    @app.task("word")
    def word() -> str:
        return "word"

    @app.task("length")
    def length(number: int) -> int:
        return number

    with pytest.raises(WorkflowValidationError) as caught:
        chain(word.s(), length.s())
    assert caught.value.code is ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH
    with pytest.raises(WorkflowValidationError, match="at least one node"):
        chain()
