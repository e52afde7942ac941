"""Queues, overview, workers, throughput and errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies.model.settings import AppConfig, PostgresConfig, RecoveryConfig
from horsies.store.database import Database
from horsies_ops import doctor as checks
from horsies_ops.ops import open_ops
from horsies_ops.reads.overview import QueueRow
from horsies_ops.reads.search import Count
from tests.support.rows import NOW, insert, insert_snapshot, insert_task, insert_worker
from tests.support.store import ops_on

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
THRESHOLDS = {"claimed_stale_threshold_ms": 120_000, "running_stale_threshold_ms": 300_000}


async def _queues(database: Database) -> dict[str, QueueRow]:
    return {queue.name: queue for queue in await ops_on(database).list_queues()}


async def test_queue_counts_pending_delayed_owned_and_finished_tasks(database: Database, database_url: str) -> None:
    owned: dict[str, Any] = {"claimed_at": NOW, "started_at": NOW, "claim_token": 1}
    for columns in (
        {"enqueued_at": NOW - MINUTE},
        {"enqueued_at": NOW + HOUR},
        {"status": "CLAIMED", **owned},
        {"status": "RUNNING", **owned},
        {"status": "COMPLETED"},
        {"status": "FAILED"},
        {"status": "COMPLETED", "terminal_at": NOW - HOUR},
    ):
        await insert_task(database_url, queue_name="mail", **columns)
    mail = (await _queues(database))["mail"]
    assert (mail.pending, mail.delayed, mail.claimed, mail.running) == (1, 1, 1, 1)
    assert (mail.finished_last_minute, mail.failed_last_minute, mail.served_by) == (2, 1, 0)
    assert mail.oldest_due_age is not None
    assert mail.oldest_due_age >= MINUTE
    assert mail.next_due_in is not None
    assert mail.next_due_in <= HOUR


async def test_queues_of_workers_and_pauses_are_listed_by_priority(database: Database, database_url: str) -> None:
    worker = await insert_worker(database_url, queues=["slow", "fast"])
    await insert_snapshot(
        database_url,
        worker,
        queue_priorities={"slow": 90, "fast": 1},
        queue_max_concurrency={"slow": 4, "fast": None},
    )
    paused = {"queue_name": "old", "paused_at": NOW, "paused_by": "ana", "pause_reason": "broken"}
    await insert(database_url, "horsies_queues", **paused)
    queues = await _queues(database)
    assert list(queues) == ["fast", "slow", "old"]
    assert [(q.priority, q.max_concurrency, q.served_by) for q in queues.values()] == [
        (1, None, 1),
        (90, 4, 1),
        (None, None, 0),
    ]
    assert (queues["old"].is_paused, queues["old"].paused_by, queues["old"].pause_reason) == (True, "ana", "broken")


async def test_silent_draining_and_stopped_workers_serve_no_queue(database: Database, database_url: str) -> None:
    await insert_worker(database_url, last_heartbeat_at=NOW - HOUR)
    # Silent, but not stale yet.
    await insert_worker(database_url, last_heartbeat_at=NOW - 2 * MINUTE)
    await insert_worker(database_url, state="draining")
    await insert_worker(database_url, state="stopped", queues=["gone"])
    queues = await _queues(database)
    assert {name: queue.served_by for name, queue in queues.items()} == {"default": 0}


async def test_overview_has_counts_by_status_and_ages(database: Database, database_url: str) -> None:
    await insert_task(database_url, enqueued_at=NOW - MINUTE)
    await insert_task(database_url, enqueued_at=NOW + HOUR)
    await insert_task(database_url, status="RUNNING", claimed_at=NOW, started_at=NOW - MINUTE, claim_token=1)
    for status, code in (("COMPLETED", None), ("FAILED", "X"), ("EXPIRED", "TASK_EXPIRED")):
        await insert_task(database_url, status=status, error_code=code)
    await insert_task(database_url, status="FAILED", error_code="X", terminal_at=NOW - 2 * HOUR)
    await insert_worker(database_url, processes=4)
    await insert_worker(database_url, state="lost")
    seen = await ops_on(database).overview()
    assert {status: count.number for status, count in seen.counts.items() if count.number} == {
        "PENDING": 2,
        "RUNNING": 1,
        "COMPLETED": 1,
        "FAILED": 2,
        "EXPIRED": 1,
    }
    assert (seen.failed_last_hour, seen.failed_last_day) == (Count(number=1), Count(number=2))
    assert (seen.expired_last_day, seen.delayed) == (Count(number=1), 1)
    assert (seen.workers, seen.slots, seen.running, seen.stale) == ({"running": 1, "lost": 1}, 4, 1, 0)
    assert seen.oldest_due is not None
    assert seen.oldest_due >= MINUTE
    assert seen.longest_running is not None
    assert seen.longest_running >= MINUTE
    assert seen.oldest_claimed is None


@pytest.mark.parametrize(
    ("columns", "heartbeat_age", "stale"),
    [
        ({"status": "RUNNING", "started_at": NOW - HOUR}, None, True),
        ({"status": "RUNNING", "started_at": NOW - HOUR}, MINUTE, False),
        ({"status": "RUNNING", "started_at": NOW - HOUR}, 6 * MINUTE, True),
        ({"status": "RUNNING", "started_at": NOW}, None, False),
        ({"status": "CLAIMED", "claimed_at": NOW - 3 * MINUTE, "started_at": NOW - HOUR}, None, True),
        ({"status": "CLAIMED", "claimed_at": NOW - MINUTE, "started_at": NOW - HOUR}, None, False),
        (
            {"status": "RUNNING", "started_at": NOW - 6 * MINUTE, "flags": {"infrastructure_resilient": True}},
            None,
            False,
        ),
        ({"status": "RUNNING", "started_at": NOW - HOUR, "recovery_hold_until": NOW + HOUR}, None, False),
    ],
)
async def test_tasks_past_their_threshold_count_as_stale(
    database: Database, database_url: str, columns: dict[str, Any], heartbeat_age: timedelta | None, stale: bool
) -> None:
    task_id = await insert_task(database_url, claim_token=3, **{"claimed_at": NOW - HOUR} | columns)
    if heartbeat_age is not None:
        columns = {"task_id": task_id, "claim_token": 3, "sent_at": NOW - heartbeat_age}
        await insert(database_url, "horsies_heartbeats", role="runner", sender_id="w:1", **columns)
    assert (await ops_on(database).overview()).stale == stale


async def test_thresholds_of_the_owner_apply_to_its_tasks(database: Database, database_url: str) -> None:
    owner = await insert_worker(
        database_url, state="lost", recovery_config=THRESHOLDS | {"running_stale_threshold_ms": 7_200_000}
    )
    stopped = await insert_worker(database_url, state="stopped", recovery_config=THRESHOLDS)
    running = {"status": "RUNNING", "claimed_at": NOW - HOUR, "started_at": NOW - HOUR, "claim_token": 1}
    await insert_task(database_url, **running, claimed_by_worker_id=owner)
    assert (await ops_on(database).overview()).stale == 0
    await insert_task(database_url, **running | {"started_at": NOW}, claimed_by_worker_id=stopped)
    assert (await ops_on(database).overview()).stale == 1


async def test_local_settings_decide_what_is_stale_without_live_worker(
    database_url: str,
) -> None:
    await insert_worker(database_url, last_heartbeat_at=NOW - HOUR, recovery_config=THRESHOLDS)
    await insert_task(database_url, status="RUNNING", started_at=NOW - MINUTE, claimed_at=NOW - MINUTE, claim_token=1)
    config = AppConfig(
        broker=PostgresConfig(database_url=database_url),
        recovery=RecoveryConfig(running_stale_threshold_ms=4_000, runner_heartbeat_interval_ms=2_000),
    )
    async with open_ops(config) as ops:
        assert len((await ops.stale_candidates()).tasks) == (await ops.overview()).stale == 1
        assert "1 running" in (await checks.check_stale(ops)).detail
    async with open_ops(config.broker) as ops:
        assert len((await ops.stale_candidates()).tasks) == (await ops.overview()).stale == 0


async def test_invalid_threshold_of_a_worker_counts_as_default(database: Database, database_url: str) -> None:
    for threshold in ("soon", None, 10**30):
        await insert_worker(database_url, processes=2, recovery_config={"worker_stale_threshold_ms": threshold})
    assert (await ops_on(database).overview()).slots == 6


async def test_active_workers_are_listed_newest_heartbeat_first(database: Database, database_url: str) -> None:
    listening_since = NOW.instant()
    silent = await insert_worker(database_url, last_heartbeat_at=NOW - HOUR)
    health = {
        "listener": "ok",
        "listening_since": listening_since.isoformat(),
        "disabled_operations": ["heal"],
        "warnings": ["w"],
    }
    busy = await insert_worker(database_url, health=health)
    await insert_worker(database_url, state="stopped")
    await insert_snapshot(database_url, busy, memory_usage_mb=100.0, children_memory_mb=50.0, cpu_percent=7.0)
    for status in ("RUNNING", "RUNNING", "CLAIMED"):
        await insert_task(database_url, status=status, claimed_by_worker_id=busy, claimed_at=NOW, started_at=NOW)
    first, second = await ops_on(database).list_active_workers(MINUTE)
    assert (first.worker_id, first.is_stale, second.worker_id, second.is_stale) == (busy, False, silent, True)
    assert (first.tasks_running, first.tasks_claimed, first.memory_mb, first.cpu_percent) == (2, 1, 150.0, 7.0)
    assert (first.listener, first.listening_since) == ("ok", listening_since)
    assert (list(first.disabled_operations), list(first.warnings)) == (["heal"], ["w"])
    assert (second.listener, list(second.warnings), second.heartbeat_age > MINUTE) == (None, [], True)


async def test_worker_history_has_snapshots_of_the_window_oldest_first(database: Database, database_url: str) -> None:
    worker = await insert_worker(database_url)
    for age, running in ((2 * HOUR, 1), (2 * MINUTE, 2), (MINUTE, 3)):
        await insert_snapshot(database_url, worker, snapshot_at=NOW - age, tasks_running=running)
    assert [row.tasks_running for row in await ops_on(database).worker_history(worker, HOUR)] == [2, 3]


async def test_throughput_has_a_bucket_for_each_interval(database: Database, database_url: str) -> None:
    times = {"enqueued_at": NOW - 5 * MINUTE, "started_at": NOW - 4 * MINUTE}
    await insert_task(database_url, status="COMPLETED", terminal_at=NOW - 2 * MINUTE, **times)
    await insert_task(database_url, status="FAILED", terminal_at=NOW - 2 * MINUTE, **times)
    await insert_task(database_url, status="COMPLETED", terminal_at=NOW - 2 * HOUR, **times)
    seen = await ops_on(database).throughput(30 * MINUTE, buckets=30)
    assert len(seen.buckets) == 30
    assert (sum(b.done for b in seen.buckets), sum(b.failed for b in seen.buckets)) == (1, 1)
    assert {b.at.second for b in seen.buckets} == {0}
    assert (seen.times.wait_p50, seen.times.run_p95) == (MINUTE, 2 * MINUTE)


async def test_queue_throughput_has_the_longest_wait(database: Database, database_url: str) -> None:
    finished = {"status": "COMPLETED", "started_at": NOW - 4 * MINUTE, "terminal_at": NOW - 3 * MINUTE}
    for queue, due in (("mail", 5), ("mail", 9), ("etl", 6)):
        await insert_task(database_url, queue_name=queue, enqueued_at=NOW - due * MINUTE, **finished)
    await insert_task(database_url, queue_name="mail", status="FAILED", terminal_at=NOW - 10 * MINUTE)
    await insert_task(database_url, queue_name="old", status="COMPLETED", terminal_at=NOW - 2 * HOUR)
    buckets = await ops_on(database).queue_throughput(30 * MINUTE, buckets=30)
    assert [(row.queue, row.done, row.failed, row.longest_wait) for row in buckets] == [
        ("etl", 1, 0, 2 * MINUTE),
        ("mail", 0, 1, None),
        ("mail", 2, 0, 5 * MINUTE),
    ]


async def test_failures_are_counted_exactly_where_completed_tasks_are_estimated(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies_ops.reads.overview.MAX_PER_BUCKET", 2)
    monkeypatch.setattr("horsies_ops.reads.overview.MAX_PER_QUEUE_BUCKET", 2)
    monkeypatch.setattr("horsies_ops.reads.overview.MAX_FINISHED_COUNTED", 2)
    at = NOW - 20 * timedelta(seconds=1)
    for seconds, status in enumerate(["FAILED"] * 3 + ["COMPLETED"] * 5):
        finished = {"terminal_at": at + timedelta(seconds=seconds), "started_at": at, "status": status}
        await insert_task(database_url, queue_name="mail", **finished)
    ops = ops_on(database)
    buckets = (await ops.throughput(HOUR, buckets=2)).buckets
    assert (sum(bucket.failed for bucket in buckets), any(bucket.is_estimate for bucket in buckets)) == (3, True)
    queue_buckets = await ops.queue_throughput(HOUR, buckets=2)
    assert (sum(bucket.failed for bucket in queue_buckets), queue_buckets[-1].is_estimate) == (3, True)
    (mail,) = await ops.list_queues()
    assert (mail.failed_last_minute, mail.is_estimate) == (3, True)


async def test_burst_is_extrapolated_over_its_own_duration(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies_ops.reads.overview.MAX_PER_BUCKET", 4)
    monkeypatch.setattr("horsies_ops.reads.overview.MAX_PER_QUEUE_BUCKET", 4)
    begun = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - HOUR
    for index in range(20):
        at = begun + index * timedelta(seconds=1)
        await insert_task(database_url, queue_name="mail", status="COMPLETED", started_at=at, terminal_at=at)
    ops = ops_on(database)
    # Four tasks in three seconds of 19; over the whole hour it would be 4,800.
    done = [bucket.done for bucket in (await ops.throughput(4 * HOUR, buckets=4)).buckets if bucket.done]
    (mail,) = await ops.queue_throughput(4 * HOUR, buckets=4)
    assert (done, mail.done, mail.is_estimate) == ([25], 25, True)


async def test_codes_of_cancelled_tasks_do_not_cap_other_counts(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies_ops.reads.overview.MAX_PER_ERROR_CODE", 2)
    codes = {"CANCELLED": "TASK_CANCELLED", "FAILED": "X", "EXPIRED": "TASK_EXPIRED"}
    for status, number in (("CANCELLED", 2), ("FAILED", 3), ("EXPIRED", 1)):
        for _ in range(number):
            await insert_task(database_url, status=status, error_code=codes[status])
    seen = await ops_on(database).overview()
    assert (seen.expired_last_day, seen.failed_last_day) == (Count(number=1), Count(number=3))


async def test_errors_are_counted_by_task_and_code(database: Database, database_url: str) -> None:
    for name, code in (("a", "X"), ("a", "X"), ("b", "X"), ("a", "Y")):
        await insert_task(database_url, task_name=name, status="FAILED", error_code=code)
    await insert_task(database_url, task_name="a", status="FAILED", error_code="X", terminal_at=NOW - 2 * HOUR)
    errors = await ops_on(database).error_summary(HOUR)
    assert [(error.name, error.code, error.count) for error in errors] == [("a", "X", 2), ("a", "Y", 1), ("b", "X", 1)]
