"""Operator actions on tasks that are running in a worker; all tests share one worker with real children."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from horsies.engine import events
from horsies.model.settings import PostgresConfig
from horsies_ops.actions import tasks
from horsies_ops.ops import Ops, open_ops
from tests.support.databases import Cluster
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, worker_in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with cluster.database(migrated=True) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(url) as ledger:
        yield ledger


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(url: str, ledger: Ledger) -> AsyncIterator[InProcessWorker]:
    async with worker_in_process(url, processes=2) as worker:
        yield worker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ops(url: str) -> AsyncIterator[Ops]:
    async with open_ops(PostgresConfig(database_url=url), actor="ada") as ops:
        yield ops


async def _columns(ledger: Ledger, task_id: str) -> dict[str, Any]:
    (row,) = await ledger.fetch("SELECT * FROM horsies_tasks WHERE id = $1::text::uuid", task_id)
    return row


async def test_requeued_task_is_killed_before_it_starts_again(
    worker: InProcessWorker, ledger: Ledger, ops: Ops, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task_id = await worker.send("wait_for", str(gate))
    await ledger.until_started(task_id)
    async with asyncio.timeout(tasks.STOP_TIMEOUT_S):
        report = await ops.requeue([task_id], include_running=True)
    assert (report.affected, report.skipped) == (1, ())
    gate.touch()
    row = (await ledger.until_terminal(task_id))[task_id]
    assert (row["status"], row["retry_count"], row["crash_count"], row["attempts"]) == ("COMPLETED", 0, 0, 2)
    first, _ = await ledger.attempts(task_id)
    assert (first["error_code"], first["will_retry"]) == ("OPERATOR_REQUEUED", True)
    assert not (await _columns(ledger, task_id))["overlap_possible"]
    assert await ledger.violations([task_id]) == []


async def test_requeued_coroutine_is_cancelled_without_killing_its_child(
    worker: InProcessWorker, ledger: Ledger, ops: Ops
) -> None:
    await worker.until(lambda: len(worker.children) == 2)
    before = {child.pid for child in worker.children}
    task_id = await worker.send("nap", 60)
    await ledger.until_started(task_id)
    assert (await ops.requeue([task_id], include_running=True)).affected == 1
    await ledger.until(lambda: _has_started_twice(ledger, task_id))
    assert {child.pid for child in worker.children} == before
    await ops.cancel([task_id], kill=True)
    await worker.until(lambda: not worker.has_in_flight(task_id))
    assert await ledger.violations([task_id]) == []


async def test_kill_ends_the_process_without_counting_a_crash(
    worker: InProcessWorker, ledger: Ledger, ops: Ops
) -> None:
    task_id = await worker.send("work", 60)
    await ledger.until_started(task_id)
    pid = (await ledger.row(task_id))["worker_pid"]
    await ops.cancel([task_id], kill=True, reason="runaway")
    await worker.until(lambda: pid not in {child.pid for child in worker.children}, within_s=2)
    await worker.until(lambda: len(worker.children) == 2)
    row = await ledger.row(task_id)
    assert (row["status"], row["crash_count"], row["attempts"]) == ("CANCELLED", 0, 1)
    assert await ledger.violations([task_id]) == []


async def test_without_kill_the_late_outcome_is_refused(
    worker: InProcessWorker, ledger: Ledger, ops: Ops, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task_id = await worker.send("wait_for", str(gate))
    await ledger.until_started(task_id)
    await ops.fail([task_id], include_running=True, reason="no longer needed")
    gate.touch()
    await worker.until(lambda: task_id in {late.task_id for late in worker.events_of(events.LateResultRefused)})
    row = await ledger.row(task_id)
    assert (row["status"], row["error_code"], row["attempts"]) == ("FAILED", "OPERATOR_FAILED", 1)


async def test_task_that_ends_before_the_action_keeps_its_outcome(
    worker: InProcessWorker, ledger: Ledger, ops: Ops
) -> None:
    task_id = await worker.send("work", 0.05)
    await ledger.until_started(task_id)
    report = await ops.requeue([task_id], include_running=True)
    row = (await ledger.until_terminal(task_id))[task_id]
    # The action may come too late; but a finished task is never counted as requeued.
    assert (row["attempts"], row["status"]) == (1 + report.affected, "COMPLETED")


async def _has_started_twice(ledger: Ledger, task_id: str) -> bool:
    return len(await ledger.starts(task_id)) == 2
