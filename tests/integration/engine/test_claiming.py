"""Claiming: order, limits, pauses and leases."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from horsies.engine.dispatcher import Wakeup
from horsies.store.claims import ClaimedRow, ClaimRequest, ClaimStore
from tests.support.ledger import Ledger, insert_pending_tasks, statuses
from tests.support.workers import InProcessWorker, worker_in_process

LONG_TASK_S = 600
SAMPLE_S = 0.02

IN_FLIGHT = """
SELECT count(*), count(*) FILTER (WHERE queue_name = 'narrow')
  FROM horsies_tasks
 WHERE status IN ('RUNNING', 'CLAIMED')
"""


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


def queues(*names: str, **caps: int) -> dict[str, Any]:
    return {
        "queue_mode": "custom",
        "custom_queues": [{"name": name, "max_concurrency": caps.get(name)} for name in names],
    }


class Sampler:
    """Counts tasks in flight every 20 ms and keeps the maximum."""

    def __init__(self) -> None:
        self.max_total = 0
        self.max_narrow = 0
        self.samples = 0

    async def run(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        try:
            while True:
                total, narrow = await connection.fetchrow(IN_FLIGHT) or (0, 0)
                self.max_total, self.max_narrow = max(self.max_total, total), max(self.max_narrow, narrow)
                self.samples += 1
                await asyncio.sleep(SAMPLE_S)
        finally:
            await connection.close()


async def sample_during(url: str, work: Callable[[], Any]) -> Sampler:
    """Sample until `work` has finished."""
    sampler = Sampler()
    sampling = asyncio.create_task(sampler.run(url))
    await work()
    sampling.cancel()
    await asyncio.wait([sampling])
    return sampler


async def start_workers(stack: AsyncExitStack, count: int, url: str, **others: Any) -> list[InProcessWorker]:
    return list(
        await asyncio.gather(*(stack.enter_async_context(worker_in_process(url, **others)) for _ in range(count)))
    )


async def test_tasks_run_by_priority_then_by_age(database_url: str, ledger: Ledger) -> None:
    last = await insert_pending_tasks(ledger, "work", priority=90, count=2)
    middle = await insert_pending_tasks(ledger, "work", priority=50, count=3)
    first = await insert_pending_tasks(ledger, "work", priority=1, count=2)
    order = [*first, *middle, *last]
    async with worker_in_process(database_url, processes=1):
        await ledger.until_terminal(*order)
    assert [entry.task_id for entry in await ledger.starts()] == order


async def test_two_workers_run_each_of_many_tasks_once(database_url: str, ledger: Ledger, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    task_ids = await insert_pending_tasks(ledger, "append_line", str(lines), count=6_000)
    async with worker_in_process(database_url), worker_in_process(database_url):
        await ledger.until_terminal(*task_ids, within_s=60)
    assert Counter(lines.read_text().split()) == Counter(task_ids)
    assert await statuses(ledger, *task_ids) == ["COMPLETED"] * 6_000
    attempts = await ledger.fetch("SELECT task_id::text FROM horsies_task_attempts WHERE outcome = 'COMPLETED'")
    assert Counter(row["task_id"] for row in attempts) == Counter(task_ids)


async def test_four_workers_never_exceed_a_cap(database_url: str, ledger: Ledger) -> None:
    config = {**queues("narrow", "wide", narrow=2), "cluster_wide_cap": 3}
    narrow = await insert_pending_tasks(ledger, "work", 0.03, queue="narrow", count=15)
    failing = await insert_pending_tasks(ledger, "return_error", "UNLISTED", queue="narrow", count=10)
    wide = await insert_pending_tasks(ledger, "work", 0.03, queue="wide", count=40)
    task_ids = [*narrow, *failing, *wide]
    async with AsyncExitStack() as stack:
        sampling = asyncio.create_task(
            sample_during(database_url, lambda: ledger.until_terminal(*task_ids, within_s=40))
        )
        await start_workers(stack, 4, database_url, config=config, processes=1)
        seen = await sampling
    assert seen.samples > 10
    assert (seen.max_total, seen.max_narrow) == (3, 2)
    assert await ledger.violations(task_ids) == []


async def test_full_queue_does_not_block_others(database_url: str, ledger: Ledger) -> None:
    config = queues("narrow", "wide", narrow=1)
    stuck = await insert_pending_tasks(ledger, "work", LONG_TASK_S, queue="narrow", count=3)
    async with worker_in_process(database_url, config=config, processes=2):
        free = await insert_pending_tasks(ledger, "work", queue="wide", count=5)
        await ledger.until_terminal(*free)
        assert await statuses(ledger, *stuck) == ["PENDING", "PENDING", "RUNNING"]


async def test_nothing_is_claimed_from_a_queue_with_zero_cap(database_url: str, ledger: Ledger) -> None:
    closed = await insert_pending_tasks(ledger, "work", queue="narrow", count=3)
    free = await insert_pending_tasks(ledger, "work", queue="wide", count=3)
    async with worker_in_process(database_url, config=queues("narrow", "wide", narrow=0)):
        await ledger.until_terminal(*free)
        assert await statuses(ledger, *closed) == ["PENDING"] * 3


async def test_paused_queue_waits_until_resumed(database_url: str, ledger: Ledger, tmp_path: Path) -> None:
    async with worker_in_process(database_url, config=queues("narrow", "wide")):
        begun = await insert_pending_tasks(ledger, "wait_for", str(tmp_path / "go"), queue="narrow")
        await ledger.until_started(*begun)
        await ledger.fetch("INSERT INTO horsies_queues (queue_name, paused_at) VALUES ('narrow', now())")
        waiting = await insert_pending_tasks(ledger, "work", queue="narrow", count=2)
        (tmp_path / "go").touch()
        await ledger.until_terminal(*begun, *await insert_pending_tasks(ledger, "work", queue="wide"))
        assert await statuses(ledger, *waiting) == ["PENDING", "PENDING"]
        await ledger.fetch("UPDATE horsies_queues SET paused_at = NULL")
        await ledger.fetch("SELECT pg_notify('horsies_task_new', 'narrow')")
        await ledger.until_started(*waiting, within_s=1)


async def test_claim_batch_of_one_takes_one_task_per_queue(database_url: str, ledger: Ledger) -> None:
    ones = await insert_pending_tasks(ledger, "work", LONG_TASK_S, queue="narrow", count=2)
    others = await insert_pending_tasks(ledger, "work", LONG_TASK_S, queue="wide", count=2)
    async with worker_in_process(
        database_url, config=queues("narrow", "wide"), processes=4, max_claim_batch=1, grace_s=0
    ):
        await ledger.until_started(*ones, *others)
        for task_ids in (ones, others):
            rows = await ledger.rows(*task_ids)
            assert len({row["claimed_at"] for row in rows.values()}) == 2


async def test_task_with_expired_lease_runs_only_on_another_worker(
    database_url: str, ledger: Ledger, tmp_path: Path
) -> None:
    config = {"prefetch_buffer": 1, "claim_lease_ms": 500, "max_claim_renew_age_ms": 500}
    async with worker_in_process(database_url, config=config, processes=1) as first:
        busy = await insert_pending_tasks(ledger, "wait_for", str(tmp_path / "go"))
        await ledger.until_started(*busy)
        (waiting,) = await insert_pending_tasks(ledger, "work")
        await ledger.until(lambda: _is_claimed(ledger, waiting))
        async with worker_in_process(database_url, config=config, processes=1):
            row = (await ledger.until_terminal(waiting))[waiting]
        (tmp_path / "go").touch()
        await ledger.until_terminal(*busy)
        await first.stop()
    assert (row["status"], row["claim_token"], row["retry_count"]) == ("COMPLETED", 2, 0)
    assert [entry.claim_token for entry in await ledger.starts(waiting)] == [2]
    assert await ledger.violations([*busy, waiting]) == []


async def _is_claimed(ledger: Ledger, task_id: str) -> bool:
    return (await ledger.row(task_id))["status"] == "CLAIMED"


async def test_renewed_lease_keeps_the_claim(database_url: str, ledger: Ledger, tmp_path: Path) -> None:
    config = {"prefetch_buffer": 1, "claim_lease_ms": 600}
    async with worker_in_process(database_url, config=config, processes=1):
        busy = await insert_pending_tasks(ledger, "wait_for", str(tmp_path / "go"))
        await ledger.until_started(*busy)
        (waiting,) = await insert_pending_tasks(ledger, "work")
        await ledger.until(lambda: _is_claimed(ledger, waiting))
        async with worker_in_process(database_url, config=config, processes=1):
            await ledger.until(lambda: _has_claimer_heartbeats(ledger, count=8))
            row = await ledger.row(waiting)
            assert (row["status"], row["claim_token"]) == ("CLAIMED", 1)
            (tmp_path / "go").touch()
            await ledger.until_terminal(*busy, waiting)
    assert await ledger.violations([*busy, waiting]) == []


async def _has_claimer_heartbeats(ledger: Ledger, *, count: int) -> bool:
    (row,) = await ledger.fetch("SELECT count(*) AS count FROM horsies_heartbeats WHERE role = 'claimer'")
    return row["count"] >= count


async def test_claim_without_lease_does_not_expire(database_url: str, ledger: Ledger) -> None:
    (orphan,) = await insert_pending_tasks(ledger, "work")
    await ledger.fetch(
        "UPDATE horsies_tasks SET status = 'CLAIMED', claim_token = 1, claimed_at = now() - interval '1 hour',"
        " claimed_by_worker_id = $1",
        uuid4(),
    )
    async with worker_in_process(database_url, processes=1):
        await ledger.until_terminal(*await insert_pending_tasks(ledger, "work", count=3))
        assert await statuses(ledger, orphan) == ["CLAIMED"]


RARE_POLLS: dict[str, Any] = {"resilience": {"notify_poll_interval_ms": 60_000}}


async def test_delayed_task_starts_when_it_is_due(database_url: str, ledger: Ledger) -> None:
    async with worker_in_process(database_url, config=RARE_POLLS, processes=1) as worker:
        sent = [await worker.app.tasks["work"].schedule_async(delay_s) for delay_s in (3, 2)]
        for row in (await ledger.until_terminal(*(handle.unwrap().task_id for handle in sent))).values():
            assert row["started_at"] - row["enqueued_at"] < timedelta(seconds=1)


async def test_delayed_task_sent_to_a_full_worker_starts_when_it_is_due(database_url: str, ledger: Ledger) -> None:
    async with worker_in_process(database_url, config=RARE_POLLS, processes=1) as worker:
        await ledger.until_started(await worker.send("work", 1.0))
        task_id = (await worker.app.tasks["work"].schedule_async(2)).unwrap().task_id
        row = (await ledger.until_terminal(task_id))[task_id]
        assert row["started_at"] - row["enqueued_at"] < timedelta(seconds=1)


async def test_delayed_task_is_found_by_the_poll_without_its_notification(database_url: str, ledger: Ledger) -> None:
    config: dict[str, Any] = {"resilience": {"notify_poll_interval_ms": 1000}}
    async with worker_in_process(database_url, config=config, processes=1) as worker:
        await ledger.fetch("ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_tasks_announce")
        task_id = (await worker.app.tasks["work"].schedule_async(2)).unwrap().task_id
        row = (await ledger.until_terminal(task_id))[task_id]
        assert row["started_at"] - row["enqueued_at"] < timedelta(seconds=2)


async def test_task_locked_during_the_claim_is_found_by_a_second_one(
    database_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker that was woken by the same notification may hold the row, and then not take it."""
    monkeypatch.setattr("horsies.engine.dispatcher.RECHECK_DELAY_S", 1.0)
    notified, claimed = asyncio.Event(), asyncio.Event()
    claim, on_task_notification = ClaimStore.claim, Wakeup.on_task_notification

    def record_notification(wakeup: Wakeup) -> None:
        notified.set()
        on_task_notification(wakeup)

    async def record_claim(store: ClaimStore, request: ClaimRequest) -> list[ClaimedRow]:
        is_notified = notified.is_set()
        rows = await claim(store, request)
        if is_notified:
            claimed.set()
        return rows

    monkeypatch.setattr(Wakeup, "on_task_notification", record_notification)
    monkeypatch.setattr(ClaimStore, "claim", record_claim)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    async with worker_in_process(database_url, config=RARE_POLLS, processes=1):
        await connection.execute("ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_tasks_announce")
        await ledger.fetch("INSERT INTO horsies_queues (queue_name, paused_at) VALUES ('default', now())")
        (task_id,) = await insert_pending_tasks(ledger, "work")
        async with connection.transaction():
            await connection.execute("SELECT FROM horsies_tasks FOR UPDATE")
            await ledger.fetch("DELETE FROM horsies_queues")
            await ledger.fetch("SELECT pg_notify('horsies_task_new', 'default')")
            await claimed.wait()
            assert (await ledger.row(task_id))["status"] == "PENDING"
        await ledger.until_terminal(task_id)
    await connection.close()


async def test_coroutines_do_not_delay_functions(database_url: str, ledger: Ledger) -> None:
    async with worker_in_process(database_url, processes=2) as worker:
        naps = [await worker.send("nap", 4.0) for _ in range(12)]
        await ledger.until_started(*naps[:10])
        first = (await worker.app.tasks["work"].with_options(priority=1).send_async()).unwrap().task_id
        second = await worker.send("work")
        rows = await ledger.until_terminal(first, second)
        for row in rows.values():
            assert row["started_at"] - row["enqueued_at"] < timedelta(seconds=1)
        assert (await ledger.row(naps[-1]))["status"] == "PENDING"
        assert len({start.pid for start in await ledger.starts(*naps[:10])}) == 1


async def test_coroutines_that_are_due_at_once_leave_a_child_to_functions(database_url: str, ledger: Ledger) -> None:
    naps = await insert_pending_tasks(ledger, "nap", 30, count=4)
    async with worker_in_process(database_url, processes=2, grace_s=0) as worker:
        await ledger.until_started(*naps)
        function = await worker.send("work")
        row = (await ledger.until_terminal(function))[function]
    assert row["started_at"] - row["enqueued_at"] < timedelta(seconds=1)
    assert len({start.pid for start in await ledger.starts(*naps)}) == 1


async def test_function_starts_while_coroutines_wait_for_a_slot(database_url: str, ledger: Ledger) -> None:
    """One child is full of coroutines and the prefetch buffer, too; the other child is kept for functions."""
    config = {"prefetch_buffer": 2, "claim_lease_ms": 60_000, "max_claim_renew_age_ms": 120_000}
    async with worker_in_process(database_url, config=config, processes=2, async_concurrency=1, grace_s=0) as worker:
        naps = [await worker.send("nap", 60) for _ in range(3)]
        await ledger.until(lambda: _are_claimed(ledger, naps))
        function = await worker.send("work")
        assert (await ledger.until_terminal(function, within_s=5))[function]["status"] == "COMPLETED"


async def _are_claimed(ledger: Ledger, task_ids: list[str]) -> bool:
    return sorted(row["status"] for row in (await ledger.rows(*task_ids)).values()) == ["CLAIMED", "CLAIMED", "RUNNING"]
