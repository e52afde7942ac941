"""What retention deletes and what it keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
import pytest

from horsies.errors import BrokerError
from horsies.recovery.retention import Cleanup, RetentionCategory, RetentionWindows, clean_heartbeats, preview_cleanup
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database, Transaction
from tests.support.rows import (
    HOUR,
    count_rows,
    insert,
    insert_finished_run,
    insert_finished_task,
    insert_old_heartbeat,
    insert_old_worker,
    insert_task,
    table_ids,
    time_ago,
)
from tests.support.store import until_lock_waiters

A = TypeVar("A")

EVERYTHING = RetentionWindows(heartbeats=HOUR, worker_states=HOUR, terminal_records=HOUR, events=HOUR, audit=HOUR)
TASKS_ONLY = RetentionWindows(terminal_records=HOUR)


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"])
async def test_old_finished_task_is_deleted_with_its_attempts(
    database: Database, database_url: str, status: str
) -> None:
    await insert_finished_task(database_url, age=2 * HOUR, status=status, attempts=3)
    young = await insert_finished_task(database_url, age=HOUR / 2, status=status, attempts=1)
    summary = await Cleanup(database, TASKS_ONLY, budget_s=10).run()
    assert await table_ids(database_url, "horsies_tasks") == {young}
    assert await count_rows(database_url, "horsies_task_attempts") == 1
    assert summary.counts == {"tasks": 1}


async def test_unfinished_task_is_kept(database: Database, database_url: str) -> None:
    for status in ("PENDING", "CLAIMED", "RUNNING"):
        await insert_task(database_url, status=status, sent_at=time_ago(1000 * HOUR), enqueued_at=time_ago(1000 * HOUR))
    await Cleanup(database, EVERYTHING, budget_s=10).run()
    assert await count_rows(database_url, "horsies_tasks") == 3


async def test_categories_without_a_window_are_kept(database: Database, database_url: str) -> None:
    await insert_finished_task(database_url, age=10_000 * HOUR)
    await insert_finished_run(database_url, age=10_000 * HOUR)
    summary = await Cleanup(database, RetentionWindows(heartbeats=HOUR), budget_s=10).run()
    assert (summary.rows, await count_rows(database_url, "horsies_tasks")) == (0, 2)


async def test_newest_heartbeat_of_an_unfinished_task_is_kept(database: Database, database_url: str) -> None:
    running = await insert_task(database_url, status="RUNNING", claim_token=2)
    ended = await insert_finished_task(database_url, age=HOUR)
    for token, age in ((1, 9), (2, 8), (2, 7)):
        await insert_old_heartbeat(database_url, running, token=token, age=age * HOUR)
    await insert_old_heartbeat(database_url, ended, age=9 * HOUR)
    await insert_old_heartbeat(database_url, ended, age=HOUR / 2)
    assert await clean_heartbeats(database, EVERYTHING, budget_s=10) == 3
    left = await database.connection_spec.connect()
    kept = await left.fetch("SELECT task_id, sent_at > now() - '7.5 hours'::interval FROM horsies_heartbeats")
    await left.close()
    assert {tuple(row) for row in kept} == {(running, True), (ended, True)}


async def test_worker_row_is_kept_while_running_or_owning_tasks(database: Database, database_url: str) -> None:
    gone = [await insert_old_worker(database_url, state=state, age=2 * HOUR) for state in ("stopped", "lost")]
    owner = await insert_old_worker(database_url, state="lost", age=2 * HOUR)
    await insert_task(database_url, status="RUNNING", claimed_by_worker_id=owner)
    kept = {owner} | {
        await insert_old_worker(database_url, state=state, age=2 * HOUR) for state in ("running", "draining")
    }
    kept.add(await insert_old_worker(database_url, state="stopped", age=HOUR / 2))
    summary = await Cleanup(database, RetentionWindows(worker_states=HOUR), budget_s=10).run()
    assert await table_ids(database_url, "horsies_workers") == kept
    assert summary.counts == {"workers": len(gone)}


async def test_snapshots_events_and_audit_have_their_own_windows(database: Database, database_url: str) -> None:
    about: dict[str, Any] = {
        "hostname": "h",
        "pid": 1,
        "processes": 1,
        "max_claim_batch": 0,
        "max_claim_per_worker": 0,
        "queues": [],
    }
    load = {"tasks_running": 0, "tasks_claimed": 0, "worker_started_at": time_ago(HOUR)}
    for age in (3 * HOUR, HOUR / 2):
        owner = await insert_old_worker(database_url, state="running", age=age)
        snapshot = {"worker_id": owner, "snapshot_at": time_ago(age)}
        await insert(database_url, "horsies_worker_states", **snapshot, **about, **load)
        await insert(database_url, "horsies_events", kind="child_died", at=time_ago(age))
        await insert(database_url, "horsies_audit", actor="me", host="h", action="retry", via="cli", at=time_ago(age))
    summary = await Cleanup(
        database, RetentionWindows(worker_states=HOUR, events=HOUR, audit=5 * HOUR), budget_s=10
    ).run()
    assert summary.counts == {"worker_states": 1, "events": 1}
    assert await count_rows(database_url, "horsies_audit") == 2


async def test_run_tree_is_deleted_as_a_whole(database: Database, database_url: str) -> None:
    root = await insert_finished_run(database_url, age=2 * HOUR, tasks=("COMPLETED", "FAILED"))
    child = await insert_finished_run(database_url, age=2 * HOUR, parent=root, root=root)
    await insert_finished_run(database_url, age=2 * HOUR, parent=child, root=root, status="FAILED")
    outbox = {"task_id": root, "workflow_id": child, "task_index": 0}
    await insert(database_url, "horsies_workflow_outbox", **outbox)
    await insert(database_url, "horsies_workflow_outbox", **outbox | {"task_id": child, "workflow_id": root})
    summary = await Cleanup(database, TASKS_ONLY, budget_s=10).run()
    (trees,) = [cleanup for cleanup in summary.categories if cleanup.rows]
    assert trees.category is RetentionCategory.WORKFLOWS
    assert trees.tables == {
        "horsies_workflows": 3,
        "horsies_workflow_tasks": 4,
        "horsies_workflow_outbox": 2,
        "horsies_tasks": 4,
        "horsies_task_attempts": 4,
    }
    for table in trees.tables:
        assert await count_rows(database_url, table) == 0


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "PAUSED"])
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_one_unfinished_run_keeps_its_whole_tree(
    database: Database, database_url: str, status: str, depth: int
) -> None:
    states = [status if level == depth else "COMPLETED" for level in range(3)]
    root = await insert_finished_run(database_url, age=2 * HOUR, status=states[0])
    child = await insert_finished_run(database_url, age=2 * HOUR, status=states[1], parent=root)
    await insert_finished_run(database_url, age=2 * HOUR, status=states[2], parent=child, root=root)
    assert (await Cleanup(database, TASKS_ONLY, budget_s=10).run()).rows == 0
    assert await count_rows(database_url, "horsies_tasks") == 3


@pytest.mark.parametrize("status", ["PENDING", "CLAIMED", "RUNNING"])
async def test_one_unfinished_task_keeps_its_whole_tree(database: Database, database_url: str, status: str) -> None:
    root = await insert_finished_run(database_url, age=2 * HOUR, status="CANCELLED")
    await insert_finished_run(database_url, age=2 * HOUR, status="CANCELLED", parent=root, tasks=("COMPLETED", status))
    assert (await Cleanup(database, TASKS_ONLY, budget_s=10).run()).rows == 0
    assert await count_rows(database_url, "horsies_workflow_tasks") == 3


async def test_kept_trees_do_not_block_later_ones(database: Database, database_url: str) -> None:
    for _ in range(3):
        await insert_finished_run(database_url, age=3 * HOUR, status="FAILED", tasks=("RUNNING",))
    await insert_finished_run(database_url, age=2 * HOUR)
    summary = await Cleanup(database, RetentionWindows(terminal_records=HOUR, batch_size=2), budget_s=10).run()
    assert summary.counts == {"workflows": 1}


async def test_task_of_a_deleted_workflow_is_deleted(database: Database, database_url: str) -> None:
    lost = "0198c0de-0000-7000-8000-000000000000"
    await insert_finished_task(database_url, age=2 * HOUR, is_workflow_task=True, workflow_id=lost)
    assert (await Cleanup(database, TASKS_ONLY, budget_s=10).run()).counts == {"tasks": 1}


async def test_preview_counts_what_the_pass_deletes(database: Database, database_url: str) -> None:
    for age in (2, 3, 4):
        await insert_finished_task(database_url, age=age * HOUR, attempts=2)
        await insert_finished_run(database_url, age=age * HOUR, tasks=("FAILED", "COMPLETED"))
        await insert_old_heartbeat(database_url, await insert_task(database_url), age=age * HOUR)
        await insert_old_worker(database_url, state="lost", age=age * HOUR)
        await insert(database_url, "horsies_events", kind="child_died", at=time_ago(age * HOUR))
    preview = await preview_cleanup(database, EVERYTHING)
    assert await preview_cleanup(database, EVERYTHING) == preview
    summary = await Cleanup(database, EVERYTHING, budget_s=10).run()
    assert [(cleanup.category, cleanup.tables) for cleanup in summary.categories] == [
        (cleanup.category, cleanup.tables) for cleanup in preview.categories
    ]
    assert (summary.rows, (await preview_cleanup(database, EVERYTHING)).rows) == (15, 0)


async def test_preview_shows_the_oldest_row_and_the_size(database: Database, database_url: str) -> None:
    await insert_finished_task(database_url, age=5 * HOUR)
    await insert_finished_task(database_url, age=2 * HOUR)
    (tasks,) = [cleanup for cleanup in (await preview_cleanup(database, TASKS_ONLY)).categories if cleanup.rows]
    assert tasks.oldest_at is not None
    assert abs(tasks.oldest_at - time_ago(5 * HOUR)) < timedelta(minutes=1)
    assert tasks.bytes > 0


async def test_every_category_gets_one_batch_without_time_left(database: Database, database_url: str) -> None:
    for age in (2, 3, 4):
        await insert_finished_task(database_url, age=age * HOUR)
        await insert(database_url, "horsies_events", kind="child_died", at=time_ago(age * HOUR))
    summary = await Cleanup(
        database, RetentionWindows(terminal_records=HOUR, events=HOUR, batch_size=1), budget_s=0
    ).run()
    assert (summary.counts, summary.is_complete) == ({"tasks": 1, "events": 1}, False)


async def test_progress_is_reported_per_batch(database: Database, database_url: str) -> None:
    for _ in range(5):
        await insert_finished_task(database_url, age=2 * HOUR)
    batches: list[tuple[RetentionCategory, int]] = []
    windows = RetentionWindows(terminal_records=HOUR, batch_size=2)
    summary = await Cleanup(
        database, windows, budget_s=None, progress=lambda category, rows: batches.append((category, rows))
    ).run()
    assert batches == [(RetentionCategory.TASKS, 2), (RetentionCategory.TASKS, 2), (RetentionCategory.TASKS, 1)]
    assert summary.is_complete


async def test_stopped_pass_ends_after_the_current_batch(database: Database, database_url: str) -> None:
    for _ in range(5):
        await insert_finished_task(database_url, age=2 * HOUR)
    stop = asyncio.Event()
    windows = RetentionWindows(terminal_records=HOUR, batch_size=2)
    summary = await Cleanup(
        database, windows, budget_s=None, progress=lambda _category, _rows: stop.set(), stop=stop
    ).run()
    assert (summary.counts, summary.is_complete) == ({"tasks": 2}, False)


async def test_only_one_pass_runs_at_a_time(database: Database, database_url: str) -> None:
    await insert_finished_task(database_url, age=2 * HOUR)
    other = await asyncpg.connect(database_url)
    async with other.transaction():
        await other.fetch("SELECT pg_advisory_xact_lock(horsies_lock_key('retention'))")
        summary = await Cleanup(database, TASKS_ONLY, budget_s=10).run()
        assert (summary.rows, summary.is_busy, summary.is_complete) == (0, True, False)
    assert (await Cleanup(database, TASKS_ONLY, budget_s=10).run()).rows == 1
    await other.close()


@asynccontextmanager
async def _lock_held_by_another(url: str, purpose: str) -> AsyncGenerator[None]:
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.fetch("SELECT pg_advisory_xact_lock(horsies_lock_key($1))", purpose)
            yield
    finally:
        await other.close()


async def test_lock_held_by_another_skips_only_that_category(database: Database, database_url: str) -> None:
    await insert_old_heartbeat(database_url, await insert_task(database_url), age=2 * HOUR)
    await insert_finished_task(database_url, age=2 * HOUR)
    async with AsyncExitStack() as other:
        await other.enter_async_context(_lock_held_by_another(database_url, "retention"))
        found = LockMissDatabase(database.connection_spec, on_miss=other.aclose)
        async with found:
            summary = await Cleanup(found, RetentionWindows(heartbeats=HOUR, terminal_records=HOUR), budget_s=10).run()
    assert (summary.counts, summary.is_busy, summary.is_complete) == ({"tasks": 1}, True, False)


class LockMissDatabase(Database):
    """A database that calls `on_miss` when a batch was skipped because another process held the lock."""

    def __init__(self, spec: ConnectionSpec, *, on_miss: Callable[[], Awaitable[None]]) -> None:
        super().__init__(spec)
        self._on_miss = on_miss

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        result = await super().run(work)
        if result is None:
            await self._on_miss()
        return result


async def test_heartbeat_cleanup_and_full_pass_use_separate_locks(database: Database, database_url: str) -> None:
    for _ in range(2):
        await insert_old_heartbeat(database_url, await insert_task(database_url), age=2 * HOUR)
    async with _lock_held_by_another(database_url, "retention"):
        assert await clean_heartbeats(database, replace(EVERYTHING, batch_size=1), budget_s=0) == 1
    async with _lock_held_by_another(database_url, "retention of heartbeats"):
        summary = await Cleanup(database, EVERYTHING, budget_s=10).run()
        assert (summary.counts, summary.is_busy) == ({"heartbeats": 1}, False)


async def test_pass_waits_for_the_lock_if_allowed(database: Database, database_url: str) -> None:
    await insert_finished_task(database_url, age=2 * HOUR)
    async with _lock_held_by_another(database_url, "retention"):
        cleaning = asyncio.create_task(Cleanup(database, TASKS_ONLY, budget_s=None, lock_wait_s=60).run())
        done, _ = await asyncio.wait([cleaning], timeout=0.3)
        assert not done
    assert (await cleaning).rows == 1


async def test_event_is_recorded_only_if_rows_were_deleted(database: Database, database_url: str) -> None:
    await insert_finished_task(database_url, age=2 * HOUR)
    owner = await insert_old_worker(database_url, state="running", age=HOUR)
    await Cleanup(database, TASKS_ONLY, budget_s=10).run(worker_id=owner)
    await Cleanup(database, TASKS_ONLY, budget_s=10).run()
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("SELECT kind, worker_id, evidence::text FROM horsies_events")
    await connection.close()
    assert [tuple(row) for row in rows] == [("retention_finished", owner, '{"tasks": 1}')]


async def test_failed_category_does_not_stop_the_others(database: Database, database_url: str) -> None:
    await insert_finished_task(database_url, age=2 * HOUR)
    await insert(database_url, "horsies_events", kind="child_died", at=time_ago(2 * HOUR))
    connection = await asyncpg.connect(database_url)
    await connection.execute("ALTER TABLE horsies_task_attempts RENAME finished_at TO elsewhere")
    with pytest.raises(BrokerError):
        await Cleanup(database, EVERYTHING, budget_s=10).run()
    kinds = [row["kind"] for row in await connection.fetch("SELECT kind FROM horsies_events")]
    await connection.close()
    assert kinds == ["retention_finished"]


async def test_run_restarted_while_retention_waits_keeps_its_tree(database: Database, database_url: str) -> None:
    root = await insert_finished_run(database_url, age=2 * HOUR, status="FAILED", tasks=("COMPLETED", "FAILED"))
    operator = await asyncpg.connect(database_url)
    async with operator.transaction():
        await operator.execute("UPDATE horsies_workflows SET status = 'RUNNING' WHERE id = $1", root)
        cleaning = asyncio.create_task(Cleanup(database, TASKS_ONLY, budget_s=10).run())
        await until_lock_waiters(operator)
    assert (await cleaning).rows == 0
    assert await count_rows(database_url, "horsies_tasks") == 2
    await operator.close()


@pytest.mark.parametrize(("hours", "left"), [(1, 1), (2_000, 2), (None, 3)])
async def test_no_cleanup_deletes_audit_entries_too_early(
    database: Database, database_url: str, hours: int | None, left: int
) -> None:
    """Not those of the last 30 days, nor those that a live worker still keeps."""
    worker = await insert_old_worker(database_url, state="running", age=timedelta(0))
    connection = await asyncpg.connect(database_url)
    health = json.dumps({"audit_retention_hours": hours})
    await connection.execute("UPDATE horsies_workers SET health = $2::text::jsonb WHERE id = $1", worker, health)
    await connection.close()
    for age in (29 * 24 * HOUR, 1_000 * HOUR, 3_000 * HOUR):
        await insert(database_url, "horsies_audit", actor="me", host="h", action="retry", via="cli", at=time_ago(age))
    await Cleanup(database, RetentionWindows(audit=HOUR), budget_s=10).run()
    assert await count_rows(database_url, "horsies_audit") == left


async def test_newest_runs_of_each_schedule_are_kept(database: Database, database_url: str) -> None:
    for name, count in (("often", 60), ("rare", 3)):
        for n in range(count):
            run = {"schedule_name": name, "slot_at": time_ago((n + 2) * HOUR), "outcome": "fired"}
            await insert(database_url, "horsies_schedule_runs", **run)
    manual = {"schedule_name": "rare", "slot_at": time_ago(99 * HOUR), "outcome": "fired", "kind": "manual"}
    await insert(database_url, "horsies_schedule_runs", **manual)
    windows = RetentionWindows(schedule_runs=5 * HOUR)
    preview = await preview_cleanup(database, windows)
    summary = await Cleanup(database, windows, budget_s=10).run()
    assert preview.counts == summary.counts == {"schedule_runs": 10}
    assert await count_rows(database_url, "horsies_schedule_runs") == 50 + 3 + 1
