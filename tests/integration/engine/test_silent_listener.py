"""The listener looks connected but receives nothing: whatever the worker waits for is found by polling all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from horsies.engine import events
from horsies.model.settings import PostgresConfig
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies_ops.ops import open_ops
from tests.support.faults import Proxy
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, worker_in_process
from tests.support.workflows import WorkflowDriver, node


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture
async def worker(database_url: str, ledger: Ledger) -> AsyncIterator[InProcessWorker]:
    """A worker whose notifications are lost from now on; it does not know that, because it probes rarely."""
    del ledger  # its table must exist
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(database_url).running())
        broker = {"broker": {"session_database_url": proxy.url}}
        worker = await stack.enter_async_context(worker_in_process(database_url, config=broker, processes=1))
        proxy.freeze()
        yield worker
        assert worker.events_of(events.ListenerDegraded) == [], "the worker has noticed it"
        proxy.restore()


async def test_new_tasks_are_found(worker: InProcessWorker, ledger: Ledger) -> None:
    for _ in range(2):  # the first may be found by the claims of the start
        task_id = await worker.send("work")
        assert (await ledger.until_terminal(task_id))[task_id]["status"] == "COMPLETED"


async def test_end_of_a_node_stored_by_another_process_is_found(
    worker: InProcessWorker, ledger: Ledger, database_url: str
) -> None:
    async with Database(ConnectionSpec(url=database_url, masked_url=database_url)) as database:
        driver = WorkflowDriver(database)
        await driver.start_run(node(0, name="work"), node(1, 0, name="work"))
        await driver.finish(await driver.claim_and_start())

    async def has_completed() -> bool:
        return [row["status"] for row in await ledger.fetch("SELECT status FROM horsies_workflows")] == ["COMPLETED"]

    await ledger.until(has_completed)
    assert worker.events_of(events.WorkerStarted)


async def test_kill_request_is_found(worker: InProcessWorker, ledger: Ledger, database_url: str) -> None:
    task_id = await worker.send("work", 60)
    await ledger.until_started(task_id)
    (child,) = worker.children
    async with open_ops(PostgresConfig(database_url=database_url), actor="ada") as ops:
        await ops.cancel([task_id], kill=True)
    await worker.until(child.exited.is_set)
    assert (await ledger.row(task_id))["status"] == "CANCELLED"
