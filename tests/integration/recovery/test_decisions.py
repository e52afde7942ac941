"""What a sweep stores for each decision."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest

from horsies.recovery.report import SweepStatus
from tests.support.rows import (
    CRASH_RETRY,
    SweepDatabase,
    insert,
    insert_listening_worker,
    insert_owned_task,
    insert_task,
    seconds_ago,
)
from tests.support.store import collect_notifications


async def test_stale_claim_is_requeued_without_a_retry(sweeps: SweepDatabase) -> None:
    owner = await insert_listening_worker(sweeps.url, state="lost", silent_s=500)
    task_id = await insert_owned_task(sweeps.url, "CLAIMED", owner=owner, silent_s=130, claim_expires_at=seconds_ago(1))
    async with collect_notifications(sweeps.url, "horsies_task_new") as notifications:
        report = await sweeps.sweep()
        assert await notifications() == [("horsies_task_new", "default")]
    assert (report.status, report.recovered_count, report.worker_ids) == (SweepStatus.DONE, 1, (str(owner),))
    columns = (
        "status",
        "claimed",
        "claimed_at",
        "claimed_by_worker_id",
        "claim_expires_at",
        "claim_token",
        "failed_reason",
    )
    reason = "recovered after worker interruption: OWNER_LOST"
    assert await sweeps.row(task_id, *columns) == ("PENDING", False, None, None, None, 1, reason)
    counters = await sweeps.row(
        task_id, "retry_count", "crash_count", "attempts", "overlap_possible", "enqueued_at <= now()"
    )
    assert counters == (0, 0, 0, False, True)
    assert await sweeps.events() == {"task_recovered": 1, "sweep_finished": 1}
    evidence = await sweeps.connection.fetchval("SELECT evidence FROM horsies_events WHERE kind = 'task_recovered'")
    assert "last_heartbeat_at" in json.loads(evidence)


async def test_recovered_task_waits_for_the_recovery_delay(sweeps: SweepDatabase) -> None:
    task_id = await insert_owned_task(sweeps.url, "CLAIMED", owner=None, silent_s=130)
    await sweeps.sweep(recovery_delay=timedelta(seconds=60))
    (delay,) = await sweeps.row(task_id, "enqueued_at - now()")
    assert timedelta(seconds=50) < delay <= timedelta(seconds=60)


async def test_stale_claim_past_good_until_expires(sweeps: SweepDatabase) -> None:
    owner = await insert_listening_worker(sweeps.url, state="stopped")
    task_id = await insert_owned_task(sweeps.url, "CLAIMED", owner=owner, silent_s=1, good_until=seconds_ago(1))
    await sweeps.sweep()
    columns = ("status", "error_code", "result->'err'->'data'->>'worker_id'", "claimed_by_worker_id", "attempts")
    assert await sweeps.row(task_id, *columns) == ("EXPIRED", "TASK_EXPIRED", str(owner), owner, 0)


async def test_stale_task_that_lists_crashes_is_retried(sweeps: SweepDatabase) -> None:
    task_id = await insert_owned_task(
        sweeps.url, "RUNNING", owner=None, silent_s=310, task_options=CRASH_RETRY, max_retries=1, kill_requested=True
    )
    (swept,) = (await sweeps.sweep()).tasks
    assert (swept.decision, swept.reason, swept.retries_left, swept.applied) == ("retry", "OWNER_MISSING", 1, True)
    columns = ("status", "retry_count", "crash_count", "attempts", "overlap_possible", "started_at", "kill_requested")
    assert await sweeps.row(task_id, *columns) == ("PENDING", 1, 1, 1, True, None, False)
    assert await sweeps.row(task_id, "next_retry_at = enqueued_at", "enqueued_at") == (True, swept.run_at)
    attempt = await sweeps.connection.fetchrow("SELECT * FROM horsies_task_attempts")
    assert attempt is not None
    assert (attempt["outcome"], attempt["error_code"], attempt["will_retry"]) == ("FAILED", "WORKER_CRASHED", True)
    assert (attempt["claim_token"], attempt["worker_pid"]) == (1, 8)
    assert await sweeps.events() == {"task_recovered": 1, "overlap_possible": 1, "sweep_finished": 1}


async def test_task_of_a_stopped_worker_cannot_overlap(sweeps: SweepDatabase) -> None:
    owner = await insert_listening_worker(sweeps.url, state="stopped")
    task_id = await insert_owned_task(
        sweeps.url, "RUNNING", owner=owner, silent_s=1, task_options=CRASH_RETRY, max_retries=1
    )
    await sweeps.sweep()
    assert await sweeps.row(task_id, "status", "overlap_possible") == ("PENDING", False)
    assert (await sweeps.events())["overlap_possible"] == 0


async def test_stale_task_without_policy_fails_with_the_cause(sweeps: SweepDatabase) -> None:
    owner = await insert_listening_worker(sweeps.url, silent_s=310)
    task_id = await insert_owned_task(sweeps.url, "RUNNING", owner=owner, silent_s=310)
    async with collect_notifications(sweeps.url, "horsies_task_done") as notifications:
        report = await sweeps.sweep()
        assert await notifications() == [("horsies_task_done", str(task_id))]
    columns = (
        "status",
        "error_code",
        "result->'err'->'data'->>'cause'",
        "crash_count",
        "attempts",
        "failed_at IS NULL",
    )
    assert await sweeps.row(task_id, *columns) == ("FAILED", "WORKER_CRASHED", "OWNER_LOST", 1, 1, False)
    assert report.worker_ids == (str(owner),)
    assert await sweeps.connection.fetchval("SELECT state FROM horsies_workers WHERE id = $1", owner) == "lost"
    assert await sweeps.events() == {"worker_lost": 1, "task_recovered": 1, "sweep_finished": 1}


async def test_task_that_crashed_too_often_is_poison(sweeps: SweepDatabase) -> None:
    task_id = await insert_owned_task(
        sweeps.url,
        "RUNNING",
        owner=None,
        silent_s=310,
        task_options=CRASH_RETRY,
        max_retries=1,
        crash_count=9,
        attempts=1,
    )
    earlier = {"task_id": task_id, "attempt": 1, "claim_token": 0, "outcome": "FAILED", "error_code": "WORKER_CRASHED"}
    times = {"started_at": seconds_ago(900), "finished_at": seconds_ago(800)}
    await insert(sweeps.url, "horsies_task_attempts", **earlier, **times, error_message="CHILD_SIGNAL: process 4 died")
    await sweeps.sweep()
    status, code, causes = await sweeps.row(task_id, "status", "error_code", "result->'err'->'data'->'causes'")
    assert (status, code) == ("FAILED", "POISON_TASK")
    assert json.loads(causes)[0] == "CHILD_SIGNAL: process 4 died"
    assert (await sweeps.events())["task_poisoned"] == 1


@pytest.mark.parametrize("no_restart", ["paused", "cancelled"])
async def test_task_of_a_stopped_run_is_cancelled(sweeps: SweepDatabase, no_restart: str) -> None:
    links = {"is_workflow_task": True, "workflow_id": uuid4(), "workflow_task_index": 3}
    task_id = await insert_owned_task(
        sweeps.url,
        "RUNNING",
        owner=None,
        silent_s=310,
        task_options=CRASH_RETRY,
        max_retries=1,
        no_restart=no_restart,
        **links,
    )
    await sweeps.sweep()
    columns = ("status", "error_code", "result->'err'->>'message'", "attempts")
    message = f"not started again: its workflow was {no_restart}"
    assert await sweeps.row(task_id, *columns) == ("CANCELLED", "TASK_CANCELLED", message, 1)
    assert await sweeps.connection.fetchval("SELECT task_index FROM horsies_workflow_outbox") == 3


async def test_pending_task_past_good_until_expires(sweeps: SweepDatabase) -> None:
    overdue = [await insert_task(sweeps.url, good_until=seconds_ago(10)) for _ in range(3)]
    other = await insert_task(sweeps.url, good_until=seconds_ago(-60))
    links = {"is_workflow_task": True, "workflow_id": uuid4(), "workflow_task_index": 1}
    node = await insert_task(sweeps.url, good_until=seconds_ago(10), **links)
    report = await sweeps.sweep()
    assert {task.task_id for task in report.tasks if task.applied} == {*overdue, node}
    assert (report.recovered_count, {task.reason for task in report.tasks}) == (0, {"GOOD_UNTIL"})
    assert await sweeps.row(overdue[0], "status", "error_code", "attempts") == ("EXPIRED", "TASK_EXPIRED", 0)
    assert await sweeps.row(other, "status") == ("PENDING",)
    assert await sweeps.connection.fetchval("SELECT task_id FROM horsies_workflow_outbox") == node


async def test_more_than_one_batch_expires(sweeps: SweepDatabase) -> None:
    await sweeps.connection.execute(
        "INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, good_until)"
        " SELECT gen_random_uuid(), 'x', now(), '', now() - interval '1 s' FROM generate_series(1, 1203)"
    )
    assert sum(task.applied for task in (await sweeps.sweep()).tasks) == 1203
