"""The reaper of a worker: passes, failing jobs and refused tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from horsies.engine import events
from horsies.engine.heartbeat import Health
from horsies.engine.reaper import OncePerInterval, Reaper
from horsies.model.recovery.fleet import HeartbeatSeries
from horsies.model.settings import RecoveryConfig
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database, Transaction
from tests.support.ledger import Ledger, OrphanedTask
from tests.support.ledger_app import QUICK_RECOVERY
from tests.support.workers import InProcessWorker, worker_in_process

OLD_HEARTBEATS = """
INSERT INTO horsies_heartbeats (task_id, claim_token, role, sender_id, sent_at)
SELECT gen_random_uuid(), 1, 'runner', 'gone', now() - make_interval(hours => hours)
  FROM unnest(ARRAY[1, 25, 26]) AS hours
"""
LONG_LISTENER = """
INSERT INTO horsies_workers (id, hostname, pid, version, processes, state, last_heartbeat_at, recovery_config, health)
VALUES (gen_random_uuid(), 'elsewhere', 1, '0', 1, 'running', now(),
        '{"worker_stale_threshold_ms": 300000, "worker_heartbeat_interval_ms": 120000}',
        json_build_object('listening_since', now() - interval '1 day'))
"""


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


async def health_of(ledger: Ledger, worker: InProcessWorker) -> dict[str, Any]:
    (row,) = await ledger.fetch("SELECT health FROM horsies_workers WHERE id = $1::text::uuid", worker.worker_id)
    return json.loads(row["health"])


@asynccontextmanager
async def second_reaper(
    worker: InProcessWorker,
    *,
    database: Database | None = None,
    recovery: RecoveryConfig | None = None,
    health: Health | None = None,
    **jobs: Callable[[], Awaitable[object]],
) -> AsyncGenerator[None]:
    """Run a second reaper with the test's own jobs on this worker."""
    assert worker.worker._assembly is not None
    assembly = worker.worker._assembly.base
    stop = asyncio.Event()
    second = Reaper(
        database or assembly.database,
        jobs,
        recovery=recovery or worker.app.config.recovery,
        identity=worker.worker.identity,
        health=health or assembly.health,
        reporter=assembly.reporter,
        hooks=assembly.hooks,
        publish_health_now=asyncio.Event(),
    )
    reaper = asyncio.create_task(second.run(stop))
    try:
        yield
    finally:
        stop.set()
        await reaper


async def test_pass_deletes_old_heartbeats(ledger: Ledger, database_url: str) -> None:
    await ledger.fetch(OLD_HEARTBEATS)
    async with worker_in_process(database_url, processes=1):

        async def are_gone() -> bool:
            return len(await ledger.fetch("SELECT FROM horsies_heartbeats WHERE sender_id = 'gone'")) == 1

        await ledger.until(are_gone)


async def test_pass_is_published_in_the_health_document(ledger: Ledger, database_url: str) -> None:
    async with worker_in_process(database_url, processes=1) as worker:
        await worker.wait_for_event(events.PassFinished)

        async def is_published() -> bool:
            return (await health_of(ledger, worker))["last_pass_at"] is not None

        await ledger.until(is_published)
        published = (await health_of(ledger, worker))["last_pass_at"]
        (clock,) = await ledger.fetch("SELECT clock_timestamp() AS now")
        age = clock["now"] - datetime.fromisoformat(published)
        assert 0 <= age.total_seconds() < 5


async def test_failing_job_is_reported_and_does_not_block_others(ledger: Ledger, database_url: str) -> None:
    is_repaired = asyncio.Event()
    done: list[str] = []

    async def fail() -> None:
        done.append("fail")
        if not is_repaired.is_set():
            raise LookupError("no such function")

    async def work() -> None:
        done.append("work")

    async with worker_in_process(database_url, processes=1) as worker, second_reaper(worker, fail=fail, work=work):
        disabled = await worker.wait_for_event(events.OperationDisabled)
        assert (disabled.operation, disabled.error) == ("fail", "no such function")

        async def is_shown() -> bool:
            return (await health_of(ledger, worker))["disabled_operations"] == ["fail"]

        await ledger.until(is_shown)
        assert done[:6] == ["fail", "work"] * 3
        is_repaired.set()
        await worker.wait_for_event(events.OperationEnabled)
        assert done[6:].count("work") >= 9, "the failing job was tried too often"
        await ledger.until(lambda: ledger.events("operation_disabled"))
        await ledger.until(lambda: ledger.events("operation_enabled"))


async def test_task_that_cannot_be_recovered_is_reported_once(ledger: Ledger, database_url: str) -> None:
    refused = await OrphanedTask(status="RUNNING", task="wait_for", silent_s=3_600).insert(ledger)
    await ledger.fetch("UPDATE horsies_tasks SET attempts = 2147483647")
    async with worker_in_process(database_url, processes=1) as worker:
        refusal = await worker.wait_for_event(events.RecoveryRefused)
        assert (refusal.task_id, refusal.decision, "out of range" in refusal.error) == (refused, "fail", True)
        await ledger.until(lambda: ledger.events("recovery_refused"))

        async def is_shown() -> bool:
            return any(refused in warning for warning in (await health_of(ledger, worker))["warnings"])

        await ledger.until(is_shown)
        seen = len(worker.events_of(events.PassFinished))
        await worker.until(lambda: len(worker.events_of(events.PassFinished)) >= seen + 2)
        assert len(worker.events_of(events.RecoveryRefused)) == 1
        await ledger.fetch("UPDATE horsies_tasks SET attempts = 0")
        await ledger.until_terminal(refused)
        await worker.until(lambda: not worker.health.refused_tasks)


class SuspendedAtTheLock(Database):
    """Sends the statement for the leader lock only after `wait`, like a process that is suspended just before it."""

    def __init__(self, url: str, wait: Callable[[], Awaitable[object]]) -> None:
        super().__init__(ConnectionSpec(url=url, masked_url=url))
        self._wait = wait

    @asynccontextmanager
    async def lock_transaction(self) -> AsyncGenerator[Transaction]:
        await self._wait()
        async with super().lock_transaction() as transaction:
            yield transaction


async def test_pass_that_was_suspended_recovers_nothing(ledger: Ledger, database_url: str) -> None:
    silent = "SELECT FROM horsies_tasks WHERE started_at < clock_timestamp() - interval '1 second'"
    recovery = RecoveryConfig.unchecked(
        **QUICK_RECOVERY | {"check_interval_ms": 100, "worker_heartbeat_interval_ms": 500}
    )
    health = Health(recovery=recovery)

    async def until_silent() -> None:
        await ledger.until(lambda: ledger.fetch(silent))

    async with (
        worker_in_process(database_url, processes=1, config={"recovery": {"check_interval_ms": 600_000}}) as worker,
        SuspendedAtTheLock(database_url, until_silent) as database,
    ):
        task_id = await OrphanedTask(silent_s=0.0).insert(ledger)
        now = await ledger.now()
        health.series = HeartbeatSeries(since=now - timedelta(hours=1), last_heartbeat_at=now)
        async with second_reaper(worker, database=database, recovery=recovery, health=health):
            await worker.wait_for_event(events.PassFinished)
        assert (await ledger.row(task_id))["status"] == "RUNNING"


async def test_new_worker_leaves_passes_to_longer_running_ones(ledger: Ledger, database_url: str) -> None:
    await ledger.fetch(LONG_LISTENER)
    never = {"recovery": {"running_stale_threshold_ms": 3_600_000, "worker_stale_threshold_ms": 3_600_000}}
    lived = "SELECT FROM horsies_workers WHERE last_heartbeat_at - started_at > interval '2 seconds' AND hostname <> $1"
    async with worker_in_process(database_url, processes=1, config=never) as worker:

        async def has_lived_for_several_intervals() -> bool:
            return bool(await ledger.fetch(lived, "elsewhere"))

        await ledger.until(has_lived_for_several_intervals)
        assert not worker.events_of(events.PassFinished)


async def test_once_per_interval_first_runs_after_one_interval() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    await OncePerInterval(3600, work)()
    assert done == []
    every_time = OncePerInterval(0, work)
    await every_time()
    await every_time()
    assert len(done) == 2
