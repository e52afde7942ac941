"""Stored outcomes: rows, attempts, retries, notifications and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from horsies.model.task import TaskAttemptOutcome
from horsies.store.claims import ClaimRef, ClaimStore, FinishedAttempt
from horsies.store.connection import ConnectionSpec, StatementFailed
from horsies.store.database import Database
from tests.support.rows import insert_task
from tests.support.store import (
    WORKER,
    Connection,
    claim,
    claim_and_start,
    claim_ref,
    collect_notifications,
    count_deadlocks,
    finish_attempts,
    insert_pending,
    only_row,
)

COMPLETED, FAILED = TaskAttemptOutcome.COMPLETED, TaskAttemptOutcome.FAILED
OK, ERR, POISON = '{"ok": 1}', '{"err": {}}', '{"err": {"error_code": "POISON_TASK"}}'


def _completed(ref: ClaimRef) -> FinishedAttempt:
    return FinishedAttempt(claim=ref, outcome=COMPLETED, document=OK)


def _failed(ref: ClaimRef, **others: Any) -> FinishedAttempt:
    columns: dict[str, Any] = {"outcome": FAILED, "document": ERR, "error_code": "SMTP_DOWN"}
    return FinishedAttempt(claim=ref, **columns | others)


def _crashed(ref: ClaimRef, **others: Any) -> FinishedAttempt:
    return _failed(ref, error_code="WORKER_CRASHED", is_crash=True, **others)


async def _finish(database: Database, *finishes: FinishedAttempt, events: Sequence[str] = ()) -> list[str]:
    return await finish_attempts(ClaimStore(database), finishes, events=events)


async def test_completed_task_stores_result_and_attempt(
    database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url, failed_reason="recovered after worker interruption")
    assert await _finish(database, _completed(await claim_and_start(database))) == ["COMPLETED"]
    row = ("result", "error_code", "failed_reason", "attempts", "completed_at = terminal_at", "failed_at", "worker_pid")
    assert await only_row(connection, "horsies_tasks", *row) == (OK, None, None, 1, True, None, 7)
    attempt = ("attempt", "claim_token", "outcome", "will_retry", "worker_id", "worker_hostname", "worker_process_name")
    stored = (1, 1, "COMPLETED", False, WORKER, "here", "worker-7")
    assert await only_row(connection, "horsies_task_attempts", *attempt) == stored


async def test_completion_needs_an_owner_and_may_leave_out_the_pids(
    database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    task_id, token, worker_id = await claim_and_start(database)
    complete = ClaimStore(database).complete
    assert await complete([task_id], [token], [OK], worker_ids=[uuid4()]) == 0
    assert await only_row(connection, "horsies_tasks", "status", "worker_pid") == ("RUNNING", 7)
    assert await complete([task_id], [token], [OK], worker_ids=[uuid4(), worker_id]) == 1
    assert await only_row(connection, "horsies_tasks", "status", "worker_pid") == ("COMPLETED", 7)


async def test_failed_task_stores_error(database: Database, database_url: str, connection: Connection) -> None:
    await insert_task(database_url)
    failure = _failed(await claim_and_start(database), error_message="no route", failed_reason="the child is gone")
    assert await _finish(database, failure) == ["FAILED"]
    row = ("result", "error_code", "failed_reason", "completed_at", "failed_at = terminal_at")
    expected = (ERR, "SMTP_DOWN", "the child is gone", None, True)
    assert await only_row(connection, "horsies_tasks", *row) == expected
    attempt = ("outcome", "error_code", "error_message", "failed_reason")
    stored = ("FAILED", "SMTP_DOWN", "no route", "the child is gone")
    assert await only_row(connection, "horsies_task_attempts", *attempt) == stored


async def test_retry_is_delayed_and_clears_owner(database: Database, database_url: str, connection: Connection) -> None:
    await insert_task(database_url, max_retries=1)
    async with collect_notifications(database_url, "horsies_task_new", "horsies_task_done") as notifications:
        assert await _finish(database, _failed(await claim_and_start(database), retry_delay_s=60.0)) == ["PENDING"]
        assert await notifications() == []
    row = ("retry_count", "error_code", "result", "enqueued_at = next_retry_at", "enqueued_at - updated_at")
    assert await only_row(connection, "horsies_tasks", *row) == (1, None, None, True, timedelta(seconds=60))
    cleared = ("claimed_at", "claimed_by_worker_id", "started_at", "worker_pid", "worker_hostname", "terminal_at")
    assert await only_row(connection, "horsies_tasks", *cleared) == (None,) * 6
    assert await only_row(connection, "horsies_task_attempts", "will_retry", "worker_pid") == (True, 7)


async def test_retry_due_now_notifies_workers(database: Database, database_url: str) -> None:
    await insert_task(database_url, max_retries=1)
    ref = await claim_and_start(database)
    async with collect_notifications(database_url, "horsies_task_new") as notifications:
        assert await _finish(database, _failed(ref, error_code="SHUTDOWN", retry_delay_s=0.0)) == ["PENDING"]
        assert await notifications() == [("horsies_task_new", "default")]
    assert len(await claim(database)) == 1


@pytest.mark.parametrize("update", ["max_retries = 0", "good_until = now() + interval '60 s'"])
async def test_retry_is_refused_when(
    database: Database, database_url: str, connection: Connection, update: str
) -> None:
    await insert_task(database_url, max_retries=1)
    ref = await claim_and_start(database)
    await connection.execute(f"UPDATE horsies_tasks SET {update}")
    assert await _finish(database, _failed(ref, retry_delay_s=120.0)) == ["FAILED"]
    assert await only_row(connection, "horsies_tasks", "retry_count", "error_code") == (0, "SMTP_DOWN")


@pytest.mark.parametrize("mark", ["paused", "cancelled"])
async def test_task_of_stopped_workflow_may_finish_but_not_retry(
    database: Database, database_url: str, connection: Connection, mark: str
) -> None:
    await insert_task(database_url, max_retries=1)
    ref = await claim_and_start(database)
    await connection.execute("UPDATE horsies_tasks SET no_restart = $1", mark)
    assert await _finish(database, _failed(ref, retry_delay_s=1.0)) == ["CANCELLED"]
    stored = await only_row(connection, "horsies_tasks", "error_code", "retry_count", "result->'err'->>'message'")
    assert stored == ("TASK_CANCELLED", 0, f"not started again: its workflow was {mark}")
    assert await only_row(connection, "horsies_task_attempts", "error_code", "will_retry") == ("SMTP_DOWN", False)


async def test_crash_is_counted_and_poison_has_its_own_code(
    database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url, max_retries=9)
    reason = "recovered after worker interruption: CHILD_DIED"
    crash = _crashed(await claim_and_start(database), retry_delay_s=0.0, failed_reason=reason)
    assert await _finish(database, crash) == ["PENDING"]
    last_crash = _crashed(await claim_and_start(database), final_code="POISON_TASK", document=POISON)
    assert await _finish(database, last_crash) == ["FAILED"]
    row = ("crash_count", "retry_count", "error_code", "result", "failed_reason")
    assert await only_row(connection, "horsies_tasks", *row) == (2, 1, "POISON_TASK", POISON, reason)
    attempts = await connection.fetch("SELECT attempt, error_code FROM horsies_task_attempts ORDER BY attempt")
    assert [tuple(row) for row in attempts] == [(1, "WORKER_CRASHED"), (2, "WORKER_CRASHED")]


async def test_finished_node_requests_advance_and_retried_one_does_not(
    database: Database, database_url: str, connection: Connection
) -> None:
    node = {"is_workflow_task": True, "workflow_id": uuid4(), "workflow_task_index": 3}
    run = {"status": "RUNNING", "claimed_by_worker_id": WORKER, "started_at": datetime.now(UTC), "claim_token": 1}
    ids = [await insert_task(database_url, **node, **run, max_retries=1) for _ in range(2)]
    ended, retried = (ClaimRef(task_id=task_id, claim_token=1, worker_id=WORKER) for task_id in ids)
    await _finish(database, _completed(ended), _failed(retried, retry_delay_s=60.0))
    expected = (ids[0], node["workflow_id"], 3)
    assert await only_row(connection, "horsies_workflow_outbox", "task_id", "workflow_id", "task_index") == expected


@pytest.mark.parametrize("update", ["claim_token = 9", "status = 'PENDING'", "claimed_by_worker_id = NULL"])
async def test_late_outcome_is_refused(
    database: Database, database_url: str, connection: Connection, update: str
) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    await connection.execute(f"UPDATE horsies_tasks SET {update}")
    assert await _finish(database, _completed(ref)) == []
    assert await connection.fetchval("SELECT count(*) FROM horsies_task_attempts") == 0
    (state,) = await ClaimStore(database).current_states([ref.task_id])
    assert state.status in {"PENDING", "RUNNING"}


async def test_resent_batch_finds_its_recorded_attempts(database: Database, database_url: str) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    await _finish(database, _failed(ref))
    assert await _finish(database, _failed(ref)) == []
    (ended,) = await ClaimStore(database).recorded_outcomes([ref, ref._replace(claim_token=2)])
    assert (ended.id, ended.claim_token, ended.outcome, ended.error_code) == (ref.task_id, 1, "FAILED", "SMTP_DOWN")


async def test_done_notifications_hold_200_ids_and_events_are_sent(
    database: Database, database_url: str, connection: Connection
) -> None:
    await insert_pending(connection, count=201)
    rows = await claim(database, limit=500, pids=range(1, 202))
    async with collect_notifications(database_url, "horsies_task_done", "horsies_events") as notifications:
        await _finish(database, *(_completed(claim_ref(row)) for row in rows), events=["moved", "more"])
        sent = await notifications()
    events, done = sent[:2], [str(payload).split(",") for _, payload in sent[2:]]
    assert events == [("horsies_events", "more"), ("horsies_events", "moved")]
    assert sorted(len(ids) for ids in done) == [1, 200]
    assert {task_id for ids in done for task_id in ids} == {str(row.id) for row in rows}


async def test_events_are_sent_even_if_every_outcome_is_refused(database: Database, database_url: str) -> None:
    async with collect_notifications(database_url, "horsies_events") as notifications:
        await _finish(database, events=["moved"])
        assert await notifications() == [("horsies_events", "moved")]


@pytest.mark.parametrize("end", [_completed, _failed])
async def test_same_batch_in_different_order_does_not_deadlock(
    database_url: str, connection: Connection, end: Callable[[ClaimRef], FinishedAttempt]
) -> None:
    await insert_pending(connection, count=200)
    async with Database(ConnectionSpec(url=database_url, masked_url="test", force_generic_plan=True)) as workers:
        batch = [end(claim_ref(row)) for row in await claim(workers, limit=200, pids=range(1, 201))]
        batches = await asyncio.gather(
            *(_finish(workers, *order) for order in (batch, batch[::-1], batch[::2], batch[1::2]))
        )
    assert sum(map(len, batches)) == 200
    assert await count_deadlocks(connection) == 0


async def test_claim_and_finish_write_two_row_versions(connection: Connection, database: Database) -> None:
    await insert_pending(connection, count=64)
    before = await _row_versions(connection)
    rows = await claim(database, pids=range(1, 65))
    await _finish(database, *(_completed(claim_ref(row)) for row in rows))
    await database.close()
    assert await _row_versions(connection) - before == 128


async def _row_versions(connection: Connection) -> int:
    await connection.execute("SELECT pg_stat_clear_snapshot()")
    return await connection.fetchval("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'horsies_tasks'")


async def test_mixed_batch_stores_each_outcome(database: Database, database_url: str, connection: Connection) -> None:
    for _ in range(3):
        await insert_task(database_url, max_retries=1)
    done, failed, again = (claim_ref(row) for row in await claim(database, limit=3, pids=(1, 2, 3)))
    statuses = await _finish(
        database, _failed(failed), _completed(done), _failed(again, retry_delay_s=60.0), events=["e"]
    )
    assert sorted(statuses) == ["COMPLETED", "FAILED", "PENDING"]
    attempts = await connection.fetch("SELECT outcome FROM horsies_task_attempts ORDER BY outcome")
    assert [attempt["outcome"] for attempt in attempts] == ["COMPLETED", "FAILED", "FAILED"]


async def test_failing_outcome_stores_nothing_of_its_batch(
    database: Database, database_url: str, connection: Connection
) -> None:
    for _ in range(2):
        await insert_task(database_url)
    done, failed = (claim_ref(row) for row in await claim(database, limit=2, pids=(1, 2)))
    broken = FinishedAttempt(claim=done, outcome=COMPLETED, document="not JSON")
    with pytest.raises(StatementFailed):
        await _finish(database, _failed(failed), broken)
    assert await connection.fetchval("SELECT count(*) FROM horsies_task_attempts") == 0
