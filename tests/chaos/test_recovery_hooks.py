"""Recovery hooks of the app: their decisions, and that no hook blocks the reaper."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from horsies import Horsies, RecoveredWorkers, Recovery, RecoveryContext, RecoveryReason, TaskStatus
from horsies.engine import events
from tests.support.ledger import Ledger, OrphanedTask
from tests.support.workers import worker_in_process

LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def held_until(ledger: Ledger, task_id: str) -> datetime | None:
    sql = "SELECT recovery_hold_until AS at FROM horsies_tasks WHERE id = $1::text::uuid"
    return (await ledger.fetch(sql, task_id))[0]["at"]


async def test_reschedule_sets_time_and_retry_count(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask(retries=3).insert(ledger)

    def register(app: Horsies) -> None:
        app.on_recovery(lambda _: Recovery.reschedule(LATER, attempts=2))

    async with worker_in_process(database_url, processes=1, register=register):

        async def is_rescheduled() -> bool:
            return (await ledger.row(task_id))["status"] == "PENDING"

        await ledger.until(is_rescheduled)
        row = await ledger.row(task_id)
        assert (row["enqueued_at"], row["retry_count"], row["crash_count"]) == (LATER, 2, 1)
        assert row["failed_reason"] == "recovered after worker interruption: OWNER_LOST"


async def test_fail_with_backoff_retries_an_unlisted_code(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask(retries=1, state=None).insert(ledger)
    codes = """
    UPDATE horsies_tasks SET task_options = jsonb_set(task_options, '{retry_policy,auto_retry_for}', '["OTHER"]')
     WHERE id = $1::text::uuid
    """
    await ledger.fetch(codes, task_id)
    async with worker_in_process(
        database_url, processes=1, register=lambda app: app.on_recovery(lambda _: Recovery.fail_with_backoff())
    ):
        row = (await ledger.until_terminal(task_id))[task_id]
    assert (row["status"], row["retry_count"], row["crash_count"], row["attempts"]) == ("COMPLETED", 1, 1, 2)


async def test_skip_holds_the_task_for_one_threshold(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask().insert(ledger)
    interrupted: list[str] = []
    called_at: list[float] = []

    def register(app: Horsies) -> None:
        @app.on_recovery
        def skip_once(_: RecoveryContext) -> Recovery | None:  # pyright: ignore[reportUnusedFunction]
            called_at.append(time.monotonic())
            return Recovery.skip() if len(called_at) == 1 else None

        @app.on_interrupted
        def record(context: RecoveryContext) -> None:  # pyright: ignore[reportUnusedFunction]
            interrupted.append(context.task.task_id)

    async with worker_in_process(database_url, processes=1, register=register) as worker:

        async def is_held() -> bool:
            return await held_until(ledger, task_id) is not None

        await ledger.until(is_held)
        row = await ledger.row(task_id)
        assert (row["status"], row["attempts"], interrupted) == ("RUNNING", 0, [])
        await ledger.until_terminal(task_id)
        await worker.until(lambda: interrupted)
    assert len(called_at) == 2
    assert called_at[1] - called_at[0] > 0.9, "the hold lasts one threshold"
    assert interrupted == [task_id]


async def test_hook_gets_the_task_and_the_reason(ledger: Ledger, database_url: str) -> None:
    task_id = await OrphanedTask(state="stopped", task="wait_for").insert(ledger)
    seen: list[RecoveryContext] = []
    async with worker_in_process(
        database_url, processes=1, register=lambda app: app.on_recovery(seen.append)
    ) as worker:
        await ledger.until_terminal(task_id)
        (context,) = seen
        assert (context.task.task_id, context.task.status) == (task_id, TaskStatus.RUNNING)
        assert (context.reason, context.dry_run) == (RecoveryReason.OWNER_STOPPED, False)
        assert (context.recovering_worker_id, context.previous_worker_id) == (worker.worker_id, context.task.worker_id)


async def test_workers_recovered_hook_is_called_once_per_sweep(ledger: Ledger, database_url: str) -> None:
    sent = [await OrphanedTask(state="stopped", task="wait_for").insert(ledger) for _ in range(5)]
    interrupted: list[str] = []
    sweeps: list[RecoveredWorkers] = []

    def register(app: Horsies) -> None:
        app.on_interrupted(lambda context: interrupted.append(context.task.task_id))
        app.on_workers_recovered(sweeps.append)

    async with worker_in_process(database_url, processes=1, register=register) as worker:
        await worker.until(lambda: sweeps)
        assert sorted(interrupted) == sorted(sent)
        (sweep,) = sweeps
        assert (sweep.recovered_count, sweep.recovering_worker_id) == (5, worker.worker_id)
        assert len(set(sweep.worker_ids)) == 5
        assert {row["status"] for row in (await ledger.rows(*sent)).values()} == {"FAILED"}


async def test_failing_hooks_do_not_stop_a_sweep(ledger: Ledger, database_url: str, release: threading.Event) -> None:
    sent = [await OrphanedTask(state="stopped", task="wait_for").insert(ledger) for _ in range(3)]

    def register(app: Horsies) -> None:
        @app.on_recovery
        def sleep(_: RecoveryContext) -> None:  # pyright: ignore[reportUnusedFunction]
            release.wait(60)

        @app.on_recovery
        async def fail(_: RecoveryContext) -> None:  # pyright: ignore[reportUnusedFunction]
            raise LookupError

        app.on_recovery(lambda _: "skip")  # pyright: ignore[reportArgumentType]

    async with worker_in_process(database_url, processes=1, register=register) as worker:
        other = await worker.send("work")
        rows = await ledger.until_terminal(*sent, other, within_s=20)
        assert {rows[task_id]["error_code"] for task_id in sent} == {"WORKER_CRASHED"}
        assert len({failed.hook for failed in worker.events_of(events.HookFailed)}) == 3
        assert not worker.events_of(events.WorkerFenced), "heartbeats must continue meanwhile"


async def test_task_changed_during_a_hook_stays_unchanged(
    ledger: Ledger, database_url: str, release: threading.Event
) -> None:
    task_id = await OrphanedTask(task="wait_for").insert(ledger)
    is_called = asyncio.Event()
    loop = asyncio.get_running_loop()

    def register(app: Horsies) -> None:
        @app.on_recovery
        def wait_and_reschedule(_: RecoveryContext) -> Recovery:  # pyright: ignore[reportUnusedFunction]
            loop.call_soon_threadsafe(is_called.set)
            release.wait(4)
            return Recovery.reschedule(LATER)

    async with worker_in_process(database_url, processes=1, register=register) as worker:
        await asyncio.wait_for(is_called.wait(), 10)
        cancel = """
        UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now() WHERE id = $1::text::uuid
        """
        await ledger.fetch(cancel, task_id)
        seen = len(worker.events_of(events.PassFinished))
        release.set()
        await worker.until(lambda: len(worker.events_of(events.PassFinished)) > seen)
        assert (await ledger.row(task_id))["status"] == "CANCELLED"
