"""Database outages while tasks run: nothing is lost, runs twice, or counts as a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from horsies import Horsies, TaskFunction
from horsies.engine import events
from horsies.errors import HorsiesError
from tests.support.databases import temporary_cluster_folder
from tests.support.faults import CrashableServer, Proxy, RemoteLedger
from tests.support.ledger import Ledger
from tests.support.ledger_app import QUICK_RECOVERY, ledger_app
from tests.support.workers import InProcessWorker, send, worker_in_process
from tests.support.workflow_app import LOCATOR, register_workflow_tasks
from tests.support.workflows import diamond

THRESHOLD_S = QUICK_RECOVERY["running_stale_threshold_ms"] / 1000
TWO_HEARTBEATS = {
    "claimer_heartbeat_interval_ms": 1_000,
    "runner_heartbeat_interval_ms": 1_000,
    "claimed_stale_threshold_ms": 2_000,
    "running_stale_threshold_ms": 2_000,
    "worker_stale_threshold_ms": 2_000,
}
THREE_HEARTBEATS = TWO_HEARTBEATS | {
    "claimed_stale_threshold_ms": 3_000,
    "running_stale_threshold_ms": 3_000,
    "worker_stale_threshold_ms": 3_000,
}
RUNNER_HEARTBEATS = "SELECT FROM horsies_heartbeats WHERE role = 'runner'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work of a worker while its server crashes repeatedly."""

    tasks: int
    runs: int
    crashes: int

    @property
    def expected_starts(self) -> int:
        """Expected task starts if nothing runs twice; a diamond workflow has four tasks."""
        return self.tasks + 4 * self.runs


@pytest.fixture
def load(request: pytest.FixtureRequest) -> Load:
    """Small by default, large in `make chaos`."""
    is_chaos = request.config.getoption("--hypothesis-profile") == "chaos"
    return Load(tasks=2_000, runs=200, crashes=8) if is_chaos else Load(tasks=40, runs=5, crashes=3)


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def own_server() -> Iterator[CrashableServer]:
    with temporary_cluster_folder() as folder:
        yield CrashableServer(folder)


@pytest.fixture
async def server(own_server: CrashableServer) -> CrashableServer:
    await own_server.start()
    return own_server


@pytest.fixture
async def queue_url(server: CrashableServer) -> str:
    """A database on the server that crashes; the ledger is on another server."""
    return await server.new_database()


@asynccontextmanager
async def holding_row(url: str, task_id: str) -> AsyncGenerator[None]:
    """Lock a task's row until the block ends."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM horsies_tasks WHERE id = $1::text::uuid FOR NO KEY UPDATE", task_id)
            yield
    finally:
        await connection.close()


@asynccontextmanager
async def open_app(url: str) -> AsyncGenerator[Horsies]:
    app = ledger_app(url)
    yield app
    await app.close_async()


async def send_load(app: Horsies, load: Load) -> None:
    task: TaskFunction[..., Any] = app.tasks["work"]
    (await task.send_many_async([(0.05,)] * load.tasks)).unwrap()
    for _ in range(load.runs):
        (await diamond(app).start_async()).unwrap()


async def have_ended(tables: Ledger, runs: int) -> bool:
    """Whether this many runs have finished; each must have the result of an undisturbed run."""
    ended = await tables.fetch("SELECT result FROM horsies_workflows WHERE status NOT IN ('PENDING', 'RUNNING')")
    assert all(json.loads(run["result"]) == {"ok": 6} for run in ended)
    return len(ended) == runs


async def assert_undisturbed(tables: Ledger, worker: InProcessWorker, task_ids: list[str]) -> None:
    rows = await tables.until_terminal(*task_ids, within_s=30)
    assert {(row["status"], row["attempts"], row["crash_count"], row["retry_count"]) for row in rows.values()} == {
        ("COMPLETED", 1, 0, 0)
    }
    starts = await tables.starts()
    assert sorted(entry.task_id for entry in starts) == sorted(task_ids), "each task runs once"
    assert not worker.events_of(events.LateResultRefused)
    assert not await tables.events("late_result_refused")
    assert not worker.run.done()
    assert await tables.violations(task_ids) == []


@pytest.mark.timeout(600)
async def test_repeated_server_crashes_lose_nothing(
    ledger: Ledger, server: CrashableServer, queue_url: str, database_url: str, load: Load
) -> None:
    config = {"database_url": queue_url}
    async with worker_in_process(
        database_url, config=config, processes=2, locator=LOCATOR, register=register_workflow_tasks
    ) as worker:
        await send_load(worker.app, load)
        for crash in range(1, load.crashes + 1):
            enough = crash * load.expected_starts // (load.crashes + 1)

            async def are_started(enough: int = enough) -> bool:
                return len(await ledger.starts()) >= enough

            await ledger.until(are_started, within_s=120)
            await server.crash()
            await server.start()
        async with RemoteLedger.open_beside(queue_url, ledger) as tables:
            await tables.until(lambda: have_ended(tables, load.runs), within_s=120)
            sent = [row["id"] for row in await tables.fetch("SELECT id::text FROM horsies_tasks")]
            assert len(sent) == load.expected_starts
            await assert_undisturbed(tables, worker, sent)


async def test_results_are_stored_after_a_long_outage(
    ledger: Ledger, server: CrashableServer, queue_url: str, database_url: str
) -> None:
    config = {"database_url": queue_url}
    async with worker_in_process(database_url, config=config, processes=2, async_concurrency=20) as worker:
        sent = [await worker.send("nap", 1.0) for _ in range(40)]
        await ledger.until_started(*sent)
        await server.crash()

        async def all_have_ended() -> bool:
            return sum(entry.what == "end" for entry in await ledger.entries()) == len(sent)

        await ledger.until(all_have_ended, within_s=20)
        await worker.until(lambda: worker.silent_s > 2 * THRESHOLD_S)
        assert worker.events_of(events.WorkerFenced)
        await server.start()
        await worker.wait_for_event(events.WorkerUnfenced)
        async with RemoteLedger.open_beside(queue_url, ledger) as tables:
            await assert_undisturbed(tables, worker, sent)


async def test_unstored_outcome_keeps_its_heartbeats(ledger: Ledger, database_url: str) -> None:
    async with worker_in_process(database_url, processes=1) as worker:
        task_id = await worker.send("work", 0.1)
        await ledger.until_started(task_id)
        async with holding_row(database_url, task_id):

            async def has_ended() -> bool:
                return any(entry.what == "end" for entry in await ledger.entries())

            await ledger.until(has_ended)
            seen = await ledger.fetch(RUNNER_HEARTBEATS)

            async def has_heartbeats() -> bool:
                return len(await ledger.fetch(RUNNER_HEARTBEATS)) >= len(seen) + 3

            await ledger.until(has_heartbeats)
        await ledger.until_terminal(task_id)
        assert await ledger.violations([task_id]) == []


async def test_idle_worker_with_short_thresholds_is_not_fenced(ledger: Ledger, database_url: str) -> None:
    async with worker_in_process(database_url, config={"recovery": TWO_HEARTBEATS}, processes=1) as worker:

        async def has_idled() -> bool:
            (row,) = await ledger.fetch("SELECT last_heartbeat_at - started_at AS age FROM horsies_workers")
            return row["age"].total_seconds() > 3

        await ledger.until(has_idled)
        task_id = await worker.send("work")
        row = (await ledger.until_terminal(task_id))[task_id]
        assert (row["started_at"] - row["enqueued_at"]).total_seconds() < 0.5
        assert not worker.events_of(events.WorkerFenced)
        assert await ledger.violations([task_id]) == []


async def test_disconnected_worker_starts_nothing_until_it_is_back(ledger: Ledger, database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        config = {"database_url": proxy.url}
        async with worker_in_process(database_url, config=config, processes=1) as worker:
            proxy.cut()
            await worker.wait_for_event(events.WorkerFenced)
            async with open_app(database_url) as others:
                task_id = await send(others, "work")
            await worker.until(lambda: worker.silent_s > THRESHOLD_S)
            assert (await ledger.row(task_id))["status"] == "PENDING"
            proxy.restore()
            await worker.wait_for_event(events.WorkerUnfenced)
            await ledger.until_terminal(task_id)
            assert await ledger.violations([task_id]) == []


async def test_worker_without_database_stops_in_time(ledger: Ledger, database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        config = {"database_url": proxy.url}
        async with worker_in_process(database_url, config=config, processes=1, grace_s=1, kill_wait_s=1) as worker:
            task_id = await worker.send("work", 30)
            await ledger.until_started(task_id)
            proxy.cut()
            await worker.wait_for_event(events.WorkerFenced)
            with pytest.raises(HorsiesError, match=f"outcomes of 1 tasks not stored.*{task_id}"):
                await worker.stop(within_s=1 + 1 + 5 + 1)
            assert worker.events_of(events.WorkerStopped)[0].unstored == 1


async def test_stop_during_an_outage_stores_all_results(
    ledger: Ledger, server: CrashableServer, queue_url: str, database_url: str
) -> None:
    config = {"database_url": queue_url}
    async with worker_in_process(database_url, config=config, async_concurrency=12, grace_s=60) as worker:
        sent = [await worker.send("nap", 7.0) for _ in range(12)]
        await ledger.until_started(*sent)
        await server.crash()
        await worker.until(lambda: bool(worker.events_of(events.DatabaseLost)))  # a full worker claims nothing
        worker.worker.stop()
        stopped_at = await ledger.now()

        async def is_past_the_limit_of_other_statements() -> bool:
            return (await ledger.now() - stopped_at).total_seconds() > 4.5

        await ledger.until(is_past_the_limit_of_other_statements)
        await server.start()
        async with asyncio.timeout(30):
            await worker.run
        assert worker.events_of(events.WorkerStopped)[0].unstored == 0
        async with RemoteLedger.open_beside(queue_url, ledger) as tables:
            assert {row["status"] for row in (await tables.rows(*sent)).values()} == {"COMPLETED"}
            assert await tables.violations(sent) == []


async def test_half_open_connections_do_not_make_tasks_stale(ledger: Ledger, database_url: str, tmp_path: Path) -> None:
    config, gate = {"recovery": THREE_HEARTBEATS}, tmp_path / "gate"
    async with Proxy(database_url).running() as proxy:
        behind_proxy = config | {"database_url": proxy.url}
        async with worker_in_process(database_url, config=behind_proxy, processes=1) as worker:
            task_id = await worker.send("wait_for", str(gate))
            await ledger.until_started(task_id)
            async with worker_in_process(database_url, config=config, processes=1) as observer:
                await observer.until(lambda: observer.health.listening_since is not None)
                proxy.half_open()
                cut_at = await ledger.now()

                async def is_past_threshold() -> bool:
                    return (await ledger.now() - cut_at).total_seconds() > 2 * 3.0

                await ledger.until(is_past_threshold)
                gate.touch()
                row = (await ledger.until_terminal(task_id))[task_id]
            assert (row["status"], row["attempts"], row["crash_count"]) == ("COMPLETED", 1, 0), row
            assert await ledger.violations([task_id]) == []
