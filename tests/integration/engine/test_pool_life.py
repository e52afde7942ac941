"""Pools that start, renew their children and stop, and what is left when their worker is killed."""

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

from horsies.engine.pool.pool import ChildPool
from horsies.engine.pool.process import ChildSpec
from horsies.errors import ConfigurationError, HorsiesError
from horsies.model.crash import ExitCause
from tests.support.cli import Project
from tests.support.pool import PoolEvents, assignment, running_pool

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
        assert (death.cause, death.begun) == (ExitCause.KILLED, (key,))


async def test_a_child_is_replaced_after_its_last_task_and_nothing_is_lost() -> None:
    async with running_pool(2, max_tasks_per_child=5) as pool:
        while len(pool.events.exits) < 3:
            await pool.events.until(lambda: bool(pool.free))
            assert (await pool.run("noop")).error_code is None
        assert {death.cause for death in pool.events.exits.values()} == {ExitCause.RETIRED}
        assert not any(death.begun or death.unbegun for death in pool.events.exits.values())


async def test_children_are_replaced_one_at_a_time_and_never_with_a_task_in_hand(tmp_path: Path) -> None:
    async with running_pool(2, max_tasks_per_child=1) as pool:
        one, other = pool.free
        gate = tmp_path / "gate"
        chunk = [assignment("noop"), assignment("wait_for", str(gate))]
        one.run(chunk)
        await pool.begun(chunk[1].key)
        assert not one.accepts_work
        await pool.wait_for_outcome(pool.give("noop", to=other))
        assert other.accepts_work
        gate.touch()
        assert (await pool.wait_for_exit(one.pid)).cause is ExitCause.RETIRED
        assert chunk[1].key in pool.events.outcomes


async def test_a_child_that_has_grown_is_replaced() -> None:
    async with running_pool(heartbeat_interval_s=0.05, max_memory_per_child_mb=200) as pool:
        grown = pool.child.pid
        await pool.run("grow", 300)
        assert (await pool.wait_for_exit(grown)).cause is ExitCause.RETIRED


async def test_a_start_is_refused_when_a_fresh_child_is_too_large() -> None:
    with pytest.raises(ConfigurationError, match="max_memory_per_child_mb"):
        async with running_pool(max_memory_per_child_mb=1):
            pass


async def test_hooks_run_before_the_first_task(project: Project) -> None:
    project.write("main.py", HOOKED.format(second="pass"))
    async with running_pool(app_locator="main:app") as pool:
        assert pool.events.lines == [(None, "stdout", "hooked")]


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ("raise ValueError('no luck')", "no luck"),
        ("sys.exit(1)", "second"),
        ("import time; time.sleep(60)", "did not return within 0.2 s"),
    ],
)
async def test_a_failing_hook_stops_its_child_and_three_of_them_the_pool(
    project: Project, second: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    project.write("main.py", HOOKED.format(second=second))
    with caplog.at_level(logging.WARNING), pytest.raises(HorsiesError, match=fault):
        async with running_pool(app_locator="main:app", hook_timeout_s=0.2):
            pass
    assert len([record for record in caplog.records if "failed to start" in record.message]) == 3


async def test_a_module_that_cannot_be_imported_is_named(project: Project) -> None:
    project.write("main.py", "import nothing_of_that_name")
    with pytest.raises(HorsiesError, match="nothing_of_that_name"):
        async with running_pool(app_locator="main:app"):
            pass


async def test_a_child_that_does_not_come_up_in_time_is_killed(project: Project) -> None:
    project.write("main.py", "import time; time.sleep(60)")
    with pytest.raises(HorsiesError, match="did not start within"):
        async with running_pool(app_locator="main:app", start_timeout_s=0.3):
            pass


async def test_a_killed_worker_takes_its_children_and_what_they_started_along() -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.pool", stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    pids = [int(line) for line in [await worker.stdout.readline() for _ in range(4)]]
    everyone = [psutil.Process(pid) for pid in pids]
    assert all(process.is_running() for process in everyone)
    os.kill(worker.pid, signal.SIGKILL)
    _, alive = await asyncio.to_thread(psutil.wait_procs, everyone, 2)
    await worker.wait()
    assert not alive


async def test_a_killed_warden_is_replaced() -> None:
    async with running_pool() as pool:
        warden = _warden()
        warden.kill()
        await asyncio.to_thread(warden.wait, 2)
        os.kill(pool.child.pid, signal.SIGKILL)
        await pool.events.until(lambda: len(pool.events.ready_pids) == 2)
        assert _warden().pid != warden.pid


def _warden() -> psutil.Process:
    (found,) = [each for each in psutil.Process().children() if "orphan_killer.py" in " ".join(each.cmdline())]
    return found


@contextmanager
def no_more_descriptors() -> Generator[None]:
    """As when a process has used up its limit; those it has stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_start_without_room_for_processes_is_refused_and_leaves_nothing_behind() -> None:
    before = psutil.Process().num_fds()
    with no_more_descriptors(), pytest.raises(HorsiesError, match="Too many open files") as refusal:
        async with asyncio.timeout(10), running_pool(2):
            pass
    assert "ulimit" in (refusal.value.help_text or "")
    assert (psutil.Process().num_fds(), psutil.Process().children()) == (before, [])


async def test_a_child_that_finds_room_at_the_second_try_fills_its_slot(caplog: pytest.LogCaptureFixture) -> None:
    async with running_pool() as pool:
        with caplog.at_level(logging.WARNING), no_more_descriptors():
            pool.child.kill("to see whether another comes")
            await pool.events.until(lambda: bool(pool.events.exits))
            await asyncio.sleep(0)  # the slot hears of it
        await pool.events.until(lambda: len(pool.events.ready_pids) == 2)
        assert len([record for record in caplog.records if "cannot start a process" in record.message]) == 1
        assert await pool.value(pool.give("pid")) == pool.events.ready_pids[1]


async def test_a_pool_is_broken_when_there_is_no_more_room_for_processes() -> None:
    async with running_pool() as pool:
        with no_more_descriptors():
            pool.child.kill("to see that no other comes")
            with pytest.raises(HorsiesError, match="Too many open files"):
                await asyncio.wait_for(pool.pool.broken, 10)


async def test_nothing_of_a_pool_is_left_when_it_could_not_be_started() -> None:
    pool = ChildPool(ChildSpec(app_locator="nowhere:app"), 2, PoolEvents())
    with pytest.raises(HorsiesError, match="nowhere"):
        await pool.start()
    assert psutil.Process().children() == []
