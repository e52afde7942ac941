"""F18 with real processes: a worker is killed at each commit of a task or run; another worker continues."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from horsies import Horsies, TaskHandle, WorkflowHandle
from tests.support.faults import CommitGate, WriteCondition
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import WorkerProcess, worker_process
from tests.support.workflow_app import LOCATOR, register_workflow_tasks, task_of
from tests.support.workflows import diamond, nested

OTHER_APP: dict[str, Any] = {"queue_mode": "custom", "custom_queues": [{"name": "other"}]}

START = WriteCondition("horsies_tasks", "UPDATE", "OLD.status = 'PENDING' AND NEW.status IN ('CLAIMED', 'RUNNING')")
OUTCOME = WriteCondition("horsies_tasks", "UPDATE", "NEW.status = 'COMPLETED'")
NODE_ADVANCED = WriteCondition(
    "horsies_workflow_tasks", "UPDATE", "NEW.status = 'COMPLETED' AND NOT NEW.is_subworkflow"
)
SUB_RUN_STARTED = WriteCondition("horsies_workflows", "INSERT", "NEW.depth = 1")
SUB_RUN_COMPLETED = WriteCondition("horsies_workflows", "UPDATE", "NEW.depth = 1 AND NEW.status = 'COMPLETED'")
PARENT_NODE_COMPLETED = WriteCondition(
    "horsies_workflow_tasks", "UPDATE", "NEW.status = 'COMPLETED' AND NEW.is_subworkflow"
)
RUN_COMPLETED = WriteCondition("horsies_workflows", "UPDATE", "NEW.depth = 0 AND NEW.status = 'COMPLETED'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    start: Callable[[Horsies], Awaitable[TaskHandle[int] | WorkflowHandle[int]]]
    result: int
    boundaries: Sequence[WriteCondition]


async def _plain(app: Horsies) -> TaskHandle[int]:
    return (await task_of(app, "step").send_async(value=3, seconds=0.2)).unwrap()


async def _dag(app: Horsies) -> WorkflowHandle[int]:
    return (await diamond(app, seconds=0.2).start_async()).unwrap()


async def _nested(app: Horsies) -> WorkflowHandle[int]:
    return (await nested(app, seconds=0.2).start_async()).unwrap()


SHAPES = {
    "plain": Shape(start=_plain, result=3, boundaries=[START, OUTCOME]),
    "dag": Shape(start=_dag, result=6, boundaries=[OUTCOME, NODE_ADVANCED, RUN_COMPLETED]),
    "sub-workflow": Shape(
        start=_nested, result=20, boundaries=[SUB_RUN_STARTED, SUB_RUN_COMPLETED, PARENT_NODE_COMPLETED]
    ),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_stored", [False, True], ids=["lost", "stored"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_worker_killed_at_a_commit_changes_nothing(database_url: str, shape: str, is_stored: bool) -> None:
    app, expected = _app(database_url), SHAPES[shape]
    async with Ledger.open(database_url) as ledger, AsyncExitStack() as workers:
        worker = await workers.enter_async_context(_worker(database_url))
        for boundary in expected.boundaries:
            before = len(await ledger.starts())
            async with CommitGate.at(database_url, boundary) as gate:
                handle = await expected.start(app)
                await gate.wait_for_commit()
                await _kill(worker)
                await (gate.open() if is_stored else gate.abort_waiting())
            worker = await workers.enter_async_context(_worker(database_url))
            assert (await handle.get_async(60_000)).ok_value == expected.result, boundary
            started = [start.task_id for start in (await ledger.starts())[before:]]
            assert len(started) <= len(set(started)) + 1, "one more start, of the interrupted node"
            assert await ledger.violations(list(set(started)), unbegun=1) == [], boundary
        await app.close_async()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("shape", ["dag", "sub-workflow"])
async def test_worker_killed_beside_another_app_changes_nothing(database_url: str, shape: str) -> None:
    app, expected = _app(database_url), SHAPES[shape]
    async with (
        Ledger.open(database_url) as ledger,
        worker_process(database_url, "--processes", "1", config=OTHER_APP),
        _worker(database_url) as first,
    ):
        handle = await expected.start(app)
        await ledger.until(ledger.starts)
        await _kill(first)
        async with _worker(database_url):
            assert (await handle.get_async(60_000)).ok_value == expected.result
        started = [start.task_id for start in await ledger.starts()]
        assert len(started) <= len(set(started)) + 1
        assert await ledger.violations(list(set(started)), unbegun=1) == []
        await app.close_async()


def _app(database_url: str) -> Horsies:
    app = ledger_app(database_url)
    register_workflow_tasks(app)
    return app


def _worker(database_url: str) -> AbstractAsyncContextManager[WorkerProcess]:
    return worker_process(database_url, "--processes", "1", locator=LOCATOR)


async def _kill(worker: WorkerProcess) -> None:
    worker.signal(signal.SIGKILL)
    await worker.until_gone()
