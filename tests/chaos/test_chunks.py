"""Chunks of short tasks: a slow or crashing task does not affect the others in its chunk.

Each test first runs many short tasks, because only tasks with a known short duration are sent in chunks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from horsies import Ok
from horsies.engine import events
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, worker_in_process

FREQUENT_HEARTBEATS = {
    "recovery": {
        "runner_heartbeat_interval_ms": 50,
        "running_stale_threshold_ms": 60_000,
        "worker_stale_threshold_ms": 60_000,
    }
}


async def test_short_tasks_behind_a_slow_one_are_recalled(database_url: str, tmp_path: Path) -> None:
    open_gate, closed_gate = tmp_path / "open", tmp_path / "shut"
    open_gate.touch()
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url) as worker:
        measured = await _send(worker, "wait_for", [{"file": str(open_gate)}] * 60)
        await ledger.until_terminal(*measured)
        slow, *short = await _send(worker, "wait_for", [{"file": str(closed_gate)}, *[{"file": str(open_gate)}] * 40])
        await ledger.until_terminal(*short)
        assert (await ledger.row(slow))["status"] == "RUNNING"
        assert worker.events_of(events.ChunkRecalled)
        closed_gate.touch()
        await ledger.until_terminal(slow)
        assert {row["attempts"] for row in (await ledger.rows(slow, *short)).values()} == {1}
        assert await ledger.violations([slow, *short, *measured]) == []


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
    open_gate, closed_gate = tmp_path / "open", tmp_path / "shut"
    open_gate.touch()
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=FREQUENT_HEARTBEATS, processes=1) as worker,
    ):
        await ledger.until_terminal(*await _send(worker, "wait_for", [{"file": str(open_gate)}] * 60))
        async with blocked_heartbeats(database_url):
            slow, *short = await _send(
                worker, "wait_for", [{"file": str(closed_gate)}, *[{"file": str(open_gate)}] * 40]
            )
            await worker.wait_for_event(events.ChunkRecalled)
            await worker.until(lambda: not any(worker.has_in_flight(task_id) for task_id in short))
        closed_gate.touch()
        await ledger.until_terminal(slow, *short)
        assert worker.events_of(events.LateHeartbeatRefused) == []


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
