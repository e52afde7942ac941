"""F3, F4, F5, F8: children that die or stand still cost what ran inside them, and no more."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from statistics import median
from typing import Any, cast

import pytest

from horsies import TaskError
from horsies.model import events
from tests.support.ledger import Ledger
from tests.support.recovery_times import record_times
from tests.support.workers import InProcessWorker, worker_in_process

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


async def test_a_killed_child_costs_its_own_task_and_nothing_else(database_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=8) as worker:
        ids = [await worker.send("wait_for", str(gate)) for _ in range(8)]
        await ledger.until_started(*ids)
        victim = (await ledger.starts())[0]
        others = {child.pid for child in worker.children} - {victim.pid}
        killed_at = await ledger.now()
        os.kill(victim.pid, signal.SIGKILL)
        row = (await ledger.until_terminal(victim.task_id, within_s=1))[victim.task_id]
        record_times(
            "F3", "task of a killed child settled", (row["terminal_at"] - killed_at).total_seconds(), bound_s=1
        )
        assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "WORKER_CRASHED", 1)
        await worker.until(lambda: len(worker.children) == 8)
        assert others < {child.pid for child in worker.children}
        gate.touch()
        rows = await ledger.until_terminal(*ids)
        assert sorted(row["status"] for row in rows.values()) == ["COMPLETED"] * 7 + ["FAILED"]
        assert await ledger.violations(ids) == []


async def test_each_way_of_dying_has_a_code_and_a_cause_and_the_worker_lives(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger:
        async with worker_in_process(database_url) as worker:
            ids = {name: await worker.send(name, *ARGUMENTS.get(name, ())) for name in CRASHES}
            await ledger.until_terminal(*ids.values(), within_s=30)
            found = {name: (await worker.app.get_result_async(task_id)).err_value for name, task_id in ids.items()}
            after = await worker.send("work")
            await ledger.until_terminal(after)
            assert await ledger.violations([*ids.values(), after]) == []
            crashed = {event.task_id for event in worker.events_of(events.ChildDied)}
        for name, (code, evidence) in CRASHES.items():
            assert (name, found[name].error_code) == (name, code)
            assert evidence.items() <= _evidence_in(found[name]).items()
        assert crashed == {ids[name] for name, (code, _) in CRASHES.items() if code == "WORKER_CRASHED"}
        assert {each["task_id"] for each in await ledger.events("child_died")} == crashed
        await ledger.until_connections_are(0)


@pytest.mark.parametrize(("name", "arguments"), [("poison", ()), ("crash_on_decode", ({"text": "bitter"},))])
async def test_a_task_that_always_kills_its_child_is_given_up_after_so_many_crashes(
    database_url: str, name: str, arguments: tuple[object, ...]
) -> None:
    config = {"recovery": {"max_crashes": 3}}
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, config=config) as worker:
        poison = await worker.send(name, *arguments)
        ids = [await worker.send("work", 0.01) for _ in range(20)]
        row = (await ledger.until_terminal(poison, within_s=20))[poison]
        await ledger.until_terminal(*ids)
        attempts = await ledger.attempts(poison)
        assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "POISON_TASK", 3)
        assert [(each["error_code"], each["will_retry"]) for each in attempts] == [
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


async def test_others_are_about_as_quick_beside_a_task_that_keeps_killing_its_child(database_url: str) -> None:
    config = {"recovery": {"max_crashes": 3}}
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=config, processes=3) as worker,
    ):
        alone = [await _latency_s(ledger, worker) for _ in range(10)]
        poison, beside = await worker.send("poison"), list[float]()

        async def is_given_up() -> bool:
            beside.append(await _latency_s(ledger, worker))
            return (await ledger.row(poison))["error_code"] == "POISON_TASK"

        await ledger.until(is_given_up, within_s=30)
        assert len(await ledger.starts(poison)) == 3
        assert median(beside) < 2 * median(alone)


async def _latency_s(ledger: Ledger, worker: InProcessWorker) -> float:
    """From the send of a short task to its stored result."""
    task_id = await worker.send("work", 0.05)
    await ledger.until_terminal(task_id)
    sql = "SELECT terminal_at - sent_at AS latency FROM horsies_tasks WHERE id = $1::text::uuid"
    return (await ledger.fetch(sql, task_id))[0]["latency"].total_seconds()


async def test_a_stopped_child_is_killed_by_its_own_parent_or_at_its_time_out(database_url: str) -> None:
    config = {"recovery": {"running_stale_threshold_ms": 2_000}}
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, config=config) as worker:
        silent = await worker.send("stop_self")
        limited = await worker.send("stop_self_briefly")
        rows = await ledger.until_terminal(silent, limited)
        assert rows[limited]["error_code"] == "TASK_TIMEOUT"
        assert rows[silent]["error_code"] == "WORKER_CRASHED"
        error = (await worker.app.get_result_async(silent)).err_value
        assert _evidence_in(error)["cause"] == "HEARTBEAT_LOST"
        assert await _longest_silence_s(ledger, silent) < 2, "a judge could have acted first"
        assert await ledger.violations([silent, limited]) == []


async def test_a_loop_in_c_that_holds_the_interpreter_is_never_condemned(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url) as worker:
        task_id = await worker.send("hold_gil", 3.0)
        row = (await ledger.until_terminal(task_id, within_s=20))[task_id]
        assert row["status"] == "COMPLETED", row
        assert await _longest_silence_s(ledger, task_id) < 1, "a judge could have acted"
        assert [event.pid for event in worker.events_of(events.ChildSilent)] == [row["worker_pid"]]
        after = await worker.send("work", 1.5)
        assert (await ledger.until_terminal(after))[after]["status"] == "COMPLETED"
        assert await ledger.violations([task_id, after]) == []


def _evidence_in(error: TaskError) -> dict[str, Any]:
    return cast("dict[str, Any]", error.data or {})


async def _longest_silence_s(ledger: Ledger, task_id: str) -> float:
    """The longest time between two signs of life of an ended task: its start, its beats and its end."""
    sql = """
    SELECT max(at - before) FROM (
        SELECT at, lag(at) OVER (ORDER BY at) AS before FROM (
            SELECT sent_at AS at FROM horsies_heartbeats WHERE task_id = $1::text::uuid AND role = 'runner'
             UNION ALL SELECT started_at FROM horsies_tasks WHERE id = $1::text::uuid
             UNION ALL SELECT terminal_at FROM horsies_tasks WHERE id = $1::text::uuid) AS signs) AS gaps
    """
    ((silence,),) = [tuple(row.values()) for row in await ledger.fetch(sql, task_id)]
    return silence.total_seconds()
