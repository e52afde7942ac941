"""What the reaper does with rows whose owners are gone, and what it leaves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies.model import events
from tests.support.ledger import Ledger, OrphanedTask, insert_pending_tasks
from tests.support.ledger_app import QUICK_RECOVERY
from tests.support.workers import worker_in_process

THRESHOLD_S = QUICK_RECOVERY["running_stale_threshold_ms"] / 1000
PLAIN_AGES: dict[str, Any] = {"recovery": {"outage_grace": False}}
RESILIENT = "infrastructure_resilient"


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


async def status_of(ledger: Ledger, task_id: str) -> str:
    return (await ledger.row(task_id))["status"]


async def reasons(ledger: Ledger) -> set[str]:
    events_of = await ledger.fetch("SELECT evidence->>'reason' AS reason FROM horsies_events WHERE task_id IS NOT NULL")
    return {row["reason"] for row in events_of if row["reason"]}


@pytest.mark.parametrize(
    ("orphan", "reason"),
    [
        (OrphanedTask(thresholds={"worker_stale_threshold_ms": 3_600_000}), "HEARTBEAT_LOST"),
        (OrphanedTask(), "OWNER_LOST"),
        (OrphanedTask(state="lost"), "OWNER_LOST"),
        (OrphanedTask(state=None), "OWNER_MISSING"),
    ],
    ids=["of an owner that is patient", "of a silent one", "of one declared lost", "of one without a row"],
)
async def test_a_silent_task_waits_for_its_threshold_and_fails(
    ledger: Ledger, database_url: str, orphan: OrphanedTask, reason: str
) -> None:
    task_id = await orphan.insert(ledger)
    async with worker_in_process(database_url, processes=1) as worker:
        row = (await ledger.until_terminal(task_id))[task_id]
        since = worker.health.series
        assert since is not None
        assert (row["terminal_at"] - since.since).total_seconds() >= THRESHOLD_S, "it has listened for so long"
    assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "WORKER_CRASHED", 1)
    assert reason in await reasons(ledger)


async def test_a_task_of_a_stopped_owner_needs_no_silence(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask(state="stopped", silent_s=0.0).insert(ledger)
    patient = {"recovery": {"running_stale_threshold_ms": 600_000}}
    async with worker_in_process(database_url, processes=1, config=patient):
        await ledger.until_terminal(task_id)
    assert await reasons(ledger) == {"OWNER_STOPPED"}


async def test_a_claim_of_a_dead_owner_runs_elsewhere_with_nothing_counted(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask(status="CLAIMED").insert(ledger)
    async with worker_in_process(database_url, processes=1):
        row = (await ledger.until_terminal(task_id))[task_id]
    facts = (row["status"], row["retry_count"], row["crash_count"], row["attempts"], row["failed_reason"])
    assert facts == ("COMPLETED", 0, 0, 1, None)


async def test_resilient_tasks_are_left_for_three_thresholds_and_their_neighbours_are_not(
    ledger: Ledger, database_url: str
) -> None:
    silent_s = 1.5 * THRESHOLD_S
    async with worker_in_process(
        database_url, processes=1, config=PLAIN_AGES
    ):  # its start could take longer than they are left
        flagged = await OrphanedTask(silent_s=silent_s, flags={RESILIENT: True}).insert(ledger)
        plain = await OrphanedTask(silent_s=silent_s, flags={RESILIENT: False}).insert(ledger)
        await ledger.until_terminal(plain)
        assert await status_of(ledger, flagged) == "RUNNING"
        row = (await ledger.until_terminal(flagged))[flagged]
    (attempt,) = await ledger.attempts(flagged)
    assert (row["terminal_at"] - attempt["started_at"]).total_seconds() >= 3 * THRESHOLD_S


async def test_a_judge_waits_for_an_owner_with_more_patience(ledger: Ledger, database_url: str) -> None:
    patient = await OrphanedTask(silent_s=10, thresholds={"running_stale_threshold_ms": 600_000}).insert(ledger)
    other = await OrphanedTask(silent_s=10).insert(ledger)
    async with worker_in_process(database_url, processes=1, config=PLAIN_AGES):
        await ledger.until_terminal(other)
        assert await status_of(ledger, patient) == "RUNNING"


async def test_with_both_switches_off_rows_are_left_and_nobody_claims_them(ledger: Ledger, database_url: str) -> None:
    left = [await OrphanedTask(status="CLAIMED").insert(ledger), await OrphanedTask().insert(ledger)]
    switches = {"outage_grace": False, "auto_requeue_stale_claimed": False, "auto_fail_stale_running": False}
    async with worker_in_process(database_url, processes=1, config={"recovery": switches}) as worker:
        await worker.until(lambda: len(worker.events_of(events.PassFinished)) >= 3)
        assert [await status_of(ledger, each) for each in left] == ["CLAIMED", "RUNNING"]


async def test_a_task_past_its_good_until_expires_where_it_waits(ledger: Ledger, database_url: str) -> None:
    (task_id,) = await insert_pending_tasks(ledger, "work", queue="served_by_nobody")
    await ledger.fetch("UPDATE horsies_tasks SET good_until = now() - interval '1 second'")
    async with worker_in_process(database_url, processes=1):
        row = (await ledger.until_terminal(task_id))[task_id]
    assert (row["status"], row["error_code"], row["attempts"]) == ("EXPIRED", "TASK_EXPIRED", 0)


async def test_a_silent_worker_is_declared_lost_and_that_is_on_record(ledger: Ledger, database_url: str) -> None:
    await OrphanedTask().insert(ledger)
    async with worker_in_process(database_url, processes=1) as worker:
        await ledger.until(lambda: ledger.events("worker_lost"))
        lost = await ledger.fetch("SELECT hostname FROM horsies_workers WHERE state = 'lost'")
        assert [row["hostname"] for row in lost] == ["elsewhere"]
        assert not worker.events_of(events.WorkerReturned)


async def test_a_worker_that_has_just_started_does_not_take_a_silence_for_its_own(
    ledger: Ledger, database_url: str
) -> None:
    task_id = await OrphanedTask(silent_s=3600).insert(ledger)
    patient = {"recovery": {"running_stale_threshold_ms": 600_000, "worker_stale_threshold_ms": 600_000}}
    async with worker_in_process(database_url, processes=1, config=patient) as worker:
        await worker.until(lambda: len(worker.events_of(events.PassFinished)) >= 3)
        assert await status_of(ledger, task_id) == "RUNNING"
        until = worker.health.outage_grace_until
        assert until is not None
        assert until > datetime.now(UTC) + timedelta(minutes=8)
