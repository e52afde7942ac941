"""Claims: which tasks, in which order, and their state afterwards."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from horsies.engine.pool.protocol import parse_details
from horsies.model.capacity import QueueCapacity
from horsies.store.claims import ClaimStore
from horsies.store.database import Database
from tests.support.rows import insert, insert_task
from tests.support.store import WORKER, Connection, claim, collect_notifications, insert_pending, only_row

NOW = datetime.now(UTC)
EARLIER, LATER = NOW - timedelta(minutes=5), NOW + timedelta(hours=1)
INSERT_KNOWN = """
INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueue_sha, enqueued_at)
VALUES (gen_random_uuid(), 'known', 'default', now(), '', now())
"""
A_AND_B = (QueueCapacity(name="a", capacity=1000), QueueCapacity(name="b", capacity=1000))


async def test_claim_orders_by_priority_then_time_over_all_queues(database: Database, database_url: str) -> None:
    third = await insert_task(database_url, queue_name="a", priority=50, enqueued_at=NOW - timedelta(seconds=10))
    first = await insert_task(database_url, queue_name="b", priority=1, enqueued_at=NOW - timedelta(seconds=1))
    fourth = await insert_task(database_url, queue_name="a", priority=100, enqueued_at=NOW - timedelta(seconds=90))
    second = await insert_task(database_url, queue_name="b", priority=50, enqueued_at=NOW - timedelta(seconds=20))
    rows = await claim(database, queues=A_AND_B)
    assert [row.id for row in rows] == [first, second, third, fourth]


async def test_first_tasks_start_in_given_children_rest_are_claimed(database: Database, connection: Connection) -> None:
    await insert_pending(connection, count=3)
    rows = await claim(database, pids=[7, 8])
    assert [row.worker_pid for row in rows] == [7, 8, None]
    names = await connection.fetch(
        "SELECT worker_process_name, started_at = claimed_at, claimed FROM horsies_tasks ORDER BY worker_pid"
    )
    assert [tuple(row) for row in names] == [("worker-7", True, False), ("worker-8", True, False), (None, None, True)]


async def test_claim_clears_retry_and_hold_and_increments_token(
    database: Database, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url, claim_token=4, next_retry_at=EARLIER, recovery_hold_until=EARLIER)
    (row,) = await claim(database)
    assert row.claim_token == 5
    assert await only_row(
        connection, "horsies_tasks", "claimed_by_worker_id", "claim_expires_at", "next_retry_at", "recovery_hold_until"
    ) == (WORKER, None, None, None)


@pytest.mark.parametrize(
    "columns",
    [
        {"enqueued_at": LATER},
        {"next_retry_at": LATER},
        {"good_until": EARLIER},
        {"queue_name": "not served"},
        {"status": "RUNNING"},
        {"status": "CLAIMED", "claimed": True},
        {"status": "CLAIMED", "claimed": True, "claim_expires_at": LATER},
        {"status": "CLAIMED", "claimed": True, "claim_expires_at": EARLIER, "good_until": EARLIER},
    ],
)
async def test_task_is_not_claimed_when(database: Database, database_url: str, columns: dict[str, Any]) -> None:
    await insert_task(database_url, **columns)
    assert await claim(database) == []


@pytest.mark.parametrize("request_of", [{}, {"pids": [7] * 100, "takes_expired_leases": False}], ids=["any", "chunk"])
async def test_paused_queue_is_not_claimed(database: Database, database_url: str, request_of: dict[str, Any]) -> None:
    await insert(database_url, "horsies_queues", queue_name="a", paused_at=NOW)
    await insert(database_url, "horsies_queues", queue_name="b", paused_at=None)
    await insert_task(database_url, queue_name="a")
    await insert_task(database_url, queue_name="b")
    assert [row.queue_name for row in await claim(database, queues=A_AND_B, **request_of)] == ["b"]


async def test_claim_respects_queue_capacity_and_limit(database: Database, connection: Connection) -> None:
    for queue in ("a", "b", "c"):
        await insert_pending(connection, count=5, queue=queue)
    queues = [
        QueueCapacity(name="a", capacity=2),
        QueueCapacity(name="b", capacity=0),
        QueueCapacity(name="c", capacity=1000),
    ]
    rows = await claim(database, queues=queues, limit=4)
    assert sorted(row.queue_name for row in rows) == ["a", "a", "c", "c"]


async def test_capacity_is_filled_from_several_priorities(database: Database, database_url: str) -> None:
    for priority in (3, 2, 1, 4):
        await insert_task(database_url, priority=priority)
    rows = await claim(database, queues=[QueueCapacity(name="default", capacity=3)])
    assert len(rows) == 3
    assert await claim(database, limit=0) == []
    assert len(await claim(database)) == 1


async def test_expired_lease_is_claimed_but_not_started(
    database: Database, database_url: str, connection: Connection
) -> None:
    expired = {"status": "CLAIMED", "claimed": True, "claim_expires_at": EARLIER, "claimed_by_worker_id": uuid4()}
    await insert_task(database_url, claim_token=1, **expired)
    (row,) = await claim(database, pids=[7], lease_s=60.0)
    assert (row.worker_pid, row.claim_token) == (None, 2)
    assert await only_row(connection, "horsies_tasks", "claimed_by_worker_id", "claim_expires_at > now()") == (
        WORKER,
        True,
    )


async def test_concurrent_claims_share_the_tasks(database: Database, connection: Connection) -> None:
    await insert_pending(connection, count=200)
    claims = await asyncio.gather(*(claim(database, limit=25, worker_id=uuid4()) for _ in range(8)))
    assert len({row.id for rows in claims for row in rows}) == 200


@pytest.mark.parametrize(("cluster_cap", "queue_cap"), [(7, None), (None, 3), (7, 3)])
async def test_concurrent_claims_never_exceed_a_cap(
    database: Database, connection: Connection, cluster_cap: int | None, queue_cap: int | None
) -> None:
    await insert_pending(connection, count=100, queue="a")
    await insert_pending(connection, count=100, queue="b")
    queues = [
        QueueCapacity(name="b", capacity=1000, cap=queue_cap),
        QueueCapacity(name="a", capacity=1000, cap=queue_cap),
    ]
    expected = min(cluster_cap or 100, 2 * queue_cap if queue_cap else 100)
    for _ in range(5):
        await asyncio.gather(
            *(
                claim(database, queues=queues, limit=2, pids=[1], worker_id=uuid4(), cluster_cap=cluster_cap)
                for _ in range(12)
            )
        )
        in_flight = await connection.fetch(
            "SELECT count(*) FROM horsies_tasks WHERE status <> 'PENDING' AND terminal_at IS NULL GROUP BY queue_name"
        )
        assert sum(row["count"] for row in in_flight) == expected
        assert all(row["count"] <= (queue_cap or expected) for row in in_flight)
        await connection.execute(
            "UPDATE horsies_tasks SET status = 'COMPLETED', claimed = false, terminal_at = now() "
            "WHERE status IN ('CLAIMED', 'RUNNING')"
        )


async def test_expired_lease_does_not_count_against_a_cap(database: Database, database_url: str) -> None:
    await insert_task(database_url, status="CLAIMED", claimed=True, claim_expires_at=EARLIER)
    await insert_task(database_url, status="CLAIMED", claimed=True, claim_expires_at=LATER)
    await insert_task(database_url, status="CLAIMED", claimed=True)
    await insert_task(database_url)
    assert len(await claim(database, cluster_cap=3)) == 1
    assert await claim(database, cluster_cap=3) == []


async def test_claim_sends_no_notification(database: Database, database_url: str, connection: Connection) -> None:
    await insert_pending(connection, count=3)
    channels = ("horsies_task_new", "horsies_task_done", "horsies_events")
    async with collect_notifications(database_url, *channels) as notifications:
        await claim(database, pids=[7])
        assert await notifications() == []


# Chunks for one child: the same tasks as by the general statement


async def test_chunk_starts_all_tasks_in_one_child(database: Database, connection: Connection) -> None:
    await insert_pending(connection, count=3)
    rows = await claim(database, pids=[7] * 100, takes_expired_leases=False)
    assert [row.worker_pid for row in rows] == [7, 7, 7]
    columns = ("status", "worker_process_name", "worker_hostname", "claim_token", "started_at = claimed_at")
    stored = await connection.fetch(f"SELECT {', '.join(columns)} FROM horsies_tasks")
    assert {tuple(row) for row in stored} == {("RUNNING", "worker-7", "here", 1, True)}


async def test_chunk_leaves_expired_leases(database: Database, database_url: str) -> None:
    expired = {"status": "CLAIMED", "claimed": True, "claim_expires_at": EARLIER, "claimed_by_worker_id": uuid4()}
    await insert_task(database_url, **expired)
    assert await claim(database, pids=[7] * 100, takes_expired_leases=False) == []


async def test_claim_of_some_tasks_skips_the_others(database: Database, database_url: str) -> None:
    for name in ("a", "b", "c", "a"):
        await insert_task(database_url, task_name=name)
    chunk: dict[str, Any] = {"pids": [7] * 100, "takes_expired_leases": False}
    assert [row.task_name for row in await claim(database, only_tasks=["b"], **chunk)] == ["b"]
    assert [row.task_name for row in await claim(database, except_tasks=["a"])] == ["c"]
    assert [row.task_name for row in await claim(database, except_tasks=["b"], **chunk)] == ["a", "a"]


async def test_details_are_returned_only_if_a_task_has_some(database: Database, database_url: str) -> None:
    plain = await insert_task(database_url)
    special = await insert_task(
        database_url, task_options={"timeout_ms": 5}, flags={"x": True}, attempts=2, good_until=LATER, context={"a": 1}
    )
    rows = {row.id: row for row in await claim(database, pids=[7] * 100, takes_expired_leases=False)}
    assert rows[plain].details is None
    details = parse_details(rows[special].details)
    assert (details.timeout_ms, details.flags, details.attempts, details.good_until) == (5, {"x": True}, 2, LATER)
    assert json.loads(details.workflow_context or b"") == {"a": 1}


@pytest.mark.parametrize("seed", range(20))
async def test_chunk_takes_the_same_tasks_in_the_same_order(
    database: Database, connection: Connection, seed: int
) -> None:
    random = Random(seed)  # noqa: S311
    for queue in "abc":
        await insert_pending(connection, count=random.randrange(12), queue=queue)
    await connection.execute(
        """
        UPDATE horsies_tasks
           SET priority = 1 + (random() * 3)::integer,
               enqueued_at = now() + make_interval(secs => (random() * 4)::integer - 3),
               good_until = CASE WHEN random() < 0.3 THEN now() + make_interval(secs => (random() * 9)::integer - 3) END
        """
    )
    queues = [QueueCapacity(name=name, capacity=random.randrange(1, 9)) for name in "ab"]
    limit = random.randrange(1, 12)
    request: dict[str, Any] = {"queues": queues, "limit": limit, "pids": [7] * limit}
    first = await claim(database, **request)
    await connection.execute("UPDATE horsies_tasks SET status = 'PENDING' WHERE status = 'RUNNING'")
    second = await claim(database, **request, takes_expired_leases=False)
    assert [row.id for row in second] == [row.id for row in first]


async def test_known_task_that_is_committed_after_a_search_is_claimed(
    database: Database, database_url: str, connection: Connection
) -> None:
    """Its time is that of its insertion, before the time up to which the search found no known task."""
    await insert_pending(connection, count=1_000, due_in_s=-1)
    claims, names = ClaimStore(database), ["mail.send"]
    async with connection.transaction():
        await connection.execute(INSERT_KNOWN)
        skip_before = await claims.first_known(["default"], names)
    (row,) = await claim(database, except_tasks=names, skip_before=skip_before)
    assert row.task_name == "known"
