"""A worker that was declared lost returns: what it may still do, and what is refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from horsies.engine import events
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import groups_alive, send, worker_in_process, worker_process

DECLARE_LOST = "UPDATE horsies_workers SET state = 'lost' WHERE id = $1::text::uuid"
CLAIM_BY_ANOTHER = """
UPDATE horsies_tasks SET claim_token = claim_token + 1, claimed_by_worker_id = gen_random_uuid()
 WHERE id = $1::text::uuid
"""
REQUEUE = """
UPDATE horsies_tasks SET status = 'PENDING', claimed_by_worker_id = NULL, started_at = NULL WHERE id = $1::text::uuid
"""
FINISH_ELSEWHERE = """
UPDATE horsies_tasks
   SET claim_token = claim_token + 1, claimed_by_worker_id = gen_random_uuid(), status = 'COMPLETED',
       result = '{"ok": "elsewhere"}', completed_at = now(), terminal_at = now()
 WHERE id = $1::text::uuid
"""


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


async def owner_of(ledger: Ledger, task_id: str) -> str:
    sql = "SELECT claimed_by_worker_id::text AS owner FROM horsies_tasks WHERE id = $1::text::uuid"
    return (await ledger.fetch(sql, task_id))[0]["owner"]


async def until_state(ledger: Ledger, worker_id: str, state: str) -> None:
    async def has_state() -> bool:
        sql = "SELECT FROM horsies_workers WHERE id = $1::text::uuid AND state = $2"
        return bool(await ledger.fetch(sql, worker_id, state))

    await ledger.until(has_state)


async def test_lost_worker_continues_under_a_new_id(ledger: Ledger, database_url: str, tmp_path: Path) -> None:
    async with worker_in_process(database_url, processes=2) as worker:
        former = worker.worker_id
        running = await worker.send("wait_for", str(tmp_path / "go"))
        await ledger.until_started(running)
        await ledger.fetch(DECLARE_LOST, former)
        returned = await worker.wait_for_event(events.WorkerReturned)
        assert (returned.former_worker_id, returned.worker_id) == (former, worker.worker_id)
        await until_state(ledger, worker.worker_id, "running")

        new = await worker.send("work")
        await ledger.until_terminal(new)
        assert await owner_of(ledger, new) == worker.worker_id
        (tmp_path / "go").touch()
        await ledger.until_terminal(running)
        assert await owner_of(ledger, running) == former
        await until_state(ledger, former, "stopped")
        assert not worker.events_of(events.LateResultRefused)
        assert await ledger.violations([running, new]) == []


async def test_lost_worker_releases_its_claims(ledger: Ledger, database_url: str, tmp_path: Path) -> None:
    config = {"prefetch_buffer": 1, "claim_lease_ms": 30_000}
    async with worker_in_process(database_url, config=config, processes=1) as worker:
        former = worker.worker_id
        first = await worker.send("wait_for", str(tmp_path / "go"))
        second = await worker.send("work")

        async def is_claimed() -> bool:
            return (await ledger.row(second))["status"] == "CLAIMED"

        await ledger.until(is_claimed)
        await ledger.fetch(DECLARE_LOST, former)
        await worker.wait_for_event(events.WorkerReturned)
        (tmp_path / "go").touch()
        rows = await ledger.until_terminal(first, second)
        assert await owner_of(ledger, second) == worker.worker_id != former
        assert (rows[second]["attempts"], rows[second]["claim_token"]) == (1, 2)
        assert await ledger.violations([first, second]) == []


async def test_outcome_of_a_task_finished_elsewhere_is_refused(
    ledger: Ledger, database_url: str, tmp_path: Path
) -> None:
    rare_heartbeats = {"recovery": {"runner_heartbeat_interval_ms": 60_000, "running_stale_threshold_ms": 120_000}}
    async with worker_in_process(database_url, config=rare_heartbeats, processes=1) as worker:
        task_id = await worker.send("wait_for", str(tmp_path / "go"))
        await ledger.until_started(task_id)
        await ledger.fetch(FINISH_ELSEWHERE, task_id)
        (tmp_path / "go").touch()
        late = await worker.wait_for_event(events.LateResultRefused)
        assert (late.task_id, late.claim_token, late.token_now, late.status) == (task_id, 1, 2, "COMPLETED")
        row = await ledger.row(task_id)
        assert json.loads(row["result"]) == {"ok": "elsewhere"}
        assert await ledger.attempts(task_id) == []

        async def is_stored() -> bool:
            return [event["task_id"] for event in await ledger.events("late_result_refused")] == [task_id]

        await ledger.until(is_stored)
        after = await worker.send("work")
        await ledger.until_terminal(after)
        assert await ledger.violations([after]) == []


async def test_refused_crash_is_not_reported_as_poison(ledger: Ledger, database_url: str, tmp_path: Path) -> None:
    rare_heartbeats = {"runner_heartbeat_interval_ms": 60_000, "running_stale_threshold_ms": 120_000, "max_crashes": 1}
    async with worker_in_process(database_url, config={"recovery": rare_heartbeats}, processes=1) as worker:
        task_id = await worker.send("wait_for", str(tmp_path / "never"))
        await ledger.until_started(task_id)
        await ledger.fetch(FINISH_ELSEWHERE, task_id)
        await worker.kill_children()
        await worker.wait_for_event(events.LateResultRefused)
        await worker.until(lambda: not worker.has_in_flight(task_id))
        assert worker.events_of(events.TaskPoisoned) == []


async def test_task_claimed_by_another_worker_is_stopped(ledger: Ledger, database_url: str, tmp_path: Path) -> None:
    async with worker_in_process(database_url, processes=1) as worker:
        task_id = await worker.send("wait_for", str(tmp_path / "never"))
        await ledger.until_started(task_id)
        (entry,) = await ledger.starts(task_id)
        await ledger.fetch(CLAIM_BY_ANOTHER, task_id)
        await worker.wait_for_event(events.LateHeartbeatRefused)
        await worker.until(lambda: not groups_alive({entry.pid}))
        assert await count_heartbeats(ledger, task_id, token=2) == 0
        row = await ledger.row(task_id)
        assert (row["status"], row["claim_token"], row["attempts"]) == ("RUNNING", 2, 0)
        after = await worker.send("work")
        await ledger.until_terminal(after)
        assert not worker.events_of(events.LateResultRefused)


async def count_heartbeats(ledger: Ledger, task_id: str, *, token: int) -> int:
    sql = "SELECT FROM horsies_heartbeats WHERE task_id = $1::text::uuid AND claim_token = $2"
    return len(await ledger.fetch(sql, task_id, token))


async def test_suspended_worker_changes_nothing_after_a_takeover(
    ledger: Ledger, database_url: str, tmp_path: Path
) -> None:
    async with worker_process(database_url, "--processes", "1") as zombie:
        app = ledger_app(database_url)
        task_id = await send(app, "wait_for", str(tmp_path / "go"))
        await ledger.until_started(task_id)
        group = [zombie.pid, *zombie.children()]
        for pid in group:
            os.kill(pid, signal.SIGSTOP)
        await ledger.fetch("UPDATE horsies_workers SET state = 'lost'")
        await ledger.fetch(REQUEUE, task_id)
        (tmp_path / "go").touch()
        async with worker_in_process(database_url, processes=1):
            result = (await ledger.until_terminal(task_id))[task_id]["result"]
        for pid in group:
            os.kill(pid, signal.SIGCONT)

        async def is_refused() -> bool:
            refused = [*await ledger.events("late_result_refused"), *await ledger.events("late_beat_refused")]
            return {event["task_id"] for event in refused} == {task_id}

        await ledger.until(is_refused)
        await ledger.until(lambda: ledger.events("worker_returned"))
        row = await ledger.row(task_id)
        assert (row["result"], row["attempts"], row["crash_count"]) == (result, 1, 0)
        after = await send(app, "work")
        await ledger.until_terminal(after)
        assert await ledger.violations([after]) == []
        await app.close_async()
