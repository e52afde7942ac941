"""What the reaper recovers and what it leaves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies.engine import events
from tests.support.ledger import Ledger, OrphanedTask, insert_pending_tasks
from tests.support.ledger_app import QUICK_RECOVERY
from tests.support.workers import worker_in_process

THRESHOLD_S = QUICK_RECOVERY["running_stale_threshold_ms"] / 1000
NO_OUTAGE_GRACE: dict[str, Any] = {"recovery": {"outage_grace": False}}
RESILIENT = "infrastructure_resilient"


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


async def status_of(ledger: Ledger, task_id: str) -> str:
    return (await ledger.row(task_id))["status"]


async def reasons(ledger: Ledger) -> set[str]:
    rows = await ledger.fetch("SELECT evidence->>'reason' AS reason FROM horsies_events WHERE task_id IS NOT NULL")
    return {row["reason"] for row in rows if row["reason"]}


@pytest.mark.parametrize(
    ("orphan", "reason"),
    [
        (OrphanedTask(thresholds={"worker_stale_threshold_ms": 3_600_000}), "HEARTBEAT_LOST"),
        (OrphanedTask(), "OWNER_LOST"),
        (OrphanedTask(state="lost"), "OWNER_LOST"),
        (OrphanedTask(state=None), "OWNER_MISSING"),
    ],
    ids=["owner with long thresholds", "silent owner", "owner declared lost", "owner without row"],
)
async def test_silent_task_fails_after_its_threshold(
    ledger: Ledger, database_url: str, orphan: OrphanedTask, reason: str
) -> None:
    task_id = await orphan.insert(ledger)
    series_starts: set[datetime] = set()
    async with worker_in_process(database_url, processes=1) as worker:

        async def has_ended() -> bool:
            if worker.health.series is not None:
                series_starts.add(worker.health.series.since)
            return await status_of(ledger, task_id) != "RUNNING"

        await ledger.until(has_ended)
        row = await ledger.row(task_id)
        # A pause of the machine may begin a new series after the decision.
        since = max(start for start in series_starts if start < row["terminal_at"])
        assert (row["terminal_at"] - since).total_seconds() >= THRESHOLD_S, "it must listen for one threshold first"
    assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "WORKER_CRASHED", 1)
    assert reason in await reasons(ledger)


async def test_task_of_a_stopped_owner_is_recovered_without_waiting(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask(state="stopped", silent_s=0.0).insert(ledger)
    long_thresholds = {"recovery": {"running_stale_threshold_ms": 600_000}}
    async with worker_in_process(database_url, processes=1, config=long_thresholds):
        await ledger.until_terminal(task_id)
    assert await reasons(ledger) == {"OWNER_STOPPED"}


async def test_claimed_task_of_a_dead_owner_is_requeued(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask(status="CLAIMED").insert(ledger)
    async with worker_in_process(database_url, processes=1):
        row = (await ledger.until_terminal(task_id))[task_id]
    facts = (row["status"], row["retry_count"], row["crash_count"], row["attempts"], row["failed_reason"])
    assert facts == ("COMPLETED", 0, 0, 1, None)


async def test_resilient_tasks_wait_three_thresholds(ledger: Ledger, database_url: str) -> None:
    silent_s = 1.5 * THRESHOLD_S
    async with worker_in_process(
        database_url, processes=1, config=NO_OUTAGE_GRACE
    ):  # started first: its start may take longer than the threshold
        flagged = await OrphanedTask(silent_s=silent_s, flags={RESILIENT: True}).insert(ledger)
        plain = await OrphanedTask(silent_s=silent_s, flags={RESILIENT: False}).insert(ledger)
        await ledger.until_terminal(plain)
        assert await status_of(ledger, flagged) == "RUNNING"
        row = (await ledger.until_terminal(flagged))[flagged]
    (attempt,) = await ledger.attempts(flagged)
    assert (row["terminal_at"] - attempt["started_at"]).total_seconds() >= 3 * THRESHOLD_S


async def test_longer_threshold_of_the_owner_wins(ledger: Ledger, database_url: str) -> None:
    task = await OrphanedTask(silent_s=10, thresholds={"running_stale_threshold_ms": 600_000}).insert(ledger)
    other = await OrphanedTask(silent_s=10).insert(ledger)
    async with worker_in_process(database_url, processes=1, config=NO_OUTAGE_GRACE):
        await ledger.until_terminal(other)
        assert await status_of(ledger, task) == "RUNNING"


async def test_disabled_recovery_leaves_the_rows(ledger: Ledger, database_url: str) -> None:
    left = [await OrphanedTask(status="CLAIMED").insert(ledger), await OrphanedTask().insert(ledger)]
    switches = {"outage_grace": False, "auto_requeue_stale_claimed": False, "auto_fail_stale_running": False}
    async with worker_in_process(database_url, processes=1, config={"recovery": switches}) as worker:
        await worker.until(lambda: len(worker.events_of(events.PassFinished)) >= 3)
        assert [await status_of(ledger, task_id) for task_id in left] == ["CLAIMED", "RUNNING"]


async def test_pending_task_past_good_until_expires(ledger: Ledger, database_url: str) -> None:
    (task_id,) = await insert_pending_tasks(ledger, "work", queue="not_served")
    await ledger.fetch("UPDATE horsies_tasks SET good_until = now() - interval '1 second'")
    async with worker_in_process(database_url, processes=1):
        row = (await ledger.until_terminal(task_id))[task_id]
    assert (row["status"], row["error_code"], row["attempts"]) == ("EXPIRED", "TASK_EXPIRED", 0)


async def test_silent_worker_is_declared_lost_with_an_event(ledger: Ledger, database_url: str) -> None:
    await OrphanedTask().insert(ledger)
    async with worker_in_process(database_url, processes=1) as worker:
        await ledger.until(lambda: ledger.events("worker_lost"))
        lost = await ledger.fetch("SELECT hostname FROM horsies_workers WHERE state = 'lost'")
        assert [row["hostname"] for row in lost] == ["elsewhere"]
        assert not worker.events_of(events.WorkerReturned)


async def test_new_worker_does_not_recover_before_its_grace_ends(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask(silent_s=3600).insert(ledger)
    long_thresholds = {"recovery": {"running_stale_threshold_ms": 600_000, "worker_stale_threshold_ms": 600_000}}
    async with worker_in_process(database_url, processes=1, config=long_thresholds) as worker:
        await worker.until(lambda: len(worker.events_of(events.PassFinished)) >= 3)
        assert await status_of(ledger, task_id) == "RUNNING"
        until = worker.health.outage_grace_until
        assert until is not None
        assert until > datetime.now(UTC) + timedelta(minutes=8)
