"""Tasks in hand that begin, expire or are given up before they began."""

from __future__ import annotations

from uuid import uuid4

import pytest

from horsies.store.claims import ClaimRef, ClaimStore, TaskExpiry, TaskStart
from horsies.store.database import Database
from tests.support.rows import insert, insert_task
from tests.support.store import WORKER, Connection, claim_and_start, claim_one, collect_notifications, only_row


@pytest.fixture
def claims(database: Database) -> ClaimStore:
    return ClaimStore(database)


async def _start(claims: ClaimStore, *holds: ClaimRef) -> int:
    starts = [TaskStart(claim=hold, pid=7) for hold in holds]
    return len(await claims.start(starts, hostname="here"))


async def test_a_claimed_task_starts_in_its_child(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    assert await _start(claims, await claim_one(database, lease_s=60.0)) == 1
    row = ("status", "claimed", "claim_expires_at", "started_at IS NULL", "worker_pid", "worker_process_name")
    assert await only_row(connection, "horsies_tasks", *row) == ("RUNNING", False, None, False, 7, "worker-7")


@pytest.mark.parametrize(
    "meanwhile",
    ["claim_expires_at = now()", "good_until = now()", "claim_token = 9", "status = 'PENDING', claimed = false"],
)
async def test_a_start_is_refused_when(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection, meanwhile: str
) -> None:
    await insert_task(database_url)
    hold = await claim_one(database, lease_s=60.0)
    await connection.execute(f"UPDATE horsies_tasks SET {meanwhile}")
    assert await _start(claims, hold) == 0


async def test_nobody_starts_or_releases_what_another_worker_holds(
    claims: ClaimStore, database: Database, database_url: str
) -> None:
    await insert_task(database_url)
    theirs = (await claim_one(database))._replace(worker_id=uuid4())
    assert await _start(claims, theirs) == 0
    assert await claims.release([theirs]) == []


async def test_the_node_of_a_workflow_runs_with_its_task(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    run = {"id": uuid4(), "name": "w", "status": "RUNNING", "on_error": "fail", "root_workflow_id": uuid4()}
    task_id = await insert_task(database_url, is_workflow_task=True, workflow_id=run["id"], workflow_task_index=0)
    sent_at = await connection.fetchval("SELECT sent_at FROM horsies_tasks")
    await insert(database_url, "horsies_workflows", **run, sent_at=sent_at)
    node = {
        "workflow_id": run["id"],
        "task_index": 0,
        "node_id": "n",
        "task_name": "mail.send",
        "queue_name": "default",
    }
    await insert(
        database_url, "horsies_workflow_tasks", id=uuid4(), **node, priority=1, status="ENQUEUED", task_id=task_id
    )
    await _start(claims, await claim_one(database))
    assert await only_row(connection, "horsies_workflow_tasks", "status", "started_at IS NULL") == ("RUNNING", False)


async def test_a_claimed_task_past_its_time_expires_with_its_result(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    hold = await claim_one(database)
    assert await claims.expire([TaskExpiry(claim=hold, document='{"err": {}}')]) == []
    await connection.execute("UPDATE horsies_tasks SET good_until = now()")
    async with collect_notifications(database_url, "horsies_task_done") as heard:
        assert len(await claims.expire([TaskExpiry(claim=hold, document='{"err": {}}')])) == 1
        assert await heard() == [("horsies_task_done", str(task_id))]
    row = ("status", "error_code", "result", "claimed", "claimed_by_worker_id", "attempts")
    expired = ("EXPIRED", "TASK_EXPIRED", '{"err": {}}', False, WORKER, 0)
    assert await only_row(connection, "horsies_tasks", *row) == expired


async def test_a_released_task_costs_nothing_keeps_its_place_and_is_announced(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    before = await only_row(connection, "horsies_tasks", "enqueued_at", "retry_count", "crash_count", "attempts")
    hold = await claim_one(database, lease_s=60.0)
    async with collect_notifications(database_url, "horsies_task_new") as heard:
        assert [row.status for row in await claims.release([hold])] == ["PENDING"]
        assert await heard() == [("horsies_task_new", "default")]
    assert before == await only_row(
        connection, "horsies_tasks", "enqueued_at", "retry_count", "crash_count", "attempts"
    )
    cleared = ("claimed", "claimed_at", "claimed_by_worker_id", "claim_expires_at", "started_at", "claim_token")
    assert await only_row(connection, "horsies_tasks", *cleared) == (False, None, None, None, None, 1)


async def test_a_run_that_never_began_is_given_back_without_an_attempt(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    hold = await claim_and_start(database)
    assert await claims.release([hold]) == []
    assert [row.status for row in await claims.release_running([hold])] == ["PENDING"]
    assert await only_row(connection, "horsies_tasks", "attempts", "started_at", "worker_pid") == (0, None, None)
    assert await connection.fetchval("SELECT count(*) FROM horsies_task_attempts") == 0


async def test_a_run_whose_workflow_was_paused_is_cancelled_and_not_given_back(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    hold = await claim_and_start(database)
    await connection.execute("UPDATE horsies_tasks SET no_restart = 'paused'")
    assert [row.status for row in await claims.release_running([hold])] == ["CANCELLED"]
    told = await only_row(connection, "horsies_tasks", "error_code", "result->'err'->>'message'")
    assert told == ("TASK_CANCELLED", "not started again: its workflow was paused")


async def test_a_worker_finds_everything_that_names_it(
    claims: ClaimStore, database: Database, database_url: str
) -> None:
    for _ in range(3):
        await insert_task(database_url)
    running, claimed = await claim_and_start(database), await claim_one(database)
    await claim_one(database, worker_id=uuid4())
    owned = {(row.id, row.claim_token, row.status) for row in await claims.owned(WORKER)}
    assert owned == {(running.task_id, 1, "RUNNING"), (claimed.task_id, 1, "CLAIMED")}
