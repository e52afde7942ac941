"""Children that exit unexpectedly: detection, classification, and isolation of the other children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from horsies.engine.pool.process import call_on_exit_by_thread
from horsies.model.retry import ExitCause
from tests.support.pool import PoolHarness, assignment, key_of, keys_of, running_pool
from tests.support.workers import wait_for_exits


@pytest.fixture
async def pool() -> AsyncIterator[PoolHarness]:
    async with running_pool() as pool:
        yield pool


async def test_killed_child_loses_only_its_own_task(tmp_path: Path) -> None:
    async with running_pool(4) as pool:
        gate = tmp_path / "gate"
        children = pool.free
        keys = [pool.give("wait_for", str(gate), to=child) for child in children]
        await pool.begun(*keys)
        os.kill(children[0].pid, signal.SIGKILL)
        death = await pool.wait_for_exit(children[0].pid)
        assert (death.cause, death.signal) == (ExitCause.CHILD_SIGNAL, signal.SIGKILL)
        assert (keys_of(death.begun), keys_of(death.unbegun)) == ((keys[0],), ())
        gate.touch()
        assert [await pool.value(key) for key in keys[1:]] == [child.pid for child in children[1:]]
        await pool.events.until(lambda: len(pool.free) == 4)
        assert list(pool.events.exits) == [children[0].pid]


@pytest.mark.parametrize(
    ("task_name", "args", "cause", "signal_number", "exit_status"),
    [
        ("segfault", [], ExitCause.CHILD_SIGNAL, signal.SIGSEGV, None),
        ("exit_process", [3], ExitCause.CHILD_EXIT, None, 3),
        ("exit_process", [0], ExitCause.CHILD_EXIT, None, 0),
        ("exit_process", [71], ExitCause.CHILD_EXIT, None, 71),
        ("exit_process", [72], ExitCause.CHILD_EXIT, None, 72),
        ("close_channel", [], ExitCause.CHILD_PROTOCOL, None, 72),
        ("shut_down_channel", [], ExitCause.CHILD_PROTOCOL, None, 72),
        ("send_garbage", [], ExitCause.CHILD_PROTOCOL, signal.SIGKILL, None),
        ("eat_memory", [], ExitCause.CHILD_MEMORY, None, 71),
        ("eat_memory_with_default_code", [], ExitCause.CHILD_MEMORY, None, 71),
        ("raise_on_validation", ["memory"], ExitCause.CHILD_MEMORY, None, 71),
        ("raise_on_validation_async", ["memory"], ExitCause.CHILD_MEMORY, None, 71),
    ],
)
async def test_each_kind_of_exit_has_its_cause(
    pool: PoolHarness,
    task_name: str,
    args: list[object],
    cause: ExitCause,
    signal_number: int | None,
    exit_status: int | None,
) -> None:
    child = pool.child.pid
    key = pool.give(task_name, *args)
    death = await pool.wait_for_exit(child)
    assert (death.cause, death.signal, death.exit_status) == (cause, signal_number, exit_status)
    assert keys_of(death.begun) == (key,)
    await pool.events.until(lambda: len(pool.events.ready_pids) == 2)
    assert await pool.value(pool.give("pid")) == pool.events.ready_pids[1]


async def test_segfault_leaves_a_traceback_in_the_log(pool: PoolHarness) -> None:
    child = pool.child.pid
    pool.give("segfault")
    await pool.wait_for_exit(child)
    assert any("pool_app.py" in line for _, stream, line in pool.events.lines if stream == "stderr")


async def test_exit_is_detected_while_a_grandchild_holds_the_channel(pool: PoolHarness) -> None:
    child = pool.child
    pool.give("spawn_and_wait")
    await pool.events.until(lambda: bool(pool.events.lines))
    grandchild = psutil.Process(int(pool.events.lines[0][2]))
    os.kill(child.pid, signal.SIGKILL)
    assert (await pool.wait_for_exit(child.pid)).signal == signal.SIGKILL
    alive = await asyncio.to_thread(wait_for_exits, [grandchild], within_s=2)
    assert not alive, "the grandchild is in the child's group and must be killed with it"


async def test_result_sent_before_the_exit_counts(pool: PoolHarness) -> None:
    child = pool.child.pid
    key = pool.give("die_after")
    death = await pool.wait_for_exit(child)
    assert await pool.value(key) == "done"
    assert (death.signal, keys_of(death.begun)) == (signal.SIGKILL, ())


async def test_only_the_begun_task_of_a_chunk_is_lost(pool: PoolHarness) -> None:
    assigned = [assignment("noop"), assignment("exit_process", 3), assignment("noop"), assignment("noop")]
    child = pool.child
    pool.send(assigned, to=child)
    death = await pool.wait_for_exit(child.pid)
    assert keys_of(death.begun) == (key_of(assigned[1]),)
    assert keys_of(death.unbegun) == (key_of(assigned[2]), key_of(assigned[3]))
    assert list(pool.events.outcomes) == [key_of(assigned[0])]


async def test_task_begins_only_with_the_report_of_its_child(pool: PoolHarness) -> None:
    child = pool.child
    os.kill(child.pid, signal.SIGSTOP)
    key = pool.give("noop")
    child.kill("stopped")
    assert keys_of((await pool.wait_for_exit(child.pid)).unbegun) == (key,)


@pytest.mark.parametrize(
    ("handler", "second"),
    [("on_completed", "noop"), ("on_completed", "return_wrong_type"), ("on_began", "noop"), ("on_recalled", "noop")],
)
async def test_task_whose_report_cannot_be_handled_is_not_forgotten(
    pool: PoolHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, handler: str, second: str
) -> None:
    """An error in the worker's own code is an error of the protocol: the task comes back with the exit of the child."""
    child, gate = pool.child, tmp_path / "gate"
    running = pool.give("wait_for", str(gate), to=child)
    await pool.begun(running)
    monkeypatch.setattr(pool.events, handler, Mock(side_effect=ValueError("a bug")))
    waiting = pool.give(second, to=child)
    child.recall() if handler == "on_recalled" else gate.touch()
    death = await pool.wait_for_exit(child.pid)
    assert (death.cause, death.why) == (ExitCause.CHILD_PROTOCOL, "protocol error: a bug")
    # The child reports the start of the second task together with the end of the first, if it has received it by then.
    returned = keys_of((*death.begun, *death.unbegun))
    assert sorted((*returned, *pool.events.outcomes)) == sorted((running, waiting))
    assert handler == "on_began" or running in keys_of(death.begun)


async def test_task_of_a_report_that_is_partly_wrong_is_not_forgotten(pool: PoolHarness) -> None:
    assigned = [assignment("forge_recall"), assignment("noop")]
    child = pool.child
    pool.send(assigned, to=child)
    death = await pool.wait_for_exit(child.pid)
    assert death.cause is ExitCause.CHILD_PROTOCOL
    assert (keys_of(death.begun), keys_of(death.unbegun)) == ((key_of(assigned[0]),), (key_of(assigned[1]),))


async def test_killed_child_keeps_the_first_reason(pool: PoolHarness, tmp_path: Path) -> None:
    child = pool.child
    await pool.begun(pool.give("wait_for", str(tmp_path / "never")))
    child.kill("TASK_TIMEOUT")
    child.kill("another reason")
    death = await pool.wait_for_exit(child.pid)
    assert (death.cause, death.why) == (ExitCause.KILLED, "TASK_TIMEOUT")
    assert not child.accepts_work


async def test_stopped_child_is_killed_after_the_silence_timeout(tmp_path: Path) -> None:
    async with running_pool(heartbeat_interval_s=0.05, silence_timeout_s=0.5) as pool:
        child = pool.child
        key = pool.give("wait_for", str(tmp_path / "never"))
        await pool.begun(key)
        os.kill(child.pid, signal.SIGSTOP)
        death = await pool.wait_for_exit(child.pid)
        assert (death.cause, keys_of(death.begun)) == (ExitCause.HEARTBEAT_LOST, (key,))


async def test_silent_child_that_uses_cpu_is_not_killed() -> None:
    async with running_pool(heartbeat_interval_s=0.05, silence_timeout_s=0.5) as pool:
        child = pool.child
        await pool.begun(key := pool.give("hold_gil", 2.0))
        async with asyncio.timeout(2.0):
            while child.liveness.silence_s <= 0.5:  # noqa: ASYNC110  # silence sets no event
                await asyncio.sleep(0.01)
        await pool.wait_for_outcome(key)
        assert not pool.events.exits


async def test_child_without_acks_exits() -> None:
    # The heartbeat interval is longer than the ack timeout, so no ack can arrive in time.
    async with running_pool(heartbeat_interval_s=60, ack_timeout_s=0.5) as pool:
        child = pool.child
        death = await pool.wait_for_exit(child.pid)
        assert death.cause is ExitCause.CHILD_SIGNAL
        assert any("has not answered" in line for _, _, line in pool.events.lines)


async def test_exit_is_detected_without_a_pidfd() -> None:
    ended = asyncio.Event()
    with subprocess.Popen(["sleep", "60"]) as process:  # noqa: ASYNC220  # a plain process is the point
        call_on_exit_by_thread(process.pid, asyncio.get_running_loop(), ended.set)
        process.kill()
        await asyncio.wait_for(ended.wait(), 5)
        assert process.wait() == -signal.SIGKILL


async def test_exited_child_leaves_no_open_descriptors(pool: PoolHarness) -> None:
    before = psutil.Process().num_fds()
    for count in range(2, 5):
        pool.child.kill("test")
        await pool.events.until(lambda count=count: len(pool.events.ready_pids) == count)
    assert psutil.Process().num_fds() == before
