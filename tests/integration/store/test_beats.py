"""Signs of life: for whom they are written, and what the worker learns from the answer."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from horsies.store.claims import ClaimRef
from horsies.store.database import Database
from horsies.store.workers import HeartbeatStore, LeaseRenewal, TaskHeartbeat
from tests.support.rows import insert_task
from tests.support.store import WORKER, Connection, claim_and_start, claim_one, collect_notifications, only_row

MINUTE = LeaseRenewal(length_s=60.0, max_claim_age_s=180.0)


@pytest.fixture
def beats(database: Database) -> HeartbeatStore:
    return HeartbeatStore(database=database, hostname="here")


def _beat(hold: ClaimRef) -> TaskHeartbeat:
    return TaskHeartbeat(claim=hold, pid=7)


async def test_a_runner_beat_names_the_child_and_the_token(
    beats: HeartbeatStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    hold = await claim_and_start(database)
    async with collect_notifications(database_url, "horsies_events") as heard:
        (answer,) = await beats.send_runner_heartbeats([_beat(hold)], events=["moved"])
        said = [payload for _, payload in await heard()]
    assert (answer.id, answer.is_held, answer.kill_requested) == (hold.task_id, True, False)
    written = await only_row(connection, "horsies_heartbeats", "role", "sender_id", "pid", "hostname", "claim_token")
    assert written == ("runner", f"{WORKER}:7", 7, "here", 1)
    assert (said[0], json.loads(str(said[1]))) == (
        "moved",
        {"kind": "heartbeats", "worker_id": str(WORKER), "count": 1},
    )


async def test_a_claimer_beat_names_the_worker_and_is_told_to_nobody(
    beats: HeartbeatStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    async with collect_notifications(database_url, "horsies_events") as heard:
        (answer,) = await beats.send_claimer_heartbeats([_beat(await claim_one(database))])
        assert (answer.is_held, await heard()) == (True, [])
    assert await only_row(connection, "horsies_heartbeats", "role", "sender_id") == ("claimer", str(WORKER))
    assert await only_row(connection, "horsies_tasks", "claim_expires_at") == (None,)


async def test_a_row_that_was_lost_gets_no_beat_and_the_answer_says_how_it_stands(
    beats: HeartbeatStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    hold = await claim_and_start(database)
    await connection.execute(
        "UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), claim_token = 2, kill_requested = true,"
        " error_code = 'TASK_CANCELLED'"
    )
    (lost,) = await beats.send_runner_heartbeats([_beat(hold)])
    assert (lost.is_held, lost.status, lost.claim_token, lost.current_token) == (False, "CANCELLED", 1, 2)
    assert (lost.kill_requested, lost.error_code) == (True, "TASK_CANCELLED")
    assert await connection.fetchval("SELECT count(*) FROM horsies_heartbeats") == 0


async def test_a_row_that_is_gone_is_answered_too(beats: HeartbeatStore) -> None:
    (gone,) = await beats.send_runner_heartbeats([_beat(ClaimRef(task_id=uuid4(), claim_token=1, worker_id=WORKER))])
    assert (gone.is_held, gone.status, gone.current_token) == (False, None, None)


async def test_a_run_still_held_is_answered_with_the_wish_to_end_it(
    beats: HeartbeatStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    hold = await claim_and_start(database)
    await connection.execute("UPDATE horsies_tasks SET kill_requested = true")
    (answer,) = await beats.send_runner_heartbeats([_beat(hold)])
    assert (answer.is_held, answer.kill_requested) == (True, True)


@pytest.mark.parametrize(
    ("meanwhile", "is_renewed"),
    [
        ("claim_expires_at = now() + interval '1 s'", True),
        ("claim_expires_at = now() - interval '1 s'", False),
        ("claim_expires_at = now() + interval '1 s', claimed_at = now() - interval '181 s'", False),
        ("claim_expires_at = NULL", False),
    ],
)
async def test_a_lease_is_renewed_while_it_is_valid_and_the_claim_young(
    beats: HeartbeatStore,
    database: Database,
    database_url: str,
    connection: Connection,
    meanwhile: str,
    is_renewed: bool,
) -> None:
    await insert_task(database_url)
    hold = await claim_one(database, lease_s=30.0)
    await connection.execute(f"UPDATE horsies_tasks SET {meanwhile}")
    (answer,) = await beats.send_claimer_heartbeats([_beat(hold)], lease=MINUTE)
    assert answer.is_held
    renewed = "coalesce(claim_expires_at > now() + interval '50 s', false)"
    assert await only_row(connection, "horsies_tasks", renewed) == (is_renewed,)


async def test_nobody_beats_for_what_another_worker_holds(
    beats: HeartbeatStore, database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url)
    theirs = (await claim_one(database, lease_s=30.0))._replace(worker_id=uuid4())
    (answer,) = await beats.send_claimer_heartbeats([_beat(theirs)], lease=MINUTE)
    assert not answer.is_held
    assert await connection.fetchval("SELECT count(*) FROM horsies_heartbeats") == 0
