"""F14 and F1: shutdown is bounded in time, interrupted tasks are stored, and no process is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from horsies import Horsies
from horsies.engine import events
from horsies.errors import HorsiesError
from tests.support.cli import APP, Project
from tests.support.faults import Proxy
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import WorkerProcess, send, worker_in_process, worker_process

LONG_TASK_S = 1800


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Horsies]:
    """The app that sends the tasks."""
    app = ledger_app(database_url)
    yield app
    await app.close_async()


def summary(row: dict[str, Any]) -> tuple[object, ...]:
    return row["status"], row["error_code"], row["retry_count"], row["crash_count"]


async def worker_state(ledger: Ledger) -> str:
    (row,) = await ledger.fetch("SELECT state FROM horsies_workers")
    return row["state"]


async def test_stop_stores_finished_tasks_and_interrupts_the_rest(
    database_url: str, ledger: Ledger, app: Horsies, tmp_path: Path
) -> None:
    async with worker_process(database_url, "--processes", "3", "--grace-s", "1") as worker:
        short = await send(app, "wait_for", str(tmp_path / "go"))
        again = await send(app, "work_again", LONG_TASK_S)
        endless = await send(app, "work", LONG_TASK_S)
        await ledger.until_started(short, again, endless)
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        await worker.wait_for_output("still running")
        assert await worker_state(ledger) == "draining"
        late = await send(app, "work")
        (tmp_path / "go").touch()
        assert await worker.until_gone(within_s=1 + 5 + 5) == 0
        assert time.monotonic() - began >= 1
        assert endless in worker.log_text
    rows = await ledger.rows(short, again, endless, late)
    assert summary(rows[short]) == ("COMPLETED", None, 0, 0)
    assert summary(rows[again]) == ("PENDING", None, 1, 0)
    assert summary(rows[endless]) == ("FAILED", "SHUTDOWN", 0, 0)
    assert (rows[late]["status"], rows[late]["claim_token"]) == ("PENDING", 0)
    attempts = await ledger.attempts(again, endless)
    assert {attempt["task_id"]: (attempt["error_code"], attempt["will_retry"]) for attempt in attempts} == {
        again: ("SHUTDOWN", True),
        endless: ("SHUTDOWN", False),
    }
    assert await worker_state(ledger) == "stopped"
    assert await ledger.violations([short, again, endless, late], held=[again, late]) == []


async def test_second_signal_ends_the_grace_period(database_url: str, ledger: Ledger, app: Horsies) -> None:
    async with worker_process(database_url, "--processes", "1", "--grace-s", "none") as worker:
        task = await send(app, "work", LONG_TASK_S)
        await ledger.until_started(task)
        worker.signal(signal.SIGTERM)
        await worker.wait_for_output("still running")
        worker.signal(signal.SIGINT)
        assert await worker.until_gone(within_s=5) == 0
    assert summary(await ledger.row(task)) == ("FAILED", "SHUTDOWN", 0, 0)
    assert await ledger.violations([task]) == []


async def test_hangups_stop_the_worker_after_its_running_tasks(
    database_url: str, ledger: Ledger, app: Horsies, tmp_path: Path
) -> None:
    """The shell and the kernel may both send SIGHUP, and a service manager sends it to the children too."""
    async with worker_process(database_url, "--processes", "1", "--grace-s", "none") as worker:
        task = await send(app, "wait_for", str(tmp_path / "go"))
        await ledger.until_started(task)
        for _ in range(2):
            for pid in (*worker.seen_children, worker.pid):
                os.kill(pid, signal.SIGHUP)
            await worker.wait_for_output("still running")
        (tmp_path / "go").touch()
        assert await worker.until_gone() == 0
    assert summary(await ledger.row(task)) == ("COMPLETED", None, 0, 0)
    assert await worker_state(ledger) == "stopped"
    assert await ledger.violations([task]) == []


async def test_stop_without_limit_waits_for_running_tasks(database_url: str, ledger: Ledger, tmp_path: Path) -> None:
    async with worker_in_process(database_url, processes=1, grace_s=None) as worker:
        task = await worker.send("wait_for", str(tmp_path / "go"))
        await ledger.until_started(task)
        worker.worker.stop()
        await worker.wait_for_event(events.WorkerDraining)
        (tmp_path / "go").touch()
        async with asyncio.timeout(10):
            await worker.run
    assert summary(await ledger.row(task)) == ("COMPLETED", None, 0, 0)
    assert await ledger.violations([task]) == []
    await ledger.until_connections_are(0)


async def test_draining_worker_answers_pings_and_stays_draining(
    database_url: str, ledger: Ledger, tmp_path: Path
) -> None:
    async with worker_in_process(database_url, processes=1, grace_s=None) as worker:
        task = await worker.send("wait_for", str(tmp_path / "go"))
        await ledger.until_started(task)
        worker.worker.stop()
        await worker.wait_for_event(events.WorkerDraining)
        (pong,) = (await worker.app.ping_workers_async(min_responses=1)).unwrap()
        assert str(pong.worker_id) == worker.worker_id
        await ledger.fetch("UPDATE horsies_workers SET state = 'lost'")
        await worker.wait_for_event(events.WorkerReturned)
        state = "SELECT state FROM horsies_workers WHERE id = $1::text::uuid"
        assert await ledger.fetch(state, worker.worker_id) == [{"state": "draining"}]
        (tmp_path / "go").touch()
        async with asyncio.timeout(10):
            await worker.run
    assert await ledger.violations([task]) == []


async def test_interrupted_coroutines_are_stored_like_functions(database_url: str, ledger: Ledger) -> None:
    async with worker_in_process(database_url, processes=1, grace_s=0) as worker:
        again = await worker.send("nap_again", LONG_TASK_S)
        once = await worker.send("nap", LONG_TASK_S)
        await ledger.until_started(again, once)
        await worker.stop()
    assert summary(await ledger.row(again)) == ("PENDING", None, 1, 0)
    assert summary(await ledger.row(once)) == ("FAILED", "SHUTDOWN", 0, 0)
    assert await ledger.violations([again, once], held=[again]) == []


async def test_prefetched_tasks_keep_heartbeats_and_are_released(database_url: str, ledger: Ledger) -> None:
    config = {"prefetch_buffer": 3, "claim_lease_ms": 1_000}
    async with worker_in_process(database_url, config=config, processes=1, grace_s=0) as worker:
        interrupted = await worker.send("work", LONG_TASK_S)
        await ledger.until_started(interrupted)
        waiting = [await worker.send("work") for _ in range(3)]
        await ledger.until(lambda: _have_two_claimer_heartbeats(ledger, waiting))
        assert {row["status"] for row in (await ledger.rows(*waiting)).values()} == {"CLAIMED"}
        await worker.stop()
    rows = (await ledger.rows(*waiting)).values()
    assert {(row["status"], row["retry_count"], row["claimed_at"]) for row in rows} == {("PENDING", 0, None)}
    assert await ledger.attempts(*waiting) == []
    assert await ledger.violations([interrupted, *waiting], held=waiting) == []


async def _have_two_claimer_heartbeats(ledger: Ledger, task_ids: list[str]) -> bool:
    sql = "SELECT task_id::text FROM horsies_heartbeats WHERE role = 'claimer' GROUP BY task_id HAVING count(*) > 1"
    return {row["task_id"] for row in await ledger.fetch(sql)} == set(task_ids)


async def test_killed_worker_leaves_no_processes(database_url: str, ledger: Ledger, app: Horsies) -> None:
    async with worker_process(database_url, "--processes", "4") as worker:
        tasks = [await send(app, "work", LONG_TASK_S) for _ in range(4)]
        await ledger.until_started(*tasks)
        assert len(worker.children()) == 4
        worker.signal(signal.SIGKILL)
        await worker.until_children_are_gone(within_s=2)
    await app.close_async()
    await ledger.until_connections_are(0)


@pytest.mark.parametrize("unstored", [0, 1])
async def test_stop_is_bounded_if_the_database_hangs(database_url: str, ledger: Ledger, unstored: int) -> None:
    async with Proxy(database_url).running() as proxy:
        config = {"database_url": proxy.url}
        async with worker_in_process(database_url, config=config, processes=1, grace_s=0.5, kill_wait_s=0.5) as worker:
            for _ in range(unstored):
                await ledger.until_started(await worker.send("work", LONG_TASK_S))
            proxy.freeze()
            await worker.until(lambda: worker.silent_s > 1)  # statements that are running now get no answer
            with pytest.raises(HorsiesError, match="outcomes of 1 tasks not stored") if unstored else nullcontext():
                await worker.stop(within_s=0.5 + 0.5 + 5)
            proxy.restore()
            assert worker.events_of(events.WorkerStopped)[0].unstored == unstored


async def test_stop_stores_results_after_a_table_lock(database_url: str, ledger: Ledger) -> None:
    config = {"recovery": {"running_stale_threshold_ms": 20_000}}
    async with worker_in_process(database_url, config=config, processes=1, async_concurrency=12) as worker:
        sent = [await worker.send("nap", 1.0) for _ in range(12)]
        await ledger.until_started(*sent)
        async with table_locked(database_url):
            worker.worker.stop()
            await asyncio.wait([worker.run], timeout=4.5)
        async with asyncio.timeout(20):
            await worker.run
        assert {summary(row) for row in (await ledger.rows(*sent)).values()} == {("COMPLETED", None, 0, 0)}
        assert await ledger.violations(sent) == []


@asynccontextmanager
async def table_locked(url: str) -> AsyncGenerator[None]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE horsies_tasks")
            yield
    finally:
        await connection.close()


async def test_results_left_behind_are_logged_and_end_with_1(
    database_url: str, ledger: Ledger, app: Horsies, tmp_path: Path
) -> None:
    async with Proxy(database_url).running() as proxy:
        options = ("--processes", "1", "--grace-s", "1")
        async with worker_process(database_url, *options, config={"database_url": proxy.url}) as worker:
            task = await send(app, "wait_for", str(tmp_path / "go"))
            await ledger.until_started(task)
            proxy.cut()
            worker.signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            assert await worker.until_gone(within_s=1 + 5 + 5 + 1) == 1
            assert "outcomes of 1 tasks not stored" in worker.log_text
            assert task in worker.log_text


SLOW_CHILD = """
import os, time
if "HORSIES_CHILD_PROCESS" in os.environ:
    time.sleep(600)
"""


@asynccontextmanager
async def starting_worker(url: str, folder: Path) -> AsyncGenerator[WorkerProcess]:
    """Run `horsies worker` with the app in a folder; yields at once, before it has started."""
    log = folder / "worker.log"
    with log.open("wb") as lines:
        popen = subprocess.Popen(  # noqa: ASYNC220  # takes no time
            [sys.executable, "-m", "horsies_ops.cli", "worker", "main:app", "--processes", "2"],
            cwd=folder,
            env={**os.environ, "HORSIES_BROKER__DATABASE_URL": url},
            stderr=lines,
        )
    worker = WorkerProcess(popen, log)
    try:
        yield worker
    finally:
        worker.children()
        popen.kill()
        popen.wait()
        await worker.until_children_are_gone()


async def test_signal_while_children_start_ends_the_worker(database_url: str, ledger: Ledger, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("main.py", f"{APP}app.discover_tasks(['tasks.py'])\n{SLOW_CHILD}")
    project.write_task("tasks.py", name="resize")
    async with starting_worker(database_url, tmp_path) as worker:
        await ledger.until(lambda: asyncio.to_thread(lambda: len(worker.children()) == 2), within_s=60)
        worker.signal(signal.SIGTERM)
        assert await worker.until_gone(within_s=5) == 0
        await worker.until_children_are_gone()
    assert await ledger.fetch("SELECT FROM horsies_workers") == []


SLOW_IMPORT = """
import pathlib, time
pathlib.Path("importing").touch()
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_during_the_import_ends_the_worker(
    database_url: str, ledger: Ledger, tmp_path: Path, number: signal.Signals
) -> None:
    Project(tmp_path).write("main.py", SLOW_IMPORT)
    async with starting_worker(database_url, tmp_path) as worker:
        await ledger.until(lambda: asyncio.to_thread((tmp_path / "importing").exists), within_s=60)
        worker.signal(number)
        assert await worker.until_gone(within_s=5) == 0
        assert "Traceback" not in worker.log_text


async def test_signal_while_the_database_is_unavailable_ends_the_worker(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("main.py", f"{APP}app.discover_tasks(['tasks.py'])\n")
    project.write_task("tasks.py", name="resize")
    async with starting_worker("postgresql://me:hunter2@127.0.0.1:1/db", tmp_path) as worker:
        await worker.wait_for_output("database unavailable", within_s=60)
        worker.signal(signal.SIGTERM)
        assert await worker.until_gone(within_s=5) == 0
        assert "hunter2" not in worker.log_text
        assert "  hint=check that the server is running and broker.database_url is correct\n" in worker.log_text
