"""Start, expiry and release of claimed tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from horsies.model.task import TaskAttemptOutcome
from horsies.store.claims import ClaimRef, ClaimStore, FinishedAttempt
from horsies.store.database import Database
from horsies.store.workflows import WorkflowStore
from tests.support.rows import insert, insert_task
from tests.support.store import WORKER, Connection, claim_and_start, claim_one, collect_notifications, only_row


@pytest.fixture
def claims(database: Database) -> ClaimStore:
    return ClaimStore(database)


async def _start(claims: ClaimStore, *refs: ClaimRef) -> int:
    return len(await claims.start(dict.fromkeys(refs, 7), hostname="here"))


async def test_claimed_task_starts_in_its_child(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    assert await _start(claims, await claim_one(database, lease_s=60.0)) == 1
    row = ("status", "claimed", "claim_expires_at", "started_at IS NULL", "worker_pid", "worker_process_name")
    assert await only_row(connection, "horsies_tasks", *row) == ("RUNNING", False, None, False, 7, "worker-7")


@pytest.mark.parametrize(
    "update",
    ["claim_expires_at = now()", "good_until = now()", "claim_token = 9", "status = 'PENDING', claimed = false"],
)
async def test_start_is_refused_when(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection, update: str
) -> None:
    await insert_task(database_url)
    ref = await claim_one(database, lease_s=60.0)
    await connection.execute(f"UPDATE horsies_tasks SET {update}")
    assert await _start(claims, ref) == 0


async def test_running_task_moves_to_another_child(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    await claims.record_children({ref: 8})
    assert await only_row(connection, "horsies_tasks", "worker_pid", "worker_process_name") == (8, "worker-8")


async def test_recording_a_child_skips_a_locked_task(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    async with connection.transaction():
        await connection.execute("SELECT FROM horsies_tasks FOR UPDATE")
        async with asyncio.timeout(10):
            await claims.record_children({ref: 8})
    assert await only_row(connection, "horsies_tasks", "worker_pid") != (8,)


ERROR = '{"err": {}}'
WRITES: dict[str, tuple[str, Callable[[ClaimStore, ClaimRef], Awaitable[object]]]] = {
    "start": ("CLAIMED", _start),
    "record child": ("RUNNING", lambda claims, ref: claims.record_children({ref: 9})),
    "expire": ("CLAIMED", lambda claims, ref: claims.expire({ref: ERROR})),
    "release claimed": ("CLAIMED", lambda claims, ref: claims.release([ref])),
    "release running": ("RUNNING", lambda claims, ref: claims.release_running([ref])),
    "complete": (
        "RUNNING",
        lambda claims, ref: claims.complete(
            [ref.task_id], [ref.claim_token], ['{"ok": 1}'], worker_ids=[ref.worker_id]
        ),
    ),
    "finish": (
        "RUNNING",
        lambda claims, ref: claims.finish(
            [FinishedAttempt(claim=ref, outcome=TaskAttemptOutcome.FAILED, document=ERROR)]
        ),
    ),
}
"""Each write of a claimed task, with the status that it needs."""
LOST: dict[str, Callable[[ClaimRef], ClaimRef]] = {
    "token": lambda ref: ref._replace(claim_token=ref.claim_token + 1),
    "owner": lambda ref: ref._replace(worker_id=uuid4()),
    "status": lambda ref: ref,
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("write", WRITES)
async def test_write_without_the_claim_changes_nothing(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection, write: str, lost: str
) -> None:
    await insert_task(database_url)
    status, carry_out = WRITES[write]
    is_running = (status == "RUNNING") is (lost != "status")
    ref = await (claim_and_start(database) if is_running else claim_one(database))
    if write == "expire":
        await connection.execute("UPDATE horsies_tasks SET good_until = now()")
    before = await only_row(connection, "horsies_tasks AS t", "to_jsonb(t)")
    await carry_out(claims, LOST[lost](ref))
    assert await only_row(connection, "horsies_tasks AS t", "to_jsonb(t)") == before
    if lost != "status":
        await carry_out(claims, ref)
        assert await only_row(connection, "horsies_tasks AS t", "to_jsonb(t)") != before


async def test_workflow_node_is_running_while_its_task_is(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    workflow_id = uuid4()
    run = {"id": workflow_id, "name": "w", "status": "RUNNING", "on_error": "fail", "root_workflow_id": uuid4()}
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
    (info,) = await WorkflowStore(database).node_infos(workflow_id)
    assert (info.status, info.started_at is None) == ("RUNNING", False)
    assert await only_row(connection, "horsies_workflow_tasks", "status", "started_at") == ("ENQUEUED", None)


async def test_claimed_task_past_good_until_expires_with_result(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    ref = await claim_one(database)
    assert await claims.expire({ref: '{"err": {}}'}) == []
    await connection.execute("UPDATE horsies_tasks SET good_until = now()")
    async with collect_notifications(database_url, "horsies_task_done") as notifications:
        assert len(await claims.expire({ref: '{"err": {}}'})) == 1
        assert await notifications() == [("horsies_task_done", str(task_id))]
    row = ("status", "error_code", "result", "claimed", "claimed_by_worker_id", "attempts")
    expired = ("EXPIRED", "TASK_EXPIRED", '{"err": {}}', False, WORKER, 0)
    assert await only_row(connection, "horsies_tasks", *row) == expired


async def test_released_task_keeps_its_place_and_notifies_workers(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    before = await only_row(connection, "horsies_tasks", "enqueued_at", "retry_count", "crash_count", "attempts")
    ref = await claim_one(database, lease_s=60.0)
    async with collect_notifications(database_url, "horsies_task_new") as notifications:
        assert [row.status for row in await claims.release([ref])] == ["PENDING"]
        assert await notifications() == [("horsies_task_new", "default")]
    assert before == await only_row(
        connection, "horsies_tasks", "enqueued_at", "retry_count", "crash_count", "attempts"
    )
    cleared = ("claimed", "claimed_at", "claimed_by_worker_id", "claim_expires_at", "started_at", "claim_token")
    assert await only_row(connection, "horsies_tasks", *cleared) == (False, None, None, None, None, 1)


async def test_started_task_that_never_began_is_released_without_attempt(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    assert await claims.release([ref]) == []
    assert [row.status for row in await claims.release_running([ref])] == ["PENDING"]
    assert await only_row(connection, "horsies_tasks", "attempts", "started_at", "worker_pid") == (0, None, None)
    assert await connection.fetchval("SELECT count(*) FROM horsies_task_attempts") == 0


async def test_release_cancels_task_of_paused_workflow(
    claims: ClaimStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    await connection.execute("UPDATE horsies_tasks SET no_restart = 'paused'")
    assert [row.status for row in await claims.release_running([ref])] == ["CANCELLED"]
    stored = await only_row(connection, "horsies_tasks", "error_code", "result->'err'->>'message'")
    assert stored == ("TASK_CANCELLED", "not started again: its workflow was paused")


async def test_owned_returns_all_tasks_of_a_worker(claims: ClaimStore, database: Database, database_url: str) -> None:
    for _ in range(3):
        await insert_task(database_url)
    running, claimed = await claim_and_start(database), await claim_one(database)
    await claim_one(database, worker_id=uuid4())
    owned = {(row.id, row.claim_token, row.status) for row in await claims.owned(WORKER)}
    assert owned == {(running.task_id, 1, "RUNNING"), (claimed.task_id, 1, "CLAIMED")}
