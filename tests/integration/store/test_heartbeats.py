"""Task heartbeats: which are stored, and what the reply tells the worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import uuid4

import pytest

from horsies.store.claims import ClaimRef
from horsies.store.database import Database
from horsies.store.workers import HeartbeatReply, HeartbeatRole, LeaseRenewal, WorkerStore
from tests.support.rows import insert_task
from tests.support.store import WORKER, Connection, claim_and_start, claim_one, collect_notifications, only_row

MINUTE = LeaseRenewal(length_s=60.0, max_claim_age_s=180.0)


@pytest.fixture
def workers(database: Database) -> WorkerStore:
    return WorkerStore(database)


async def _claimer_heartbeat(workers: WorkerStore, ref: ClaimRef, lease: LeaseRenewal | None = None) -> HeartbeatReply:
    (reply,) = await workers.task_heartbeats(HeartbeatRole.CLAIMER, {ref: 7}, hostname="here", lease=lease)
    return reply


async def _runner_heartbeat(workers: WorkerStore, ref: ClaimRef, events: Sequence[str] = ()) -> HeartbeatReply:
    (reply,) = await workers.task_heartbeats(HeartbeatRole.RUNNER, {ref: 7}, hostname="here", events=events)
    return reply


async def test_runner_heartbeat_stores_child_and_token(
    workers: WorkerStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    async with collect_notifications(database_url, "horsies_events") as notifications:
        answer = await _runner_heartbeat(workers, ref, ["moved"])
        payloads = [payload for _, payload in await notifications()]
    assert (answer.id, answer.is_held, answer.kill_requested) == (ref.task_id, True, False)
    stored = await only_row(connection, "horsies_heartbeats", "role", "sender_id", "pid", "hostname", "claim_token")
    assert stored == ("runner", f"{WORKER}:7", 7, "here", 1)
    assert (payloads[0], json.loads(str(payloads[1]))) == (
        "moved",
        {"kind": "heartbeats", "worker_id": str(WORKER), "count": 1},
    )


async def test_claimer_heartbeat_stores_worker_without_notification(
    workers: WorkerStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    async with collect_notifications(database_url, "horsies_events") as notifications:
        answer = await _claimer_heartbeat(workers, await claim_one(database))
        assert (answer.is_held, await notifications()) == (True, [])
    assert await only_row(connection, "horsies_heartbeats", "role", "sender_id") == ("claimer", str(WORKER))
    assert await only_row(connection, "horsies_tasks", "claim_expires_at") == (None,)


async def test_lost_claim_gets_no_heartbeat_but_its_current_state(
    workers: WorkerStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    await connection.execute(
        "UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), claim_token = 2, kill_requested = true,"
        " error_code = 'TASK_CANCELLED'"
    )
    lost = await _runner_heartbeat(workers, ref)
    assert (lost.is_held, lost.status, lost.claim_token, lost.current_token) == (False, "CANCELLED", 1, 2)
    assert (lost.kill_requested, lost.error_code) == (True, "TASK_CANCELLED")
    assert await connection.fetchval("SELECT count(*) FROM horsies_heartbeats") == 0


async def test_deleted_task_is_answered_too(workers: WorkerStore) -> None:
    ref = ClaimRef(task_id=uuid4(), claim_token=1, worker_id=WORKER)
    deleted = await _runner_heartbeat(workers, ref)
    assert (deleted.is_held, deleted.status, deleted.current_token) == (False, None, None)


async def test_heartbeat_reply_contains_kill_request(
    workers: WorkerStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    ref = await claim_and_start(database)
    await connection.execute("UPDATE horsies_tasks SET kill_requested = true")
    answer = await _runner_heartbeat(workers, ref)
    assert (answer.is_held, answer.kill_requested) == (True, True)


@pytest.mark.parametrize(
    ("update", "is_renewed"),
    [
        ("claim_expires_at = now() + interval '1 s'", True),
        ("claim_expires_at = now() - interval '1 s'", False),
        ("claim_expires_at = now() + interval '1 s', claimed_at = now() - interval '181 s'", False),
        ("claim_expires_at = NULL", False),
    ],
)
async def test_lease_is_renewed_while_valid_and_claim_is_recent(
    workers: WorkerStore,
    database: Database,
    database_url: str,
    connection: Connection,
    update: str,
    is_renewed: bool,
) -> None:
    await insert_task(database_url)
    ref = await claim_one(database, lease_s=30.0)
    await connection.execute(f"UPDATE horsies_tasks SET {update}")
    answer = await _claimer_heartbeat(workers, ref, MINUTE)
    assert answer.is_held
    renewed = "coalesce(claim_expires_at > now() + interval '50 s', false)"
    assert await only_row(connection, "horsies_tasks", renewed) == (is_renewed,)


async def test_heartbeat_for_claim_of_another_worker_is_refused(
    workers: WorkerStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    theirs = (await claim_one(database, lease_s=30.0))._replace(worker_id=uuid4())
    answer = await _claimer_heartbeat(workers, theirs, MINUTE)
    assert not answer.is_held
    assert await connection.fetchval("SELECT count(*) FROM horsies_heartbeats") == 0
