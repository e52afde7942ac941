"""Manual recovery through the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from horsies import BrokerError, BrokerErrorCode, PostgresBroker, PostgresConfig, Recovery
from horsies.store.database import Database
from horsies.store.recovery import RecoveryStore
from tests.support.rows import (
    CRASH_RETRY,
    insert_heartbeat,
    insert_listening_worker,
    insert_owned_task,
    insert_task,
    seconds_ago,
)
from tests.support.store import make_app

STALE_KEYS = {
    "id",
    "task_name",
    "queue_name",
    "worker_id",
    "worker_hostname",
    "worker_pid",
    "worker_process_name",
    "started_at",
    "last_heartbeat",
    "claim_token",
    "retry_count",
    "crash_count",
}
EXPIRED_KEYS = {
    "id",
    "task_name",
    "queue_name",
    "priority",
    "sent_at",
    "enqueued_at",
    "good_until",
    "expired_for",
}


@pytest.fixture
async def broker(database_url: str) -> AsyncIterator[PostgresBroker]:
    broker = PostgresBroker(PostgresConfig(database_url=database_url))
    yield broker
    await broker.close()


async def test_stale_tasks_are_listed_longest_silent_first(broker: PostgresBroker, database_url: str) -> None:
    await insert_listening_worker(database_url, listens_s=1)  # just started: no effect on plain ages
    silent = [
        await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=silence) for silence in (400, 900, 10)
    ]
    await insert_heartbeat(database_url, silent[2], silent_s=500)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=10)
    await insert_owned_task(database_url, "CLAIMED", owner=None, silent_s=900)
    found = await broker.get_stale_tasks()
    assert [row["id"] for row in found] == [str(silent[1]), str(silent[2]), str(silent[0])]
    assert found[0].keys() == STALE_KEYS


async def test_stale_running_tasks_are_retried_or_failed(broker: PostgresBroker, database_url: str) -> None:
    worker_id = await insert_listening_worker(database_url, running_stale_threshold_ms=7_200_000)
    retried = await insert_owned_task(
        database_url, "RUNNING", owner=worker_id, silent_s=400, task_options=CRASH_RETRY, max_retries=1
    )
    failed = await insert_owned_task(database_url, "RUNNING", owner=worker_id, silent_s=400)
    await insert_owned_task(database_url, "RUNNING", owner=worker_id, silent_s=200)
    await insert_owned_task(database_url, "CLAIMED", owner=worker_id, silent_s=400)
    assert await broker.mark_stale_tasks_as_failed() == 2
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("SELECT id, status FROM horsies_tasks WHERE id = ANY($1)", [retried, failed])
    await connection.close()
    assert {row["id"]: row["status"] for row in rows} == {retried: "PENDING", failed: "FAILED"}
    assert await broker.mark_stale_tasks_as_failed() == 0


async def test_stale_claimed_tasks_are_requeued(broker: PostgresBroker, database_url: str) -> None:
    for silence in (130, 110):
        await insert_owned_task(database_url, "CLAIMED", owner=None, silent_s=silence)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=900)
    assert [await broker.requeue_stale_claimed(), await broker.requeue_stale_claimed(100_000)] == [1, 1]


async def test_expired_tasks_are_listed_and_expired(broker: PostgresBroker, database_url: str) -> None:
    late = await insert_task(database_url, good_until=seconds_ago(60))
    later = await insert_task(database_url, good_until=seconds_ago(30))
    await insert_task(database_url, good_until=seconds_ago(-60))
    found = await broker.get_expired_tasks()
    assert [row["id"] for row in found] == [str(late), str(later)]
    assert found[0].keys() == EXPIRED_KEYS
    assert timedelta(seconds=60) <= found[0]["expired_for"] < timedelta(seconds=120)
    assert [await broker.expire_pending_tasks(), await broker.expire_pending_tasks()] == [2, 0]


async def test_concurrent_sweep_raises_sweep_busy(broker: PostgresBroker, database: Database) -> None:
    async def sweep_meanwhile() -> BrokerErrorCode | object:
        with pytest.raises(BrokerError) as busy:
            await broker.requeue_stale_claimed()
        return busy.value.code

    assert await RecoveryStore(database).with_leader_lock(sweep_meanwhile) == BrokerErrorCode.SWEEP_BUSY


@pytest.mark.parametrize("threshold", [0, -1, float("inf"), float("nan"), 10**20, "x", None])
async def test_invalid_threshold_is_rejected(broker: PostgresBroker, threshold: Any) -> None:
    for call in (broker.get_stale_tasks, broker.mark_stale_tasks_as_failed, broker.requeue_stale_claimed):
        with pytest.raises(ValueError, match=r"the stale threshold must be a .* above 0"):
            await call(threshold)


async def test_recovery_hooks_of_the_app_are_called(database_url: str) -> None:
    app = make_app(database_url)
    app.on_recovery(lambda _: Recovery.skip())
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=900)
    assert await app.get_broker().mark_stale_tasks_as_failed() == 0
    await app.close_async()


async def test_database_without_tables_raises_a_broker_error(empty_database_url: str) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=empty_database_url))
    with pytest.raises(BrokerError, match="no horsies tables"):
        await broker.get_stale_tasks()
    await broker.close()


async def test_manual_recovery_leaves_an_audit_entry(broker: PostgresBroker, database_url: str) -> None:
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    assert await broker.mark_stale_tasks_as_failed() == 1
    connection = await asyncpg.connect(database_url)
    newest = "SELECT *, filter ->> 'step' AS step FROM horsies_audit ORDER BY id DESC LIMIT 1"
    entry = await connection.fetchrow(newest)
    await connection.close()
    assert entry is not None
    assert (entry["action"], entry["via"], entry["affected"], entry["db_role"]) == ("sweep", "library", 1, "horsies")
    assert entry["step"] == "recover running"
    assert await broker.mark_stale_tasks_as_failed() == 0
