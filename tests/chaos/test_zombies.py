"""F6, F7, F11: late writes of a worker that was suspended or disconnected during a takeover are refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from horsies import Horsies
from horsies.engine import events
from horsies.model.recovery.fleet import OperatorObserver, SweepOptions
from horsies.model.settings import RecoveryConfig
from horsies.recovery.report import SweepStatus
from horsies.recovery.sweep import Sweep
from horsies.store.database import Database
from tests.support.faults import Proxy
from tests.support.ledger import Ledger
from tests.support.ledger_app import QUICK_RECOVERY, ledger_app
from tests.support.recovery_times import record_recovery_times
from tests.support.workers import (
    WorkerProcess,
    disturb_fork_server,
    send,
    with_fork_server_faults,
    worker_in_process,
    worker_process,
)

THRESHOLD_S = QUICK_RECOVERY["running_stale_threshold_ms"] / 1000


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Horsies]:
    app = ledger_app(database_url)
    yield app
    await app.close_async()


@asynccontextmanager
async def suspended(worker: WorkerProcess) -> AsyncGenerator[None]:
    """Suspend a worker with its children, like a suspended machine."""
    group = [worker.pid, *worker.children()]
    for pid in group:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in group:
            with suppress(ProcessLookupError):  # the worker continues first and may have killed this child already
                os.kill(pid, signal.SIGCONT)


async def until_silent(ledger: Ledger, seconds: float) -> None:
    sql = "SELECT now() - last_heartbeat_at > make_interval(secs => $1) AS is_silent FROM horsies_workers"

    async def is_silent() -> bool:
        return all(row["is_silent"] for row in await ledger.fetch(sql, seconds))

    await ledger.until(is_silent)


async def test_operator_sweep_leaves_a_suspended_worker_alone(
    ledger: Ledger, app: Horsies, database: Database, database_url: str, tmp_path: Path
) -> None:
    config = {"recovery": {"worker_stale_threshold_ms": 60_000}}
    async with worker_process(database_url, "--processes", "1", config=config) as worker:
        task_id = await send(app, "wait_for", str(tmp_path / "go"))
        await ledger.until_started(task_id)
        async with suspended(worker):
            await until_silent(ledger, 2 * THRESHOLD_S)
            report = await Sweep(
                database, SweepOptions(), observer=OperatorObserver(local_config=RecoveryConfig())
            ).run()
        (tmp_path / "go").touch()
        row = (await ledger.until_terminal(task_id))[task_id]
    assert (report.status, [str(task.task_id) for task in report.tasks]) == (SweepStatus.OUTAGE_GRACE, [task_id])
    assert (row["status"], row["attempts"]) == ("COMPLETED", 1)
    assert await ledger.violations([task_id]) == []


async def until_started_again(ledger: Ledger, task_id: str) -> None:
    async def is_started_again() -> bool:
        return len(await ledger.starts(task_id)) == 2

    await ledger.until(is_started_again)


async def until_refused(ledger: Ledger, task_id: str) -> None:
    async def is_refused() -> bool:
        refused = [*await ledger.events("late_result_refused"), *await ledger.events("late_beat_refused")]
        return {event["task_id"] for event in refused} == {task_id}

    await ledger.until(is_refused)


async def heartbeat_senders(ledger: Ledger, task_id: str, token: int) -> set[str]:
    sql = "SELECT DISTINCT sender_id FROM horsies_heartbeats WHERE task_id = $1::text::uuid AND claim_token = $2"
    return {row["sender_id"].split(":")[0] for row in await ledger.fetch(sql, task_id, token)}


@with_fork_server_faults
async def test_task_finished_elsewhere_during_a_suspension_stays_unchanged(
    ledger: Ledger, app: Horsies, database_url: str, tmp_path: Path, fork_server_fault: signal.Signals | None
) -> None:
    async with worker_process(database_url, "--processes", "1") as zombie:
        task_id = await send(app, "wait_for_again", str(tmp_path / "go"))
        await ledger.until_started(task_id)
        async with worker_in_process(database_url, processes=1):
            stopped_at = await ledger.now()
            async with suspended(zombie):
                disturb_fork_server(zombie.pid, fork_server_fault)
                (tmp_path / "go").touch()
                row = (await ledger.until_terminal(task_id))[task_id]
                await record_recovery_times(ledger, "F6", pid=zombie.pid, since=stopped_at)
                assert (row["status"], row["claim_token"], row["crash_count"]) == ("COMPLETED", 2, 1)
            await until_refused(ledger, task_id)
            await ledger.until(lambda: ledger.events("worker_returned"))
            now = await ledger.row(task_id)
            assert (now["result"], now["attempts"]) == (row["result"], 2)
        after = await send(app, "work")
        await ledger.until_terminal(after)
        assert await ledger.violations([task_id, after], may_overlap=True) == []


async def test_zombie_does_not_affect_the_new_attempt(
    ledger: Ledger, app: Horsies, database_url: str, tmp_path: Path
) -> None:
    async with worker_process(database_url, "--processes", "1") as zombie:
        task_id = await send(app, "wait_for_again", str(tmp_path / "go"))
        await ledger.until_started(task_id)
        async with worker_in_process(database_url, processes=1) as successor:
            stopped_at = await ledger.now()
            async with suspended(zombie):
                await until_started_again(ledger, task_id)
            await record_recovery_times(ledger, "F7", pid=zombie.pid, since=stopped_at)
            await until_refused(ledger, task_id)

            async def has_heartbeats() -> bool:
                return bool(await heartbeat_senders(ledger, task_id, 2))

            await ledger.until(has_heartbeats)
            assert await heartbeat_senders(ledger, task_id, 2) == {successor.worker_id}
            assert (await ledger.row(task_id))["status"] == "RUNNING"
            (event,) = await ledger.events("overlap_possible")
            assert event["task_id"] == task_id
            (overlap,) = await ledger.fetch("SELECT overlap_possible FROM horsies_tasks")
            assert overlap["overlap_possible"], "the new attempt must know it"
            (tmp_path / "go").touch()
            row = (await ledger.until_terminal(task_id))[task_id]
            assert (row["status"], row["attempts"], row["retry_count"]) == ("COMPLETED", 2, 1)
            assert await ledger.violations([task_id], may_overlap=True) == []


async def test_worker_disconnected_for_three_thresholds_is_replaced(
    ledger: Ledger, app: Horsies, database_url: str, tmp_path: Path
) -> None:
    async with Proxy(database_url).running() as proxy:
        disconnecting = worker_in_process(database_url, config={"database_url": proxy.url}, processes=1)
        async with (
            disconnecting as disconnected,
            worker_in_process(database_url, processes=1, queues=["default"]) as successor,
        ):
            await disconnected.until(lambda: disconnected.children)
            first, second = [await send(app, "wait_for_again", str(tmp_path / "go")) for _ in range(2)]
            await ledger.until_started(first, second)
            taken_over = first if disconnected.has_in_flight(first) else second
            cut_at = await ledger.now()
            proxy.freeze()
            await disconnected.until(lambda: disconnected.silent_s > 3 * THRESHOLD_S)
            (tmp_path / "go").touch()
            rows = await ledger.until_terminal(first, second)
            assert {row["status"] for row in rows.values()} == {"COMPLETED"}
            assert (rows[taken_over]["claim_token"], rows[taken_over]["crash_count"]) == (2, 1)
            await record_recovery_times(ledger, "F11", pid=os.getpid(), since=cut_at)
            proxy.restore()
            await disconnected.wait_for_event(events.WorkerUnfenced)
            await successor.stop()
            after = await send(app, "work")
            await ledger.until_terminal(after)
            assert await ledger.row(taken_over) == rows[taken_over]
            assert await ledger.violations([first, second, after], may_overlap=True) == []


async def test_workers_suspended_together_recover_nothing(
    ledger: Ledger, app: Horsies, database_url: str, tmp_path: Path
) -> None:
    options = ("--processes", "1")
    async with worker_process(database_url, *options) as one, worker_process(database_url, *options) as other:
        sent = [await send(app, "wait_for", str(tmp_path / "go")) for _ in range(2)]
        await ledger.until_started(*sent)

        async def are_silent() -> bool:
            sql = """
            SELECT FROM horsies_workers
             WHERE state = 'running' AND last_heartbeat_at < clock_timestamp() - make_interval(secs => $1)
            """
            return len(await ledger.fetch(sql, 2 * THRESHOLD_S)) == 2

        async def have_both_reported_it() -> bool:
            # A busy machine may delay heartbeats enough for further, short outages.
            started = await ledger.events("outage_grace_started")
            long = [event for event in started if json.loads(event["evidence"])["outage_s"] > THRESHOLD_S]
            return len({event["worker_id"] for event in long}) == 2

        async with suspended(one), suspended(other):
            await ledger.until(are_silent)
        (tmp_path / "go").touch()
        rows = await ledger.until_terminal(*sent)
        assert {(row["status"], row["attempts"], row["crash_count"]) for row in rows.values()} == {("COMPLETED", 1, 0)}
        assert not await ledger.events("late_result_refused")
        await ledger.until(have_both_reported_it)
        assert await ledger.violations(sent) == []
