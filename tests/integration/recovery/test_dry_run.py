"""A dry run reports exactly what the sweep then does, over hundreds of random states, and writes nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from horsies.model.recovery.decision import RecoveryContext
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.retry import Recovery
from horsies.recovery.hook_registry import RecoveryHooks
from horsies.recovery.hooks import HookCaller
from horsies.recovery.report import SweepReport
from horsies.recovery.sweep import Sweep, WorkflowHealing
from horsies.store.database import Database
from tests.support.rows import (
    CRASH_RETRY,
    OPERATOR_OBSERVER,
    insert_heartbeat,
    insert_listening_worker,
    insert_node,
    insert_owned_task,
    insert_run,
    insert_task,
    seconds_ago,
)
from tests.support.store import Connection

TASK_COUNT = 500
LATER = seconds_ago(-1_200)
TABLES = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'horsies_%' ORDER BY tablename"
OTHER_LEADER_LOCKS = """
SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database
 WHERE locktype = 'advisory' AND datname = current_database() AND pid <> $1
"""
TEST_DURATION = timedelta(minutes=2)
"""More than the time between the two sweeps of a test, less than the distance of any two times in decisions."""
# On both sides of every threshold, and so far from each that the duration of the test changes no decision.
SILENCES = (1, 60, 200, 450, 750, 1_200, 5_000)
SLOW_RETRY = {"retry_policy": {"max_retries": 1, "intervals": [1_200], "auto_retry_for": ["WORKER_CRASHED"]}}


async def _insert_owners(url: str, rng: random.Random) -> list[UUID | None]:
    states = ["running", "draining", "stopped", "lost"]
    made = [
        await insert_listening_worker(
            url,
            state=rng.choice(states),
            silent_s=rng.choice(SILENCES),
            running_stale_threshold_ms=rng.choice([300_000, 600_000]),
        )
        for _ in range(12)
    ]
    return [*made, None, uuid4()]


def _columns(rng: random.Random) -> dict[str, Any]:
    """Columns that influence the decision."""
    return {
        "crash_count": rng.choice([0, 0, 0, 8, 9]),
        "retry_count": rng.choice([0, 0, 1]),
        "max_retries": 1,
        "task_options": rng.choice([{}, CRASH_RETRY, SLOW_RETRY, {"retry_policy": {"nonsense": 1}}]),
        "flags": rng.choice([{}, {}, {"infrastructure_resilient": True}, {"infrastructure_resilient": False}]),
        "good_until": rng.choice([None, None, seconds_ago(5), seconds_ago(-600), seconds_ago(-3_600)]),
        "recovery_hold_until": rng.choice([None, None, None, seconds_ago(5), seconds_ago(-600)]),
        "no_restart": rng.choice([None, None, None, "paused", "cancelled"]),
        "attempts": 3,
        "task_name": rng.choice(["plain", "skipped", "later", "backed off"]),
    }


async def _insert_random_task(url: str, rng: random.Random, owners: Sequence[UUID | None]) -> None:
    if rng.random() < 0.15:
        await insert_task(url, good_until=rng.choice([seconds_ago(5), seconds_ago(-3_600)]))
        return
    status, silence = rng.choice(["CLAIMED", "RUNNING"]), rng.choice(SILENCES)
    columns = _columns(rng) | ({"no_restart": None} if status == "CLAIMED" else {})
    task_id = await insert_owned_task(url, status, owner=rng.choice(owners), silent_s=silence, **columns)
    if rng.random() < 0.4:
        role = rng.choice(["claimer", "runner"])
        await insert_heartbeat(url, task_id, silent_s=rng.choice(SILENCES), role=role, token=rng.choice([0, 1]))


def _hook(context: RecoveryContext) -> Recovery | None:
    match context.task.task_name:
        case "skipped":
            return Recovery.skip()
        case "later":
            return Recovery.reschedule(LATER, attempts=0)
        case "backed off":
            return Recovery.fail_with_backoff()
        case _:
            return None


def _hooks() -> HookCaller:
    hooks = RecoveryHooks()
    hooks.recovery.add(_hook)
    return HookCaller(hooks)


async def _snapshot(connection: Connection) -> list[Any]:
    """Return everything that a write or a row lock would change."""
    tables = [row["tablename"] for row in await connection.fetch(TABLES)]
    assert {"horsies_tasks", "horsies_heartbeats", "horsies_workflow_outbox", "horsies_audit"} < set(tables)
    rows = [
        await connection.fetch(f"SELECT t.xmin, t.xmax, t.* FROM {table} AS t ORDER BY t::text") for table in tables
    ]
    return [[tuple(row) for row in table] for table in rows]


def _decisions(report: SweepReport) -> set[tuple[Any, ...]]:
    return {(task.task_id, task.decision, task.reason, task.code, task.hook, task.owner_state) for task in report.tasks}


def _times(report: SweepReport) -> dict[tuple[UUID, str], datetime]:
    times = ((task.task_id, name, getattr(task, name)) for task in report.tasks for name in ("run_at", "held_until"))
    return {(task_id, name): at for task_id, name, at in times if at is not None}


async def _insert_random_run(url: str, rng: random.Random, owners: Sequence[UUID | None]) -> None:
    """Insert a run that may be stuck, with a task that may be stale, orphaned or overdue."""
    run = await insert_run(url)
    links = {"is_workflow_task": True, "workflow_id": run, "workflow_task_index": 0}
    silence, late = rng.choice(SILENCES), rng.choice([None, seconds_ago(5)])
    tasks = {
        "stale": partial(insert_owned_task, url, "RUNNING", owner=rng.choice(owners), silent_s=silence, **links),
        "waiting": partial(insert_task, url, good_until=late, **links),
        "ended": partial(insert_task, url, status="FAILED", terminal_at=seconds_ago(60), **links),
    }
    task_id = await tasks[rng.choice(list(tasks))]()
    status = rng.choice(["ENQUEUED", "RUNNING", "SKIPPED"])
    await insert_node(url, run, 0, task_id=task_id, status=status)
    if rng.random() < 0.5:
        await insert_node(url, run, 1, status=rng.choice(["READY", "PENDING"]))


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_dry_run_reports_exactly_what_the_sweep_does(database: Database, database_url: str, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # reproducible, not for security
    await insert_listening_worker(database_url)
    owners = await _insert_owners(database_url, rng)
    for _ in range(TASK_COUNT // 3 + 1):
        await _insert_random_task(database_url, rng, owners)
    for _ in range(30):
        await _insert_random_run(database_url, rng, owners)
    connection = await asyncpg.connect(database_url)
    before = await _snapshot(connection)
    read_only = Database(replace(database.connection_spec, read_only=True))
    healing = WorkflowHealing.for_operator(read_only)
    preview = await Sweep(
        read_only, SweepOptions(dry_run=True), observer=OPERATOR_OBSERVER, hooks=_hooks(), healing=healing
    ).run()
    assert await _snapshot(connection) == before
    done = await Sweep(
        database,
        SweepOptions(),
        observer=OPERATOR_OBSERVER,
        hooks=_hooks(),
        healing=WorkflowHealing.for_operator(database),
    ).run()
    await read_only.close()
    await connection.close()
    assert len({task.decision for task in preview.tasks}) >= 5
    assert _decisions(preview) == _decisions(done)
    previewed, applied = _times(preview), _times(done)
    assert previewed.keys() == applied.keys()
    assert all(abs(previewed[key] - applied[key]) < TEST_DURATION for key in previewed)
    assert len({workflow.case for workflow in preview.workflows}) >= 3
    assert set(preview.workflows) == set(done.workflows)
    assert preview.worker_ids == done.worker_ids
    assert all(task.applied for task in done.tasks if task.changes_state)


def _count_locks_in_hook(url: str, lock_counts: list[int], *, except_pid: int = 0) -> HookCaller:
    """Build a hook that counts the leader locks of other connections during a sweep."""

    async def count_locks(_: RecoveryContext) -> None:
        connection = await asyncpg.connect(url)
        lock_counts.append(await connection.fetchval(OTHER_LEADER_LOCKS, except_pid))
        await connection.close()

    hooks = RecoveryHooks()
    hooks.recovery.add(count_locks)
    return HookCaller(hooks)


async def test_dry_run_takes_and_waits_for_no_lock(database: Database, database_url: str) -> None:
    task_id = await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    holder = await asyncpg.connect(database_url)
    lock_counts: list[int] = []
    hooks = _count_locks_in_hook(database_url, lock_counts, except_pid=holder.get_server_pid())
    async with holder.transaction():
        await holder.execute("SELECT FROM horsies_tasks FOR UPDATE")
        await holder.execute("SELECT pg_advisory_xact_lock(horsies_lock_key('sweep'))")
        dry_run = Sweep(database, SweepOptions(dry_run=True), observer=OPERATOR_OBSERVER, hooks=hooks).run()
        preview = await asyncio.wait_for(dry_run, 10)
    await holder.close()
    assert ([task.task_id for task in preview.tasks], lock_counts) == ([task_id], [0])


async def test_sweep_holds_the_leader_lock_while_hooks_run(database: Database, database_url: str) -> None:
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    lock_counts: list[int] = []
    await Sweep(
        database, SweepOptions(), observer=OPERATOR_OBSERVER, hooks=_count_locks_in_hook(database_url, lock_counts)
    ).run()
    assert lock_counts == [1]
