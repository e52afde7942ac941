"""A dry run is the truth: over hundreds of random states it names what the sweep then does, and leaves no trace."""

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

from horsies.model.recovery.decision import Recovery, RecoveryContext
from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.hooks import HookCaller, RecoveryHooks
from horsies.recovery.report import SweepReport
from horsies.recovery.sweep import WorkflowHealing, sweep
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

STATES = 500
LATER = seconds_ago(-1_200)
TABLES = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'horsies_%' ORDER BY tablename"
TURNS = """
SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database
 WHERE locktype = 'advisory' AND datname = current_database() AND pid <> $1
"""
FOR_THE_TEST = timedelta(minutes=2)
"""More than a test takes between its two sweeps, less than any two instants that a verdict may name."""
# On both sides of every threshold there is, and far enough from each that the time a test takes changes no verdict.
SILENCES = (1, 60, 200, 450, 750, 1_200, 5_000)
SLOW_RETRY = {"retry_policy": {"max_retries": 1, "intervals": [1_200], "auto_retry_for": ["WORKER_CRASHED"]}}


async def _owners(url: str, chance: random.Random) -> list[UUID | None]:
    states = ["running", "draining", "stopped", "lost"]
    made = [
        await insert_listening_worker(
            url,
            state=chance.choice(states),
            silent_s=chance.choice(SILENCES),
            running_stale_threshold_ms=chance.choice([300_000, 600_000]),
        )
        for _ in range(12)
    ]
    return [*made, None, uuid4()]


def _columns(chance: random.Random) -> dict[str, Any]:
    """What a row may hold that has a say in the verdict."""
    return {
        "crash_count": chance.choice([0, 0, 0, 8, 9]),
        "retry_count": chance.choice([0, 0, 1]),
        "max_retries": 1,
        "task_options": chance.choice([{}, CRASH_RETRY, SLOW_RETRY, {"retry_policy": {"nonsense": 1}}]),
        "flags": chance.choice([{}, {}, {"infrastructure_resilient": True}, {"infrastructure_resilient": False}]),
        "good_until": chance.choice([None, None, seconds_ago(5), seconds_ago(-600), seconds_ago(-3_600)]),
        "recovery_hold_until": chance.choice([None, None, None, seconds_ago(5), seconds_ago(-600)]),
        "no_restart": chance.choice([None, None, None, "paused", "cancelled"]),
        "attempts": 3,
        "task_name": chance.choice(["plain", "skipped", "later", "backed off"]),
    }


async def _a_state(url: str, chance: random.Random, owners: Sequence[UUID | None]) -> None:
    if chance.random() < 0.15:
        await insert_task(url, good_until=chance.choice([seconds_ago(5), seconds_ago(-3_600)]))
        return
    status, silence = chance.choice(["CLAIMED", "RUNNING"]), chance.choice(SILENCES)
    columns = _columns(chance) | ({"no_restart": None} if status == "CLAIMED" else {})
    task_id = await insert_owned_task(url, status, owner=chance.choice(owners), silent_s=silence, **columns)
    if chance.random() < 0.4:
        role = chance.choice(["claimer", "runner"])
        await insert_heartbeat(url, task_id, silent_s=chance.choice(SILENCES), role=role, token=chance.choice([0, 1]))


def _answer(context: RecoveryContext) -> Recovery | None:
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
    hooks.recovery.add(_answer)
    return HookCaller(hooks)


async def _trace(connection: Connection) -> list[Any]:
    """Everything that a write or a row lock would leave behind."""
    tables = [row["tablename"] for row in await connection.fetch(TABLES)]
    assert {"horsies_tasks", "horsies_heartbeats", "horsies_workflow_outbox", "horsies_audit"} < set(tables)
    rows = [
        await connection.fetch(f"SELECT t.xmin, t.xmax, t.* FROM {table} AS t ORDER BY t::text") for table in tables
    ]
    return [[tuple(row) for row in table] for table in rows]


def _verdicts(report: SweepReport) -> set[tuple[Any, ...]]:
    return {(task.task_id, task.decision, task.reason, task.code, task.hook, task.owner_state) for task in report.tasks}


def _instants(report: SweepReport) -> dict[tuple[UUID, str], datetime]:
    told = ((task.task_id, name, getattr(task, name)) for task in report.tasks for name in ("run_at", "held_until"))
    return {(task_id, name): at for task_id, name, at in told if at is not None}


async def _a_run(url: str, chance: random.Random, owners: Sequence[UUID | None]) -> None:
    """A run that may be stuck, with a task of its own that may be stale, or waited for by no node, or past its time."""
    run = await insert_run(url)
    links = {"is_workflow_task": True, "workflow_id": run, "workflow_task_index": 0}
    silence, late = chance.choice(SILENCES), chance.choice([None, seconds_ago(5)])
    tasks = {
        "stale": partial(insert_owned_task, url, "RUNNING", owner=chance.choice(owners), silent_s=silence, **links),
        "waiting": partial(insert_task, url, good_until=late, **links),
        "ended": partial(insert_task, url, status="FAILED", terminal_at=seconds_ago(60), **links),
    }
    task_id = await tasks[chance.choice(list(tasks))]()
    status = chance.choice(["ENQUEUED", "RUNNING", "SKIPPED"])
    await insert_node(url, run, 0, task_id=task_id, status=status)
    if chance.random() < 0.5:
        await insert_node(url, run, 1, status=chance.choice(["READY", "PENDING"]))


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_dry_run_names_exactly_what_the_sweep_then_does(
    database: Database, database_url: str, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  # to be repeated, not to be secret
    await insert_listening_worker(database_url)
    owners = await _owners(database_url, chance)
    for _ in range(STATES // 3 + 1):
        await _a_state(database_url, chance, owners)
    for _ in range(30):
        await _a_run(database_url, chance, owners)
    connection = await asyncpg.connect(database_url)
    before = await _trace(connection)
    read_only = Database(replace(database.connection_spec, read_only=True))
    healing = WorkflowHealing.for_operator(read_only)
    looked = await sweep(
        read_only, SweepOptions(dry_run=True), observer=OPERATOR_OBSERVER, hooks=_hooks(), healing=healing
    )
    assert await _trace(connection) == before
    done = await sweep(
        database,
        SweepOptions(),
        observer=OPERATOR_OBSERVER,
        hooks=_hooks(),
        healing=WorkflowHealing.for_operator(database),
    )
    await read_only.close()
    await connection.close()
    assert len({task.decision for task in looked.tasks}) >= 5
    assert _verdicts(looked) == _verdicts(done)
    foreseen, written = _instants(looked), _instants(done)
    assert foreseen.keys() == written.keys()
    assert all(abs(foreseen[which] - written[which]) < FOR_THE_TEST for which in foreseen)
    assert len({workflow.case for workflow in looked.workflows}) >= 3
    assert set(looked.workflows) == set(done.workflows)
    assert looked.worker_ids == done.worker_ids
    assert all(task.applied for task in done.tasks if task.changes_state)


def _looking_at_turns(url: str, turns: list[int], *, but_of: int = 0) -> HookCaller:
    """A hook that counts the turns of others than this connection while a sweep is under way."""

    async def look(_: RecoveryContext) -> None:
        looker = await asyncpg.connect(url)
        turns.append(await looker.fetchval(TURNS, but_of))
        await looker.close()

    hooks = RecoveryHooks()
    hooks.recovery.add(look)
    return HookCaller(hooks)


async def test_a_dry_run_waits_for_nobody_and_keeps_nobody_waiting(database: Database, database_url: str) -> None:
    task_id = await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    holder = await asyncpg.connect(database_url)
    turns: list[int] = []
    hooks = _looking_at_turns(database_url, turns, but_of=holder.get_server_pid())
    async with holder.transaction():
        await holder.execute("SELECT FROM horsies_tasks FOR UPDATE")
        await holder.execute("SELECT pg_advisory_xact_lock(horsies_lock_key('sweep'))")
        dry_run = sweep(database, SweepOptions(dry_run=True), observer=OPERATOR_OBSERVER, hooks=hooks)
        looked = await asyncio.wait_for(dry_run, 10)
    await holder.close()
    assert ([task.task_id for task in looked.tasks], turns) == ([task_id], [0])


async def test_a_sweep_holds_a_turn_while_hooks_are_asked(database: Database, database_url: str) -> None:
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    turns: list[int] = []
    await sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER, hooks=_looking_at_turns(database_url, turns))
    assert turns == [1]
