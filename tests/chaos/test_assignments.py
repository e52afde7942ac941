"""Assigned tasks that are stopped, recalled or reassigned never run twice."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from horsies import Ok
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, worker_in_process

CANCEL = """
UPDATE horsies_tasks
   SET status = 'CANCELLED', error_code = 'TASK_CANCELLED', kill_requested = true, terminal_at = now()
 WHERE id = $1::text::uuid
"""


async def test_slot_is_usable_after_a_late_cancellation(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        (before,) = worker.children
        slow = await worker.send("ignore_cancel_briefly", 4.0)
        assert (await ledger.until_terminal(slow))[slow]["error_code"] == "TASK_TIMEOUT"
        after = await worker.send("work")
        assert (await ledger.until_terminal(after))[after]["worker_pid"] == before.pid
        assert await ledger.violations([slow, after]) == []


async def test_coroutine_killed_before_its_start_never_begins(database_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=3) as worker:
        blocked = await _send_behind_blocked_loop(worker, ledger, "nap", gate)
        await _kill(ledger, blocked)
        await worker.until(lambda: not worker.has_in_flight(blocked))
        gate.touch()
        await worker.until(lambda: all(child.is_idle for child in worker.children))
        assert await ledger.starts(blocked) == []
        assert (await ledger.row(blocked))["status"] == "CANCELLED"


async def test_coroutine_blocked_past_its_timeout_starts_elsewhere(database_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=3) as worker:
        blocked = await _send_behind_blocked_loop(worker, ledger, "nap_briefly", gate)
        row = (await ledger.until_terminal(blocked))[blocked]
        (start,) = await ledger.starts(blocked)
        (attempt,) = await ledger.attempts(blocked)
        assert (row["status"], row["error_code"]) == ("COMPLETED", None)
        assert start.pid == attempt["worker_pid"] == row["worker_pid"]
        gate.touch()
        assert await ledger.violations([blocked]) == []


async def test_killing_a_queued_task_does_not_stop_the_running_one(database_url: str, tmp_path: Path) -> None:
    open_gate, closed_gate = tmp_path / "open", tmp_path / "shut"
    open_gate.touch()
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        await ledger.until_terminal(*await _send(worker, "wait_for", [{"file": str(open_gate)}] * 60))
        slow, *short = await _send(worker, "wait_for", [{"file": str(closed_gate)}, *[{"file": str(open_gate)}] * 4])
        await ledger.until_started(slow)
        await _kill(ledger, short[1])
        await worker.until(lambda: not worker.has_in_flight(short[1]))
        closed_gate.touch()
        rows = await ledger.until_terminal(slow, *short)
        assert [rows[task_id]["status"] for task_id in (slow, *short)].count("COMPLETED") == 4
        assert rows[short[1]]["status"] == "CANCELLED"
        assert await ledger.starts(short[1]) == []


async def test_functions_do_not_queue_behind_long_coroutines(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        long = await worker.send("nap", 3.0)
        await ledger.until_started(long)
        functions = [await worker.send("work") for _ in range(12)]
        coroutines = [await worker.send("nap", 0.0) for _ in range(4)]
        rows = await ledger.until_terminal(long, *functions, *coroutines)
        # Once for the sends that arrive together, on a busy machine once more for those that arrive later.
        claims = max(row["claim_token"] for row in rows.values())
        assert 2 <= claims <= 4, "a row was claimed and released repeatedly"
        assert {row["attempts"] for row in rows.values()} == {1}
        ended = rows[long]["completed_at"]
        assert all(rows[task_id]["started_at"] - ended < timedelta(seconds=1) for task_id in functions)
        assert await ledger.violations([long, *functions, *coroutines]) == []


async def test_function_gets_the_child_without_coroutines(database_url: str, tmp_path: Path) -> None:
    gate, other, end = tmp_path / "gate", tmp_path / "other", str(tmp_path / "end")
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=2) as worker:
        coroutines = [await worker.send("wait_for_async", end)]
        busy = await worker.send("wait_for", str(gate))
        await ledger.until_started(*coroutines, busy)
        coroutines += [await worker.send("wait_for_async", end) for _ in range(3)]
        await ledger.until_started(*coroutines)
        await _pause(ledger, "paused")
        coroutines.append(await worker.send("wait_for_async", end))
        function = await worker.send("wait_for", str(other))
        gate.touch()
        await ledger.until_terminal(busy)
        await _pause(ledger, None)
        await ledger.until_started(function, coroutines[-1])
        other.touch()
        Path(end).touch()
        rows = await ledger.until_terminal(function, *coroutines)
        assert {row["claim_token"] for row in rows.values()} == {1}
        assert len({start.pid for start in await ledger.starts(*coroutines)}) == 1
        assert await ledger.violations([function, busy, *coroutines]) == []


@pytest.mark.parametrize("name", ["wait_for", "wait_for_async"])
async def test_running_task_names_its_child_also_if_claimed_for_another(
    database_url: str, tmp_path: Path, name: str
) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=2) as worker:
        # Many short tasks, so that the next ones seem short too and are claimed for one child.
        await ledger.until_terminal(*await _send(worker, "plain", [{}] * 100))
        sent = await _send(worker, name, [{"file": str(gate)}] * 2)
        await ledger.until_started(*sent)

        async def are_named() -> bool:
            rows = await ledger.rows(*sent)
            return all(rows[start.task_id]["worker_pid"] == start.pid for start in await ledger.starts(*sent))

        await ledger.until(are_named)
        assert {row["status"] for row in (await ledger.rows(*sent)).values()} == {"RUNNING"}
        gate.touch()
        await ledger.until_terminal(*sent)
        assert await ledger.violations(sent) == []


async def _send_behind_blocked_loop(worker: InProcessWorker, ledger: Ledger, name: str, gate: Path) -> str:
    """Send a coroutine to a child whose event loop is blocked until the gate exists; the others are idle later.

    One of three children is kept for functions.
    """
    other_gate = gate.with_name("other")
    blocking = await worker.send("hold_loop", str(gate))
    others = [await worker.send("wait_for", str(other_gate)) for _ in range(2)]
    await ledger.until_started(blocking, *others)
    blocked = await worker.send(name, 0.0)
    await worker.until(lambda: worker.has_in_flight(blocked))
    other_gate.touch()
    await ledger.until_terminal(*others)
    return blocked


async def _kill(ledger: Ledger, task_id: str) -> None:
    await ledger.fetch(CANCEL, task_id)
    await ledger.fetch("SELECT pg_notify('horsies_worker_ping', $1)", json.dumps({"kind": "kill"}))


async def _pause(ledger: Ledger, by: str | None) -> None:
    """Pause the queue, or resume it with None."""
    sql = """
    INSERT INTO horsies_queues (queue_name, paused_at, paused_by) VALUES ('default', now(), $1)
    ON CONFLICT (queue_name) DO UPDATE SET paused_at = CASE WHEN $1 IS NOT NULL THEN now() END
    """
    await ledger.fetch(sql, by)
    await ledger.fetch("SELECT pg_notify('horsies_task_new', 'default')")


async def _send(worker: InProcessWorker, name: str, items: list[dict[str, Any]]) -> list[str]:
    """Send in one statement, so that the tasks are claimed together."""
    sent = await worker.app.tasks[name].send_many_async(items)
    assert isinstance(sent, Ok), sent
    return [handle.task_id for handle in sent.value]
