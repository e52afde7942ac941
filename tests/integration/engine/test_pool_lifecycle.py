"""Starting, replacing and stopping the children of a pool."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from horsies.engine.pool.orphan_killer import HELPER_NAME
from horsies.engine.pool.pool import ChildPool
from horsies.engine.pool.protocol import ChildSpec
from horsies.errors import ConfigurationError, HorsiesError
from horsies.model.retry import ExitCause
from tests.support.cli import Project
from tests.support.pool import PoolEvents, assignment, key_of, keys_of, running_pool
from tests.support.workers import is_alive, wait_for_exits

HOOKED = """
import sys
from horsies import Horsies, TaskError, TaskResult
app = Horsies()

@app.on_child_process_start
def first() -> None:
    print("hooked")

@app.on_child_process_start
def second() -> None:
    {second}

@app.task("noop")
def noop() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


async def test_idle_children_quit_when_they_are_retired() -> None:
    async with running_pool(2) as pool:
        children = pool.free
        for child in children:
            child.retire()
        causes = [(await pool.wait_for_exit(child.pid)).cause for child in children]
        assert causes == [ExitCause.RETIRED, ExitCause.RETIRED]
        assert not any(psutil.pid_exists(child.pid) for child in children)


async def test_kill_all_reports_the_tasks_that_were_running(tmp_path: Path) -> None:
    async with running_pool() as pool:
        child = pool.child
        key = pool.give("wait_for", str(tmp_path / "never"))
        await pool.begun(key)
        child.retire()
        await pool.pool.kill_all("the pool is stopped")
        death = pool.events.exits[child.pid]
        assert (death.cause, keys_of(death.begun)) == (ExitCause.KILLED, (key,))


async def test_children_are_replaced_after_max_tasks_without_losing_any() -> None:
    async with running_pool(2, max_tasks_per_child=5) as pool:
        while len(pool.events.exits) < 3:
            await pool.events.until(lambda: bool(pool.free))
            assert (await pool.run("noop")).error_code is None
        assert {death.cause for death in pool.events.exits.values()} == {ExitCause.RETIRED}
        assert not any(death.begun or death.unbegun for death in pool.events.exits.values())


async def test_children_are_replaced_one_at_a_time_when_idle(tmp_path: Path) -> None:
    async with running_pool(2, max_tasks_per_child=1) as pool:
        one, other = pool.free
        gate = tmp_path / "gate"
        chunk = [assignment("noop"), assignment("wait_for", str(gate))]
        pool.send(chunk, to=one)
        await pool.begun(key_of(chunk[1]))
        assert not one.accepts_work
        await pool.wait_for_outcome(pool.give("noop", to=other))
        assert other.accepts_work
        gate.touch()
        assert (await pool.wait_for_exit(one.pid)).cause is ExitCause.RETIRED
        assert key_of(chunk[1]) in pool.events.outcomes


async def test_child_over_its_memory_limit_is_replaced() -> None:
    async with running_pool(heartbeat_interval_s=0.05, max_memory_per_child_mb=200) as pool:
        child_pid = pool.child.pid
        await pool.run("grow", 300)
        assert (await pool.wait_for_exit(child_pid)).cause is ExitCause.RETIRED


async def test_start_fails_if_a_new_child_exceeds_its_memory() -> None:
    with pytest.raises(ConfigurationError, match="max_memory_per_child_mb"):
        async with running_pool(max_memory_per_child_mb=1):
            pass


async def test_hooks_run_before_the_first_task(project: Project) -> None:
    project.write("main.py", HOOKED.format(second="pass"))
    async with running_pool(app_locator="main:app") as pool:
        assert pool.events.lines == [(None, "stdout", "hooked")]


@pytest.mark.parametrize(
    ("second", "error"),
    [
        ("raise ValueError('hook failed')", "hook failed"),
        ("sys.exit(1)", "second"),
        ("import time; time.sleep(60)", "did not return within 0.2 s"),
        ("raise ValueError('hook failed' + 'x' * (70 << 20))", "hook failed"),
        ("raise ValueError('hook failed' + chr(0xdc80))", "hook failed"),
    ],
)
async def test_failing_hook_stops_the_pool_after_three_starts(
    project: Project, second: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    project.write("main.py", HOOKED.format(second=second))
    hook_timeout_s = 0.2 if "sleep" in second else 20
    with caplog.at_level(logging.WARNING), pytest.raises(HorsiesError, match=error):
        async with running_pool(app_locator="main:app", hook_timeout_s=hook_timeout_s):
            pass
    assert len([record for record in caplog.records if "failed to start" in record.message]) == 3


async def test_error_names_the_module_that_cannot_be_imported(project: Project) -> None:
    project.write("main.py", "import missing_module")
    with pytest.raises(HorsiesError, match="missing_module"):
        async with running_pool(app_locator="main:app"):
            pass


async def test_failing_replacements_stop_a_pool_with_other_children(project: Project) -> None:
    project.write("main.py", HOOKED.format(second="import pathlib; assert not pathlib.Path('broken').exists()"))
    async with running_pool(2, app_locator="main:app") as pool:
        project.write("broken")
        os.kill(pool.child.pid, signal.SIGKILL)
        with pytest.raises(HorsiesError, match="3 children in a row failed to start"):
            async with asyncio.timeout(20):
                await pool.pool.broken
        assert len(pool.free) == 1


async def test_child_that_does_not_start_in_time_is_killed(project: Project) -> None:
    project.write("main.py", "import time; time.sleep(60)")
    with pytest.raises(HorsiesError, match="did not start within"):
        async with running_pool(app_locator="main:app", start_timeout_s=0.3):
            pass


async def test_killed_worker_takes_children_and_grandchildren_along() -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.pool", stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    pids = [int(line) for line in [await worker.stdout.readline() for _ in range(4)]]
    processes = [psutil.Process(pid) for pid in pids]
    assert all(is_alive(process) for process in processes)
    os.kill(worker.pid, signal.SIGKILL)
    alive = await asyncio.to_thread(wait_for_exits, processes, within_s=2)
    await worker.wait()
    assert not alive


async def test_killed_orphan_killer_is_replaced() -> None:
    async with running_pool() as pool:
        orphan_killer = _orphan_killer()
        orphan_killer.kill()
        await asyncio.to_thread(orphan_killer.wait, 2)
        os.kill(pool.child.pid, signal.SIGKILL)
        await pool.events.until(lambda: len(pool.events.ready_pids) == 2)
        assert _orphan_killer().pid != orphan_killer.pid


def _orphan_killer() -> psutil.Process:
    (found,) = [process for process in _running_children() if HELPER_NAME in process.cmdline()]
    return found


def _running_children() -> list[psutil.Process]:
    """Without zombies: one stays if a fork server is killed between its two forks, see ADR 27."""
    return [process for process in psutil.Process().children() if process.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def descriptors_exhausted() -> Generator[None]:
    """Lower the limit so that no new descriptors can be opened; existing ones stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_start_without_descriptors_fails_and_leaks_nothing() -> None:
    before = psutil.Process().num_fds(), _running_children()
    with descriptors_exhausted(), pytest.raises(HorsiesError, match="Too many open files") as refusal:
        async with asyncio.timeout(10), running_pool(2):
            pass
    assert "ulimit" in (refusal.value.help_text or "")
    assert (psutil.Process().num_fds(), _running_children()) == before


async def test_slot_is_filled_at_the_second_try(caplog: pytest.LogCaptureFixture) -> None:
    async with running_pool() as pool:
        with caplog.at_level(logging.WARNING), descriptors_exhausted():
            pool.child.kill("test")
            await pool.events.until(lambda: bool(pool.events.exits))
            await asyncio.sleep(0)  # let the slot notice the exit
        await pool.events.until(lambda: len(pool.events.ready_pids) == 2)
        assert len([record for record in caplog.records if "cannot start a process" in record.message]) == 1
        assert await pool.value(pool.give("pid")) == pool.events.ready_pids[1]


async def test_pool_is_broken_when_no_process_can_start() -> None:
    async with running_pool() as pool:
        with descriptors_exhausted():
            pool.child.kill("test")
            with pytest.raises(HorsiesError, match="Too many open files"):
                await asyncio.wait_for(pool.pool.broken, 10)


async def test_failed_start_leaves_no_processes() -> None:
    before = _running_children()  # other tests of this process may have left their command server
    pool = ChildPool(ChildSpec(app_locator="nowhere:app"), 2, PoolEvents())
    with pytest.raises(HorsiesError, match="nowhere"):
        await pool.start()
    assert _running_children() == before
