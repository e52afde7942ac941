"""Statements that the server executed but whose answers were lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from horsies.engine import events
from tests.support.faults import Proxy
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, worker_in_process


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(database_url).running() as proxy:
        yield proxy


async def has_no_late_results(ledger: Ledger, worker: InProcessWorker) -> bool:
    return not worker.events_of(events.LateResultRefused) and not await ledger.events("late_result_refused")


async def test_claim_with_lost_answer_is_released_and_runs_once(
    ledger: Ledger, proxy: Proxy, database_url: str
) -> None:
    async with worker_in_process(database_url, config={"database_url": proxy.url}, processes=1) as worker:
        proxy.lose_answer("claims.claim_chunk", containing=b"0.0625")
        task_id = await worker.send("work", 0.0625)
        row = (await ledger.until_terminal(task_id))[task_id]
        assert (row["status"], row["claim_token"], row["attempts"], row["crash_count"]) == ("COMPLETED", 2, 1, 0)
        assert proxy.lost == 1
        assert await has_no_late_results(ledger, worker)
        assert await ledger.violations([task_id]) == []


async def test_start_with_lost_answer_is_released_and_runs_once(
    ledger: Ledger, proxy: Proxy, database_url: str, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"database_url": proxy.url, "prefetch_buffer": 1, "claim_lease_ms": 30_000}
    async with worker_in_process(database_url, config=config, processes=1) as worker:
        first = await worker.send("wait_for", str(tmp_path / "go"))
        await ledger.until_started(first)
        second = await worker.send("work")

        async def is_claimed() -> bool:
            return (await ledger.row(second))["status"] == "CLAIMED"

        await ledger.until(is_claimed)
        proxy.lose_answer("claims.start", containing=UUID(second).bytes)
        (tmp_path / "go").touch()
        rows = await ledger.until_terminal(first, second)
        row = rows[second]
        assert (row["status"], row["claim_token"], row["attempts"], row["crash_count"]) == ("COMPLETED", 2, 1, 0)
        assert proxy.lost == 1
        assert await has_no_late_results(ledger, worker)
        assert await ledger.violations([first, second]) == []


@pytest.mark.parametrize(
    ("task", "arguments", "statement", "codes"),
    [
        ("work", (), "complete", [None]),
        ("return_error", ("LISTED",), "finish", ["LISTED"] * 3),
        ("kill_self", (), "finish", ["WORKER_CRASHED"]),
    ],
)
async def test_outcome_with_lost_answer_is_stored_once(
    ledger: Ledger,
    proxy: Proxy,
    database_url: str,
    task: str,
    arguments: tuple[Any, ...],
    statement: str,
    codes: list[str | None],
) -> None:
    async with worker_in_process(database_url, config={"database_url": proxy.url}, processes=1) as worker:
        task_id = await worker.send(task, *arguments)
        # The answer to `complete` is only a number, with its length before it.
        answer = b"\0\0\0\4\0\0\0\1" if statement == "complete" else UUID(task_id).bytes
        proxy.lose_answer(f"claims.{statement}", containing=answer)
        await ledger.until_terminal(task_id)
        await worker.until(lambda: proxy.lost == 1)
        assert [attempt["error_code"] for attempt in await ledger.attempts(task_id)] == codes
        assert await has_no_late_results(ledger, worker)
        assert await ledger.violations([task_id]) == []


async def test_claim_executed_after_it_was_abandoned_is_released(ledger: Ledger, database_url: str) -> None:
    async with worker_in_process(database_url, processes=1) as worker:
        task_id = (await worker.app.tasks["work"].schedule_async(3600)).unwrap().task_id
        await ledger.fetch(
            """
            UPDATE horsies_tasks
               SET status = 'RUNNING', claimed_by_worker_id = $2::text::uuid, claim_token = 1, enqueued_at = now(),
                   claimed_at = now(), started_at = now()
             WHERE id = $1::text::uuid
            """,
            task_id,
            worker.worker_id,
        )
        row = (await ledger.until_terminal(task_id))[task_id]
        assert (row["status"], row["claim_token"], row["attempts"], row["crash_count"]) == ("COMPLETED", 2, 1, 0)
        assert await ledger.violations([task_id]) == []
