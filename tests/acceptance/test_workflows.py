"""Workflows executed by real workers, observed through handles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from horsies import Err, NodeKey, Ok, SubWorkflowNode, WorkflowHandle, WorkflowSpec, WorkflowStatus, from_node
from tests.support.databases import Cluster
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, worker_in_process
from tests.support.workflow_app import LOCATOR, Doubled, register_workflow_tasks
from tests.support.workflows import diamond, nested

pytestmark = pytest.mark.asyncio(loop_scope="module")

SELDOM = {"resilience": {"notify_poll_interval_ms": 60_000}}


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with cluster.database(migrated=True) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(url: str) -> AsyncIterator[InProcessWorker]:
    """One worker for all tests. It polls once a minute, so faster progress proves notifications."""
    async with (
        Ledger.open(url),
        worker_in_process(url, config=SELDOM, processes=2, register=register_workflow_tasks, locator=LOCATOR) as worker,
    ):
        yield worker


async def test_diamond_workflow_returns_typed_output(worker: InProcessWorker) -> None:
    handle = await _started(diamond(worker.app))
    assert (await handle.get_async(20_000)).ok_value == 6
    assert await handle.status_async() == Ok(WorkflowStatus.COMPLETED)
    results = (await handle.results_async()).unwrap()
    assert {node_id: result.ok for node_id, result in results.items()} == {"first": 1, "left": 2, "right": 4, "sum": 6}
    nodes = (await handle.tasks_async()).unwrap()
    assert [node.index for node in nodes] == [0, 1, 2, 3]
    assert all(node.started_at is not None and node.task_id is not None for node in nodes)


async def test_node_runs_its_sub_workflow(worker: InProcessWorker) -> None:
    handle = await _started(nested(worker.app))
    assert (await handle.get_async(20_000)).ok_value == 20
    (_, child, _) = (await handle.tasks_async()).unwrap()
    assert child.sub_workflow_id is not None
    assert child.result is not None
    assert child.result.ok == 10


async def test_run_with_leading_sub_workflow_starts_at_once(worker: InProcessWorker) -> None:
    child: SubWorkflowNode[int] = SubWorkflowNode(Doubled, kwargs={"value": 4})
    last = worker.app.tasks["flow.double"].node()(number=from_node(child))
    spec = worker.app.workflow("begins", [child, last], output=last, definition_key="tests.begins")
    handle = await _started(spec)
    assert (await handle.get_async(20_000)).ok_value == 16


async def test_failed_node_is_the_run_result(worker: InProcessWorker) -> None:
    broken = worker.app.tasks["flow.fail"].node(node_id="broken")(code="BROKEN")
    last = worker.app.tasks["flow.double"].node(node_id="last")(number=from_node(broken))
    handle = await _started(worker.app.workflow("fails", [broken, last], definition_key="tests.fails"))
    assert (await handle.get_async(20_000)).err_value.error_code == "BROKEN"
    assert (await handle.result_for_async(last)).err_value.error_code == "RESULT_NOT_READY"
    assert (await handle.result_for_async(broken)).err_value.error_code == "BROKEN"
    assert (await handle.retry_failed_async()) == Ok(2)
    assert (await handle.get_async(20_000)).err_value.error_code == "BROKEN"


async def test_unknown_run_is_not_found(worker: InProcessWorker) -> None:
    handle = WorkflowHandle[int](uuid4(), worker.app.get_broker())
    assert (await handle.get_async(0)).err_value.error_code == "WORKFLOW_NOT_FOUND"
    assert (await handle.result_for_async(NodeKey("any"))).err_value.error_code == "WORKFLOW_NOT_FOUND"


async def test_pause_resume_and_cancel_return_documented_results(worker: InProcessWorker) -> None:
    handle = await _started(diamond(worker.app, seconds=0.3))
    assert (await handle.get_async(0)).err_value.error_code == "WAIT_TIMEOUT"
    assert await handle.pause_async() == Ok(value=True)
    assert (await handle.get_async()).err_value.error_code == "WORKFLOW_PAUSED"
    assert await handle.pause_async() == Ok(value=False)
    assert await handle.resume_async() == Ok(value=True)
    assert await handle.cancel_async() == Ok(None)
    assert (await handle.get_async()).err_value.error_code == "WORKFLOW_CANCELLED"
    assert await handle.cancel_async() == Ok(None)


async def test_waiter_wakes_when_run_is_paused(worker: InProcessWorker) -> None:
    handle = await _started(diamond(worker.app, seconds=5))
    waiting = asyncio.create_task(handle.get_async())
    await handle.pause_async()
    async with asyncio.timeout(4):
        assert (await waiting).err_value.error_code == "WORKFLOW_PAUSED"
    await handle.cancel_async(kill=True)


async def test_starting_the_same_id_twice_returns_the_same_run(worker: InProcessWorker) -> None:
    handle = await _started(diamond(worker.app))
    again = (await diamond(worker.app).start_async(handle.workflow_id)).unwrap()
    assert again.workflow_id == handle.workflow_id
    assert (await again.get_async(20_000)).ok_value == 6


async def test_blocking_calls_inside_event_loop_are_refused(worker: InProcessWorker) -> None:
    handle = await _started(diamond(worker.app))
    refused = handle.status()
    assert isinstance(refused, Err)
    assert refused.error.code == "LOOP_RUNNER_FAILED"
    assert diamond(worker.app).start().is_err()


async def _started(spec: WorkflowSpec[Any]) -> WorkflowHandle[Any]:
    return (await spec.start_async()).unwrap()
