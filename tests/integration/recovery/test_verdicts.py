"""What a sweep writes for each verdict."""

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


async def test_a_stale_claim_goes_back_for_free(field: SweepDatabase) -> None:
    owner = await insert_listening_worker(field.url, state="lost", silent_s=500)
    task_id = await insert_owned_task(field.url, "CLAIMED", owner=owner, silent_s=130, claim_expires_at=seconds_ago(1))
    async with collect_notifications(field.url, "horsies_task_new") as heard:
        report = await field.sweep()
        assert await heard() == [("horsies_task_new", "default")]
    assert (report.status, report.recovered_count, report.worker_ids) == (SweepStatus.DONE, 1, (owner,))
    told = (
        "status",
        "claimed",
        "claimed_at",
        "claimed_by_worker_id",
        "claim_expires_at",
        "claim_token",
        "failed_reason",
    )
    because = "recovered after worker interruption: OWNER_LOST"
    assert await field.row(task_id, *told) == ("PENDING", False, None, None, None, 1, because)
    counted = await field.row(
        task_id, "retry_count", "crash_count", "attempts", "overlap_possible", "enqueued_at <= now()"
    )
    assert counted == (0, 0, 0, False, True)
    assert await field.events() == {"task_recovered": 1, "sweep_finished": 1}


async def test_a_recovered_task_waits_for_the_recovery_delay(field: SweepDatabase) -> None:
    task_id = await insert_owned_task(field.url, "CLAIMED", owner=None, silent_s=130)
    await field.sweep(recovery_delay=timedelta(seconds=60))
    (wait,) = await field.row(task_id, "enqueued_at - now()")
    assert timedelta(seconds=50) < wait <= timedelta(seconds=60)


async def test_a_stale_claim_past_its_good_until_expires_and_keeps_its_claim(field: SweepDatabase) -> None:
    owner = await insert_listening_worker(field.url, state="stopped")
    task_id = await insert_owned_task(field.url, "CLAIMED", owner=owner, silent_s=1, good_until=seconds_ago(1))
    await field.sweep()
    told = ("status", "error_code", "result->'err'->'data'->>'worker_id'", "claimed_by_worker_id", "attempts")
    assert await field.row(task_id, *told) == ("EXPIRED", "TASK_EXPIRED", str(owner), owner, 0)


async def test_a_stale_run_that_lists_crashes_is_retried_and_may_overlap(field: SweepDatabase) -> None:
    task_id = await insert_owned_task(
        field.url, "RUNNING", owner=None, silent_s=310, task_options=CRASH_RETRY, max_retries=1, kill_requested=True
    )
    (swept,) = (await field.sweep()).tasks
    assert (swept.decision, swept.reason, swept.retries_left, swept.applied) == ("retry", "OWNER_MISSING", 1, True)
    told = ("status", "retry_count", "crash_count", "attempts", "overlap_possible", "started_at", "kill_requested")
    assert await field.row(task_id, *told) == ("PENDING", 1, 1, 1, True, None, False)
    assert await field.row(task_id, "next_retry_at = enqueued_at", "enqueued_at") == (True, swept.run_at)
    attempt = await field.connection.fetchrow("SELECT * FROM horsies_task_attempts")
    assert attempt is not None
    assert (attempt["outcome"], attempt["error_code"], attempt["will_retry"]) == ("FAILED", "WORKER_CRASHED", True)
    assert (attempt["claim_token"], attempt["worker_pid"]) == (1, 8)
    assert await field.events() == {"task_recovered": 1, "overlap_possible": 1, "sweep_finished": 1}


async def test_a_stale_run_of_a_worker_that_stopped_cannot_overlap(field: SweepDatabase) -> None:
    owner = await insert_listening_worker(field.url, state="stopped")
    task_id = await insert_owned_task(
        field.url, "RUNNING", owner=owner, silent_s=1, task_options=CRASH_RETRY, max_retries=1
    )
    await field.sweep()
    assert await field.row(task_id, "status", "overlap_possible") == ("PENDING", False)
    assert (await field.events())["overlap_possible"] == 0


async def test_a_stale_run_that_lists_nothing_fails_with_the_cause(field: SweepDatabase) -> None:
    owner = await insert_listening_worker(field.url, silent_s=310)
    task_id = await insert_owned_task(field.url, "RUNNING", owner=owner, silent_s=310)
    async with collect_notifications(field.url, "horsies_task_done") as heard:
        report = await field.sweep()
        assert await heard() == [("horsies_task_done", str(task_id))]
    told = ("status", "error_code", "result->'err'->'data'->>'cause'", "crash_count", "attempts", "failed_at IS NULL")
    assert await field.row(task_id, *told) == ("FAILED", "WORKER_CRASHED", "OWNER_LOST", 1, 1, False)
    assert report.worker_ids == (owner,)
    assert await field.connection.fetchval("SELECT state FROM horsies_workers WHERE id = $1", owner) == "lost"
    assert await field.events() == {"worker_lost": 1, "task_recovered": 1, "sweep_finished": 1}


async def test_one_crash_too_many_is_poison_whatever_the_policy(field: SweepDatabase) -> None:
    task_id = await insert_owned_task(
        field.url,
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
    await insert(field.url, "horsies_task_attempts", **earlier, **times, error_message="CHILD_SIGNAL: process 4 died")
    await field.sweep()
    status, code, causes = await field.row(task_id, "status", "error_code", "result->'err'->'data'->'causes'")
    assert (status, code) == ("FAILED", "POISON_TASK")
    assert json.loads(causes)[0] == "CHILD_SIGNAL: process 4 died"
    assert (await field.events())["task_poisoned"] == 1


@pytest.mark.parametrize("mark", ["paused", "cancelled"])
async def test_a_run_whose_workflow_was_stopped_is_cancelled_and_its_advance_asked_for(
    field: SweepDatabase, mark: str
) -> None:
    links = {"is_workflow_task": True, "workflow_id": uuid4(), "workflow_task_index": 3}
    task_id = await insert_owned_task(
        field.url,
        "RUNNING",
        owner=None,
        silent_s=310,
        task_options=CRASH_RETRY,
        max_retries=1,
        no_restart=mark,
        **links,
    )
    await field.sweep()
    told = ("status", "error_code", "result->'err'->>'message'", "attempts")
    message = f"not started again: its workflow was {mark}"
    assert await field.row(task_id, *told) == ("CANCELLED", "TASK_CANCELLED", message, 1)
    assert await field.connection.fetchval("SELECT task_index FROM horsies_workflow_outbox") == 3


async def test_what_waited_past_its_good_until_expires(field: SweepDatabase) -> None:
    late = [await insert_task(field.url, good_until=seconds_ago(10)) for _ in range(3)]
    other = await insert_task(field.url, good_until=seconds_ago(-60))
    links = {"is_workflow_task": True, "workflow_id": uuid4(), "workflow_task_index": 1}
    node = await insert_task(field.url, good_until=seconds_ago(10), **links)
    report = await field.sweep()
    assert {task.task_id for task in report.tasks if task.applied} == {*late, node}
    assert (report.recovered_count, {task.reason for task in report.tasks}) == (0, {"GOOD_UNTIL"})
    assert await field.row(late[0], "status", "error_code", "attempts") == ("EXPIRED", "TASK_EXPIRED", 0)
    assert await field.row(other, "status") == ("PENDING",)
    assert await field.connection.fetchval("SELECT task_id FROM horsies_workflow_outbox") == node


async def test_more_than_a_batch_expires(field: SweepDatabase) -> None:
    await field.connection.execute(
        "INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, good_until)"
        " SELECT gen_random_uuid(), 'x', now(), '', now() - interval '1 s' FROM generate_series(1, 1203)"
    )
    assert sum(task.applied for task in (await field.sweep()).tasks) == 1203
