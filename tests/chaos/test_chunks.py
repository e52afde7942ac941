"""Chunks of short tasks: one that turns out slow or deadly costs the others nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from horsies import Ok
from horsies.model import events
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, worker_in_process

OFTEN = {
    "recovery": {
        "runner_heartbeat_interval_ms": 50,
        "running_stale_threshold_ms": 60_000,
        "worker_stale_threshold_ms": 60_000,
    }
}


async def test_short_tasks_behind_a_slow_one_are_called_back(database_url: str, tmp_path: Path) -> None:
    opened, shut = tmp_path / "open", tmp_path / "shut"
    opened.touch()
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url) as worker:
        lessons = await _send(worker, "wait_for", [{"file": str(opened)}] * 60)
        await ledger.until_terminal(*lessons)
        slow, *short = await _send(worker, "wait_for", [{"file": str(shut)}, *[{"file": str(opened)}] * 40])
        await ledger.until_terminal(*short)
        assert (await ledger.row(slow))["status"] == "RUNNING"
        assert worker.events_of(events.ChunkRecalled)
        shut.touch()
        await ledger.until_terminal(slow)
        assert {row["attempts"] for row in (await ledger.rows(slow, *short)).values()} == {1}
        assert await ledger.violations([slow, *short, *lessons]) == []


async def test_a_death_in_a_chunk_costs_the_task_that_ran_and_no_other(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        lessons = await _send(worker, "exit_if", [{"condition": False}] * 60)
        await ledger.until_terminal(*lessons)
        ids = await _send(worker, "exit_if", [{"condition": number == 3} for number in range(20)])
        rows = await ledger.until_terminal(*ids)
        assert [number for number, each in enumerate(ids) if rows[each]["status"] == "FAILED"] == [3]
        assert rows[ids[3]]["error_code"] == "WORKER_CRASHED"
        assert {rows[each]["attempts"] for each in ids} == {1}
        assert max(rows[each]["claim_token"] for each in ids) == 2, "none was in a chunk with it"
        assert await ledger.violations([*ids, *lessons]) == []


async def test_a_beat_that_crosses_a_task_on_its_way_back_is_no_sign_of_a_lost_row(
    database_url: str, tmp_path: Path
) -> None:
    opened, shut = tmp_path / "open", tmp_path / "shut"
    opened.touch()
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=OFTEN, processes=1) as worker,
    ):
        await ledger.until_terminal(*await _send(worker, "wait_for", [{"file": str(opened)}] * 60))
        async with holding_up_beats(database_url):
            slow, *short = await _send(worker, "wait_for", [{"file": str(shut)}, *[{"file": str(opened)}] * 40])
            await worker.wait_for_event(events.ChunkRecalled)
            await worker.until(lambda: not any(worker.has_in_flight(each) for each in short))
        shut.touch()
        await ledger.until_terminal(slow, *short)
        assert worker.events_of(events.LateHeartbeatRefused) == []


@asynccontextmanager
async def holding_up_beats(url: str) -> AsyncGenerator[None]:
    """What is beaten for meanwhile is looked up when this is over."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE horsies_heartbeats")
            yield
    finally:
        await connection.close()


async def _send(worker: InProcessWorker, name: str, items: Iterable[dict[str, Any]]) -> list[str]:
    """In one statement, so that they are claimed together."""
    sent = await worker.app.tasks[name].send_many_async(items)
    assert isinstance(sent, Ok), sent
    return [handle.task_id for handle in sent.value]
