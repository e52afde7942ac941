"""Chunks of short tasks: a slow or crashing task does not affect the others in its chunk.

Each test first runs many short tasks, because only tasks with a known short duration are sent in chunks.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from horsies import Ok
from horsies.engine import events
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import InProcessWorker, WorkerProcess, worker_in_process, worker_process

FREQUENT_HEARTBEATS = {
    "recovery": {
        "runner_heartbeat_interval_ms": 50,
        "running_stale_threshold_ms": 60_000,
        "worker_stale_threshold_ms": 60_000,
    }
}


class Gates:
    """Short tasks behind an open gate and slow ones behind a closed one; each appends its id to `lines` when it ends.

    They do not use the ledger: on a busy machine its statements would make them too slow for chunks.
    """

    def __init__(self, folder: Path) -> None:
        self._open, self.closed, self._lines = folder / "open", folder / "closed", folder / "lines"
        self._open.touch()

    def send(self, worker: InProcessWorker, *, slow: int = 0, short: int) -> Coroutine[Any, Any, list[str]]:
        gates = [self.closed] * slow + [self._open] * short
        items = [{"gate": str(gate), "file": str(self._lines)} for gate in gates]
        return _send(worker, "append_line_after", items)

    def runs(self) -> Counter[str]:
        return Counter(self._lines.read_text().split())


async def test_short_tasks_behind_a_slow_one_are_recalled(database_url: str, tmp_path: Path) -> None:
    gates = Gates(tmp_path)
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=2) as worker:
        measured = await gates.send(worker, short=60)
        await ledger.until_terminal(*measured)
        slow, *short = await gates.send(worker, slow=1, short=40)
        await ledger.until_terminal(*short)
        assert (await ledger.row(slow))["status"] == "RUNNING"
        assert worker.events_of(events.ChunkRecalled)
        gates.closed.touch()
        await ledger.until_terminal(slow)
        sent = [slow, *short, *measured]
        assert gates.runs() == Counter(sent)
        assert {row["attempts"] for row in (await ledger.rows(*sent)).values()} == {1}
        assert await ledger.violations(sent, unrecorded=sent) == []


async def test_crash_in_a_chunk_affects_only_the_running_task(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        measured = await _send(worker, "exit_if", [{"condition": False}] * 60)
        await ledger.until_terminal(*measured)
        ids = await _send(worker, "exit_if", [{"condition": number == 3} for number in range(20)])
        rows = await ledger.until_terminal(*ids)
        assert [number for number, task_id in enumerate(ids) if rows[task_id]["status"] == "FAILED"] == [3]
        assert rows[ids[3]]["error_code"] == "WORKER_CRASHED"
        assert {rows[task_id]["attempts"] for task_id in ids} == {1}
        assert max(rows[task_id]["claim_token"] for task_id in ids) == 2, "no other task was in its chunk"
        assert await ledger.violations([*ids, *measured]) == []


async def test_heartbeat_during_a_release_reports_no_lost_row(database_url: str, tmp_path: Path) -> None:
    gates = Gates(tmp_path)
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=FREQUENT_HEARTBEATS, processes=1) as worker,
    ):
        await ledger.until_terminal(*await gates.send(worker, short=60))
        async with blocked_heartbeats(database_url):
            slow, *short = await gates.send(worker, slow=1, short=40)
            await worker.wait_for_event(events.ChunkRecalled)
            await worker.until(lambda: not any(worker.has_in_flight(task_id) for task_id in short))
        gates.closed.touch()
        await ledger.until_terminal(slow, *short)
        assert worker.events_of(events.LateHeartbeatRefused) == []


PROCESSES = 2
MAX_UNBEGUN = PROCESSES * 256
"""The documented number of tasks that a killed worker had sent to its children and that had not begun."""
PREFETCHING = {"prefetch_buffer": 200, "claim_lease_ms": 60_000}
STATES = "SELECT id::text, status FROM horsies_tasks"
COUNT = "SELECT count(*) AS count FROM horsies_tasks WHERE status = $1"


@pytest.mark.timeout(180)
async def test_killed_worker_costs_only_tasks_in_its_children(database_url: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    async with Ledger.open(database_url) as ledger:
        names = await _send_short_tasks(database_url, str(lines))
        connections = await ledger.connections()
        async with worker_process(database_url, "--processes", str(PROCESSES), config=PREFETCHING) as worker:
            await _fill_children(ledger, worker, lines)
            worker.signal(signal.SIGKILL)
            await worker.until_children_are_gone(within_s=10)
            await ledger.until_connections_are(connections)
        states = {row["id"]: row["status"] for row in await ledger.fetch(STATES)}
        runs_before = Counter(lines.read_text().split())
        async with worker_in_process(database_url, config=PREFETCHING):
            rows = await ledger.until_terminal(*names, within_s=90)
            assert await ledger.violations(list(names), unrecorded=names) == []
        runs = Counter(lines.read_text().split())

    unbegun = [task_id for task_id, status in states.items() if status == "RUNNING" and not runs_before[task_id]]
    assert 0 < len(unbegun) <= MAX_UNBEGUN
    for task_id, status in states.items():
        row, before = rows[task_id], runs_before[task_id]
        facts = (row["status"], row["error_code"], row["retry_count"], row["attempts"], row["crash_count"])
        if status != "RUNNING":
            expected = ("COMPLETED", None, 0, 1, 0), 1
        elif names[task_id] == "append_line_again":
            expected = ("COMPLETED", None, 1, 2, 1), before + 1
        else:
            expected = ("FAILED", "WORKER_CRASHED", 0, 1, 1), before
        assert (facts, runs[task_id]) == expected, status


async def _send_short_tasks(url: str, file: str) -> dict[str, str]:
    """Send many very short tasks, with and without retries; returns their names by id."""
    app, names = ledger_app(url), dict[str, str]()
    for _ in range(20):
        for name in ("append_line", "append_line_again"):
            sent = await app.tasks[name].send_many_async([{"file": file}] * 200)
            names |= {handle.task_id: name for handle in sent.unwrap()}
    await app.close_async()
    return names


async def _fill_children(ledger: Ledger, worker: WorkerProcess, lines: Path) -> None:
    """Stop the children in the middle of their work; the worker sends them all they may hold, then prefetches.

    While the tasks seem to take long, for example on a busy machine, a child holds only one; then it works on.
    """

    async def has(status: str, count: int) -> bool:
        (row,) = await ledger.fetch(COUNT, status)
        return row["count"] >= count

    for completed in itertools.count(2_000, 500):
        await ledger.until(lambda completed=completed: has("COMPLETED", completed), within_s=60)
        for pid in worker.children():
            os.kill(pid, signal.SIGSTOP)
        await ledger.until(lambda: has("CLAIMED", PREFETCHING["prefetch_buffer"]), within_s=60)
        begun = set(lines.read_text().split())
        if any(row["status"] == "RUNNING" and row["id"] not in begun for row in await ledger.fetch(STATES)):
            return
        for pid in worker.children():
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def blocked_heartbeats(url: str) -> AsyncGenerator[None]:
    """Block heartbeats on a table lock until the block ends."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE horsies_heartbeats")
            yield
    finally:
        await connection.close()


async def _send(worker: InProcessWorker, name: str, items: Iterable[dict[str, Any]]) -> list[str]:
    """Send in one statement, so that the tasks are claimed together."""
    sent = await worker.app.tasks[name].send_many_async(items)
    assert isinstance(sent, Ok), sent
    return [handle.task_id for handle in sent.value]
