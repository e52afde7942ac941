"""Tasks on their way through the hands of children: stopped, called back, handed on, and never run twice."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from horsies import Ok
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, worker_in_process

CANCEL = """
UPDATE horsies_tasks
   SET status = 'CANCELLED', error_code = 'TASK_CANCELLED', kill_requested = true, terminal_at = now()
 WHERE id = $1::text::uuid
"""


async def test_a_slot_works_again_when_a_slow_coroutine_has_gone_after_all(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        (before,) = worker.children
        slow = await worker.send("ignore_cancel_briefly", 4.0)
        assert (await ledger.until_terminal(slow))[slow]["error_code"] == "TASK_TIMEOUT"
        after = await worker.send("work")
        assert (await ledger.until_terminal(after))[after]["worker_pid"] == before.pid
        assert await ledger.violations([slow, after]) == []


async def test_a_coroutine_that_was_killed_before_it_began_never_begins(database_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url) as worker:
        held_up = await _behind_a_held_loop(worker, ledger, "nap", gate)
        await _kill(ledger, held_up)
        await worker.until(lambda: not worker.has_in_flight(held_up))
        gate.touch()
        await worker.until(lambda: all(child.is_idle for child in worker.children))
        assert await ledger.starts(held_up) == []
        assert (await ledger.row(held_up))["status"] == "CANCELLED"


async def test_a_coroutine_held_up_beyond_its_time_starts_anew_elsewhere(database_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url) as worker:
        held_up = await _behind_a_held_loop(worker, ledger, "nap_briefly", gate)
        row = (await ledger.until_terminal(held_up))[held_up]
        (start,) = await ledger.starts(held_up)
        (attempt,) = await ledger.attempts(held_up)
        assert (row["status"], row["error_code"]) == ("COMPLETED", None)
        assert start.pid == attempt["worker_pid"] == row["worker_pid"]
        gate.touch()
        assert await ledger.violations([held_up]) == []


async def test_a_task_killed_in_its_chunk_costs_the_one_that_runs_nothing(database_url: str, tmp_path: Path) -> None:
    opened, shut = tmp_path / "open", tmp_path / "shut"
    opened.touch()
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        await ledger.until_terminal(*await _send(worker, "wait_for", [{"file": str(opened)}] * 60))
        slow, *short = await _send(worker, "wait_for", [{"file": str(shut)}, *[{"file": str(opened)}] * 4])
        await ledger.until_started(slow)
        await _kill(ledger, short[1])
        await worker.until(lambda: not worker.has_in_flight(short[1]))
        shut.touch()
        rows = await ledger.until_terminal(slow, *short)
        assert [rows[each]["status"] for each in (slow, *short)].count("COMPLETED") == 4
        assert rows[short[1]]["status"] == "CANCELLED"
        assert await ledger.starts(short[1]) == []


async def test_functions_behind_a_long_coroutine_wait_in_the_queue(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        long = await worker.send("nap", 3.0)
        await ledger.until_started(long)
        functions = [await worker.send("work") for _ in range(12)]
        coroutines = [await worker.send("nap", 0.0) for _ in range(4)]
        rows = await ledger.until_terminal(long, *functions, *coroutines)
        assert max(row["claim_token"] for row in rows.values()) == 2, "a row came and went"
        assert {row["attempts"] for row in rows.values()} == {1}
        ended = rows[long]["completed_at"]
        assert all(rows[each]["started_at"] - ended < timedelta(seconds=1) for each in functions)
        assert await ledger.violations([long, *functions, *coroutines]) == []


async def test_a_function_among_coroutines_gets_the_child_that_is_free(database_url: str, tmp_path: Path) -> None:
    gate, other = tmp_path / "gate", tmp_path / "other"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url) as worker:
        naps = [await worker.send("nap", 3.0)]
        busy = await worker.send("wait_for", str(gate))
        await ledger.until_started(*naps, busy)
        naps += [await worker.send("nap", 3.0) for _ in range(3)]
        await ledger.until_started(*naps)
        await _pause(ledger, "paused")
        naps.append(await worker.send("nap", 3.0))
        function = await worker.send("wait_for", str(other))
        gate.touch()
        await ledger.until_terminal(busy)
        await _pause(ledger, None)
        await ledger.until_started(function, naps[-1])
        other.touch()
        rows = await ledger.until_terminal(function, *naps)
        assert {row["claim_token"] for row in rows.values()} == {1}
        assert len({start.pid for start in await ledger.starts(*naps)}) == 1
        assert await ledger.violations([function, busy, *naps]) == []


async def _behind_a_held_loop(worker: InProcessWorker, ledger: Ledger, name: str, gate: Path) -> str:
    """A coroutine in the hands of a child whose loop stands still until the gate is there; the other child is idle."""
    other_gate = gate.with_name("other")
    holding = await worker.send("hold_loop", str(gate))
    other = await worker.send("wait_for", str(other_gate))
    await ledger.until_started(holding, other)
    held_up = await worker.send(name, 0.0)
    await worker.until(lambda: worker.has_in_flight(held_up))
    other_gate.touch()
    await ledger.until_terminal(other)
    return held_up


async def _kill(ledger: Ledger, task_id: str) -> None:
    await ledger.fetch(CANCEL, task_id)
    await ledger.fetch("SELECT pg_notify('horsies_worker_ping', $1)", json.dumps({"kind": "kill"}))


async def _pause(ledger: Ledger, by: str | None) -> None:
    """Keep the queue as it is, or have it go on."""
    sql = """
    INSERT INTO horsies_queues (queue_name, paused_at, paused_by) VALUES ('default', now(), $1)
    ON CONFLICT (queue_name) DO UPDATE SET paused_at = CASE WHEN $1 IS NOT NULL THEN now() END
    """
    await ledger.fetch(sql, by)
    await ledger.fetch("SELECT pg_notify('horsies_task_new', 'default')")


async def _send(worker: InProcessWorker, name: str, items: list[dict[str, Any]]) -> list[str]:
    """In one statement, so that they are claimed together."""
    sent = await worker.app.tasks[name].send_many_async(items)
    assert isinstance(sent, Ok), sent
    return [handle.task_id for handle in sent.value]
