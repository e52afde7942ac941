"""F3, F4, F5, F8: a child that crashes or hangs affects only the tasks running inside it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, cast

import pytest
from hypothesis import settings

from horsies import TaskError
from horsies.engine import events
from horsies.errors import HorsiesError
from tests.support.ledger import Ledger, insert_pending_tasks
from tests.support.recovery_times import record_times
from tests.support.workers import InProcessWorker, disturb_fork_server, with_fork_server_faults, worker_in_process

CRASHES: dict[str, tuple[str, dict[str, Any]]] = {
    "segfault": ("WORKER_CRASHED", {"cause": "CHILD_SIGNAL", "signal": "SIGSEGV"}),
    "kill_self": ("WORKER_CRASHED", {"cause": "CHILD_SIGNAL", "signal": "SIGKILL"}),
    "exit_process": ("WORKER_CRASHED", {"cause": "CHILD_EXIT", "exit_status": 7}),
    "eat_memory": ("WORKER_CRASHED", {"cause": "CHILD_MEMORY"}),
    "shut_down_channel": ("WORKER_CRASHED", {"cause": "CHILD_PROTOCOL"}),
    "exit_by_exception": ("UNHANDLED_EXCEPTION", {}),
    "unencodable": ("WORKER_SERIALIZATION_ERROR", {}),
}
ARGUMENTS = {"exit_process": (7,), "exit_by_exception": (7,)}
PROCESSES = 8 if settings().max_examples >= 1000 else 3
"""Eight in `make chaos`."""


@with_fork_server_faults
async def test_killed_child_loses_only_its_own_task(
    database_url: str, tmp_path: Path, fork_server_fault: signal.Signals | None
) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=PROCESSES) as worker:
        ids = [await worker.send("wait_for", str(gate)) for _ in range(PROCESSES)]
        await ledger.until_started(*ids)
        start = (await ledger.starts())[0]
        others = {child.pid for child in worker.children} - {start.pid}
        disturb_fork_server(os.getpid(), fork_server_fault)
        killed_at = await ledger.now()
        os.kill(start.pid, signal.SIGKILL)
        row = (await ledger.until_terminal(start.task_id, within_s=1))[start.task_id]
        record_times(
            "F3", "task of a killed child resolved", (row["terminal_at"] - killed_at).total_seconds(), bound_s=1
        )
        assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "WORKER_CRASHED", 1)
        await worker.until(lambda: len(worker.children) == PROCESSES)
        assert others < {child.pid for child in worker.children}
        gate.touch()
        rows = await ledger.until_terminal(*ids)
        assert sorted(row["status"] for row in rows.values()) == ["COMPLETED"] * (PROCESSES - 1) + ["FAILED"]
        assert await ledger.violations(ids) == []


async def test_killed_replacements_leave_the_worker_degraded(database_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=3) as worker:
        running = await worker.send("wait_for", str(gate))
        await ledger.until_started(running)
        (start,) = await ledger.starts()
        idle = next(child.pid for child in worker.children if child.pid != start.pid)
        await worker.kill_child_and_replacements(idle, replacements=3)
        await ledger.until(lambda: _is_degraded(ledger))
        other = await worker.send("work")
        assert (await ledger.until_terminal(other))[other]["status"] == "COMPLETED"
        await worker.until(lambda: len(worker.children) == 3, within_s=20)

        async def is_healthy() -> bool:
            return not await _is_degraded(ledger)

        await ledger.until(is_healthy)
        gate.touch()
        row = (await ledger.until_terminal(running))[running]
        assert (row["status"], row["attempts"], row["worker_pid"]) == ("COMPLETED", 1, start.pid)
        assert await ledger.violations([running, other]) == []


async def _is_degraded(ledger: Ledger) -> bool:
    sql = "SELECT health ->> 'children' AS children, health ->> 'warnings' AS warnings FROM horsies_workers"
    (row,) = await ledger.fetch(sql)
    return row["children"] == "degraded" and "1 of 3 children cannot be started: killed by SIGKILL" in row["warnings"]


async def test_worker_without_any_child_gives_up(database_url: str) -> None:
    async with worker_in_process(database_url, processes=1) as worker:
        await worker.kill_child_and_replacements(worker.children[0].pid, replacements=3)
        with pytest.raises(HorsiesError, match="3 children in a row failed to start: killed by SIGKILL"):
            async with asyncio.timeout(20):
                await worker.run


@asynccontextmanager
async def child_lost_before_the_task_begins(database_url: str, ledger: Ledger, task_id: str) -> AsyncGenerator[None]:
    """Run a worker whose child gets the task while it is stopped, and is killed then; the queue stays paused."""
    config = {"recovery": {"running_stale_threshold_ms": 20_000}}
    async with worker_in_process(database_url, config=config, processes=1) as worker:
        (child,) = worker.children
        os.kill(child.pid, signal.SIGSTOP)
        await ledger.fetch("DELETE FROM horsies_queues")

        async def is_assigned() -> bool:
            return not child.is_idle

        await ledger.until(is_assigned)
        await ledger.fetch("INSERT INTO horsies_queues (queue_name, paused_at) VALUES ('default', now())")
        os.kill(child.pid, signal.SIGKILL)

        async def has_left_the_child() -> bool:
            return (await ledger.row(task_id))["status"] != "RUNNING"

        await ledger.until(has_left_the_child)
        yield


async def test_task_that_never_began_returns_twice_without_a_retry(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger:
        await ledger.fetch("INSERT INTO horsies_queues (queue_name, paused_at) VALUES ('default', now())")
        (task_id,) = await insert_pending_tasks(ledger, "work")
        for _ in range(2):
            async with child_lost_before_the_task_begins(database_url, ledger, task_id):
                row = await ledger.row(task_id)
                assert (row["status"], row["attempts"], row["crash_count"]) == ("PENDING", 0, 0)
        async with child_lost_before_the_task_begins(database_url, ledger, task_id):
            row = await ledger.row(task_id)
            assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "WORKER_CRASHED", 1)
            assert await ledger.violations([task_id], unbegun=1) == []


@with_fork_server_faults
async def test_each_kind_of_crash_has_its_code_and_cause(
    database_url: str, fork_server_fault: signal.Signals | None
) -> None:
    async with Ledger.open(database_url) as ledger:
        async with worker_in_process(database_url, processes=2) as worker:
            disturb_fork_server(os.getpid(), fork_server_fault)
            ids = {name: await worker.send(name, *ARGUMENTS.get(name, ())) for name in CRASHES}
            await ledger.until_terminal(*ids.values(), within_s=30)
            errors = {name: (await worker.app.get_result_async(task_id)).err_value for name, task_id in ids.items()}
            after = await worker.send("work")
            await ledger.until_terminal(after)
            assert await ledger.violations([*ids.values(), after]) == []
            crashed = {event.task_id for event in worker.events_of(events.ChildDied)}
        for name, (code, evidence) in CRASHES.items():
            assert (name, errors[name].error_code) == (name, code)
            assert evidence.items() <= _evidence_in(errors[name]).items()
        assert crashed == {ids[name] for name, (code, _) in CRASHES.items() if code == "WORKER_CRASHED"}
        assert {event["task_id"] for event in await ledger.events("child_died")} == crashed
        await ledger.until_connections_are(0)


@pytest.mark.parametrize(("name", "arguments"), [("poison", ()), ("crash_on_decode", ({"text": "bitter"},))])
async def test_poison_task_fails_after_max_crashes(database_url: str, name: str, arguments: tuple[object, ...]) -> None:
    config = {"recovery": {"max_crashes": 3}}
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=config, processes=2) as worker,
    ):
        poison = await worker.send(name, *arguments)
        ids = [await worker.send("work", 0.01) for _ in range(20)]
        row = (await ledger.until_terminal(poison, within_s=20))[poison]
        await ledger.until_terminal(*ids)
        attempts = await ledger.attempts(poison)
        assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "POISON_TASK", 3)
        assert [(attempt["error_code"], attempt["will_retry"]) for attempt in attempts] == [
            ("WORKER_CRASHED", True),
            ("WORKER_CRASHED", True),
            ("WORKER_CRASHED", False),
        ]
        error = (await worker.app.get_result_async(poison)).err_value
        assert len(_evidence_in(error)["causes"]) == 3
        (event,) = worker.events_of(events.TaskPoisoned)
        assert (event.task_id, event.crash_count, len(event.causes)) == (poison, 3, 3)
        unrecorded = [poison] if name == "crash_on_decode" else []
        assert await ledger.violations([poison, *ids], unrecorded=unrecorded, max_crashes=3) == []
        await worker.stop()
        assert len(await ledger.events("task_poisoned")) == 1


async def test_poison_task_does_not_slow_down_others(database_url: str) -> None:
    config = {"recovery": {"max_crashes": 3}}
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=config, processes=3) as worker,
    ):
        alone = [await _latency_s(ledger, worker) for _ in range(10)]
        poison, beside = await worker.send("poison"), list[float]()

        async def is_poisoned() -> bool:
            beside.append(await _latency_s(ledger, worker))
            return (await ledger.row(poison))["error_code"] == "POISON_TASK"

        await ledger.until(is_poisoned, within_s=30)
        assert len(await ledger.starts(poison)) == 3
        assert median(beside) < 2 * median(alone)


async def _latency_s(ledger: Ledger, worker: InProcessWorker) -> float:
    """The time from the send of a short task to its stored result."""
    task_id = await worker.send("work", 0.05)
    await ledger.until_terminal(task_id)
    sql = "SELECT terminal_at - sent_at AS latency FROM horsies_tasks WHERE id = $1::text::uuid"
    return (await ledger.fetch(sql, task_id))[0]["latency"].total_seconds()


@with_fork_server_faults
async def test_stopped_child_is_killed_by_its_worker_or_timeout(
    database_url: str, fork_server_fault: signal.Signals | None
) -> None:
    config = {"recovery": {"running_stale_threshold_ms": 2_000}}
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=config, processes=2) as worker,
    ):
        disturb_fork_server(os.getpid(), fork_server_fault)
        silent = await worker.send("stop_self")
        limited = await worker.send("stop_self_briefly")
        rows = await ledger.until_terminal(silent, limited)
        assert rows[limited]["error_code"] == "TASK_TIMEOUT"
        assert rows[silent]["error_code"] == "WORKER_CRASHED"
        error = (await worker.app.get_result_async(silent)).err_value
        assert _evidence_in(error)["cause"] == "HEARTBEAT_LOST"
        assert await _longest_silence_s(ledger, silent) < 2, "recovery could have acted first"
        assert await ledger.violations([silent, limited]) == []


async def test_task_that_holds_the_gil_is_not_recovered(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url) as worker:
        task_id = await worker.send("hold_gil", 3.0)
        row = (await ledger.until_terminal(task_id, within_s=20))[task_id]
        assert row["status"] == "COMPLETED", row
        assert await _longest_silence_s(ledger, task_id) < 1, "recovery could have acted"
        assert [event.pid for event in worker.events_of(events.ChildSilent)] == [row["worker_pid"]]
        after = await worker.send("work", 1.5)
        assert (await ledger.until_terminal(after))[after]["status"] == "COMPLETED"
        assert await ledger.violations([task_id, after]) == []


def _evidence_in(error: TaskError) -> dict[str, Any]:
    return cast("dict[str, Any]", error.data or {})


async def _longest_silence_s(ledger: Ledger, task_id: str) -> float:
    """The longest time between two signs of life of a finished task: start, heartbeats and end."""
    sql = """
    SELECT max(at - before) FROM (
        SELECT at, lag(at) OVER (ORDER BY at) AS before FROM (
            SELECT sent_at AS at FROM horsies_heartbeats WHERE task_id = $1::text::uuid AND role = 'runner'
             UNION ALL SELECT started_at FROM horsies_tasks WHERE id = $1::text::uuid
             UNION ALL SELECT terminal_at FROM horsies_tasks WHERE id = $1::text::uuid) AS signs) AS gaps
    """
    ((silence,),) = [tuple(row.values()) for row in await ledger.fetch(sql, task_id)]
    return silence.total_seconds()
