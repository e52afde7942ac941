"""Children are forked from a process without user code; its death or suspension costs no task.

A worker that has lost it claims nothing until another one is ready.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from horsies.engine import events
from horsies.engine.pool import fork_server, process
from horsies.engine.pool import pool as pool_module
from horsies.engine.pool.fork_server import ForkServer
from horsies.engine.pool.pool import ChildPool
from horsies.engine.pool.protocol import ChildSpec
from horsies.errors import HorsiesError
from horsies.model.retry import ExitCause
from tests.support.ledger import Ledger
from tests.support.pool import APP, PoolEvents, PoolHarness, running_pool
from tests.support.workers import (
    CHILD_NAME,
    FORK_SERVER_NAME,
    InProcessWorker,
    is_alive,
    processes_named,
    wait_for_exits,
    worker_in_process,
)

pytestmark = pytest.mark.skipif(not ForkServer.is_supported(), reason="the system has no subreaper")


def fork_server_pid(of: int = os.getpid()) -> int:
    (pid,) = processes_named(FORK_SERVER_NAME, of=of)
    return pid


def record_new_fork_servers(monkeypatch: pytest.MonkeyPatch, *signals: signal.Signals) -> list[ForkServer]:
    """Return a list that gets each fork server started from now on; the n-th gets the n-th signal as it starts."""
    started, spawn, to_send = list[ForkServer](), ForkServer.spawn, iter(signals)

    def spawn_and_signal() -> ForkServer:
        started.append(server := spawn())
        if (number := next(to_send, None)) is not None:
            os.kill(server.pid, number)
        return server

    monkeypatch.setattr(ForkServer, "spawn", spawn_and_signal)
    return started


def refuse_new_fork_servers(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let each start of another fork server fail with this error, and repeat it without long delays."""

    def refuse() -> ForkServer:
        raise error

    monkeypatch.setattr(ForkServer, "spawn", refuse)
    retry_soon(monkeypatch)


def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FIRST_REPLACEMENT_DELAY_S", 0.001)
    monkeypatch.setattr(pool_module, "START_BACKOFF_S", 0.001)


def kill_fork_servers_with_requests(monkeypatch: pytest.MonkeyPatch, count: int | None = None) -> None:
    """Kill each of the next fork servers while it has a request for a child."""
    request_child, numbers = ForkServer.request_child, itertools.count(1)

    def request_and_kill(server: ForkServer, descriptors: Sequence[int]) -> None:
        is_killed = count is None or next(numbers) <= count
        if is_killed:
            os.kill(server.pid, signal.SIGSTOP)  # so that it does not fork the child before it is killed
        request_child(server, descriptors)
        if is_killed:
            os.kill(server.pid, signal.SIGKILL)

    monkeypatch.setattr(ForkServer, "request_child", request_and_kill)


async def until_broken(pool: PoolHarness) -> None:
    async with asyncio.timeout(20):
        await pool.pool.broken


async def kill_child_and_wait(pool: PoolHarness) -> None:
    """Kill a child and wait until its replacement accepts tasks."""
    count = len(pool.events.ready_pids)
    os.kill(pool.child.pid, signal.SIGKILL)
    await pool.events.until(lambda: len(pool.events.ready_pids) > count)


async def test_child_is_a_process_of_the_worker_in_its_own_session() -> None:
    async with running_pool() as pool:
        facts = await pool.value(pool.give("describe_process"))
        assert facts == {"parent": os.getpid(), "session": pool.child.pid, "group": pool.child.pid}
        assert processes_named(CHILD_NAME, of=os.getpid()) == [pool.child.pid]


async def test_fork_server_has_one_thread_and_only_its_control_socket() -> None:
    async with running_pool():
        server = psutil.Process(fork_server_pid())
        open_files = [str(file.readlink()) for file in Path(f"/proc/{server.pid}/fd").iterdir()]
        assert server.num_threads() == 1
        assert server.children() == []
        assert len([name for name in open_files if name.startswith("socket:")]) == 1
        assert "asyncpg" not in Path(f"/proc/{server.pid}/maps").read_text()


FORKED_WITH_A_DESCRIPTOR_ABOVE_THE_LIMIT = """
import asyncio, os, resource
from horsies.engine.pool.fork_server import ForkServer

async def ready(server):
    server.watch(lambda: None)
    await server.wait_until_ready()

os.dup2(1, 300)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
server = ForkServer.fork()
asyncio.run(ready(server))
print(300 in map(int, os.listdir(f"/proc/{server.pid}/fd")), len(os.listdir(f"/proc/{server.pid}/fd")))
server.close()
"""


def test_fork_of_a_process_closes_descriptors_above_their_limit() -> None:
    command = [sys.executable, "-c", FORKED_WITH_A_DESCRIPTOR_ABOVE_THE_LIMIT]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False 4\n"


async def test_children_survive_their_fork_server(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_pool(2) as pool:
        children = pool.free
        keys = [pool.give("wait_for", str(gate), to=child) for child in children]
        await pool.begun(*keys)
        os.kill(server := fork_server_pid(), signal.SIGKILL)
        await pool.events.until(lambda: len(pool.events.fork_server_events) == 2)
        assert pool.events.fork_server_events == [(server, "died"), "restored"]
        assert fork_server_pid() != server
        gate.touch()
        assert [await pool.value(key) for key in keys] == [child.pid for child in children]
        await kill_child_and_wait(pool)
        assert await pool.value(pool.give("pid", to=pool.free[-1])) == pool.free[-1].pid


async def test_replacements_that_die_are_replaced_until_one_is_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    retry_soon(monkeypatch)
    async with running_pool() as pool:
        started = record_new_fork_servers(monkeypatch, *[signal.SIGKILL] * 4)
        os.kill(server := fork_server_pid(), signal.SIGKILL)
        await pool.events.until(lambda: "restored" in pool.events.fork_server_events)
        assert pool.events.fork_server_events == [(server, "died"), "restored"]
        assert fork_server_pid() == started[4].pid
        logged = {(record.message, record.__dict__["error"]) for record in caplog.records}
        assert logged == {("new fork server failed to start", "the fork server died")}
        assert [record.__dict__["retry_in_s"] for record in caplog.records] == [0.001, 0.002, 0.004, 0.008]
        await kill_child_and_wait(pool)


async def test_child_that_dies_without_a_fork_server_is_replaced_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_pool() as pool:
        started = record_new_fork_servers(monkeypatch, signal.SIGSTOP)
        os.kill(fork_server_pid(), signal.SIGKILL)
        await pool.events.until(pool.pool.fork_server_lost.is_set)
        assert "fork server" in (pool.pool.degraded_reason or "")
        os.kill(pool.child.pid, signal.SIGKILL)
        await pool.events.until(lambda: len(pool.events.exits) == 1 and len(started) == 1)
        assert pool.pool.fork_server_lost.is_set()
        os.kill(started[0].pid, signal.SIGCONT)
        await pool.events.until(lambda: len(pool.events.ready_pids) == 2)
        assert (pool.pool.fork_server_lost.is_set(), pool.pool.degraded_reason) == (False, None)
        assert caplog.messages == [], "no start has failed"


async def test_replacement_that_is_lost_soon_is_replaced_after_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FIRST_REPLACEMENT_DELAY_S", 3600.0)
    async with running_pool() as pool:
        started = record_new_fork_servers(monkeypatch)
        os.kill(fork_server_pid(), signal.SIGKILL)
        await pool.events.until(lambda: len(pool.events.fork_server_events) == 2)
        assert started[0].ready_at is not None
        started[0].ready_at -= process.MAX_REPLACEMENT_DELAY_S
        os.kill(started[0].pid, signal.SIGKILL)
        await pool.events.until(lambda: len(pool.events.fork_server_events) == 4)
        os.kill(started[1].pid, signal.SIGKILL)
        await pool.events.until(lambda: len(pool.events.fork_server_events) == 5)
        await pool.run("noop")
        assert len(started) == 2, "without a delay, the third would have been started before the task ended"


async def test_start_waits_again_if_the_replacement_is_lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FIRST_REPLACEMENT_DELAY_S", 3600.0)
    async with running_pool(2) as pool:
        started = record_new_fork_servers(monkeypatch, signal.SIGSTOP)
        on_restored = pool.events.on_fork_server_restored

        def lose_it_at_once() -> None:
            on_restored()
            os.kill(started[0].pid, signal.SIGKILL)
            os.waitid(os.P_PID, started[0].pid, os.WEXITED | os.WNOWAIT)

        monkeypatch.setattr(pool.events, "on_fork_server_restored", lose_it_at_once)
        os.kill(fork_server_pid(), signal.SIGKILL)
        await pool.events.until(pool.pool.fork_server_lost.is_set)
        os.kill(child := pool.child.pid, signal.SIGKILL)
        await pool.wait_for_exit(child)
        os.kill(started[0].pid, signal.SIGCONT)
        await pool.events.until(lambda: len(pool.events.fork_server_events) == 3)
        await pool.run("noop")
        assert len(started) == 1, "the start waits for the replacement, which waits for its delay"


async def test_pool_is_broken_if_the_replacement_cannot_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_pool() as pool:
        refuse_new_fork_servers(monkeypatch, OSError("no memory"))
        os.kill(fork_server_pid(), signal.SIGKILL)
        os.kill(pool.child.pid, signal.SIGKILL)
        with pytest.raises(HorsiesError, match="failed to start: cannot start a process: no memory"):
            await until_broken(pool)
        assert pool.pool.degraded_reason == (
            "fork server lost, claims nothing until another one is ready; "
            "1 of 1 children cannot be started: cannot start a process: no memory"
        )
    assert "new fork server failed to start" in caplog.messages


async def test_pool_fails_to_start_if_its_fork_server_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkServer.spawn()
    pool_events = PoolEvents()
    pool = ChildPool(ChildSpec(app_locator=APP), 1, pool_events, fork_server=server)
    await server.wait_until_ready()
    refuse_new_fork_servers(monkeypatch, OSError("no memory"))
    os.kill(server.pid, signal.SIGKILL)
    await pool_events.until(lambda: pool_events.fork_server_events == [(server.pid, "died")])
    with pytest.raises(HorsiesError, match="no memory"):
        async with asyncio.timeout(20):
            await pool.start()


async def test_unexpected_error_of_a_replacement_breaks_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_pool() as pool:
        refuse_new_fork_servers(monkeypatch, RuntimeError("unexpected"))
        os.kill(fork_server_pid(), signal.SIGKILL)
        with pytest.raises(RuntimeError, match="unexpected"):
            await until_broken(pool)


async def test_start_under_way_waits_for_the_replacement(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_pool() as pool:
        kill_fork_servers_with_requests(monkeypatch, 1)
        server = fork_server_pid()
        await kill_child_and_wait(pool)
        assert pool.events.fork_server_events == [(server, "died"), "restored"]
        assert caplog.messages == [], "no start has failed"


async def test_fork_server_that_drops_a_request_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As seen by the worker if the channel of the child closes before the control socket of the fork server."""
    async with running_pool() as pool:
        dropped, request_child = list[ForkServer](), ForkServer.request_child

        def drop_the_first(server: ForkServer, descriptors: Sequence[int]) -> None:
            if dropped:
                request_child(server, descriptors)
            else:
                dropped.append(server)

        monkeypatch.setattr(ForkServer, "request_child", drop_the_first)
        await kill_child_and_wait(pool)
        assert pool.events.fork_server_events == [(dropped[0].pid, "died or dropped a request"), "restored"]
        assert caplog.messages == [], "no start has failed"


async def test_pool_is_broken_if_each_request_kills_the_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_soon(monkeypatch)
    async with running_pool() as pool:
        kill_fork_servers_with_requests(monkeypatch)
        os.kill(pool.child.pid, signal.SIGKILL)
        with pytest.raises(HorsiesError, match="failed to start: cannot start a process: the fork server died"):
            await until_broken(pool)


async def test_children_are_not_recycled_while_they_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_pool(max_tasks_per_child=1, heartbeat_interval_s=0.05) as pool:
        child = pool.child
        started = record_new_fork_servers(monkeypatch, signal.SIGSTOP)
        os.kill(fork_server_pid(), signal.SIGKILL)
        await pool.events.until(pool.pool.fork_server_lost.is_set)
        await pool.run("noop")
        await pool.run("noop")
        assert child.accepts_work
        os.kill(started[0].pid, signal.SIGCONT)
        assert (await pool.wait_for_exit(child.pid)).cause is ExitCause.RETIRED


async def test_fork_server_that_does_not_answer_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fork_server, "ANSWER_TIMEOUT_S", 0.2)
    async with running_pool() as pool:
        os.kill(server := fork_server_pid(), signal.SIGSTOP)
        child = pool.child.pid
        await kill_child_and_wait(pool)
        assert pool.events.exits[child].signal == signal.SIGKILL
        assert pool.events.fork_server_events == [(server, "killed: no answer in time"), "restored"]
        assert fork_server_pid() != server
        assert not psutil.pid_exists(server)
        assert caplog.messages == [], "no start has failed"


async def test_pool_closes_while_a_stopped_fork_server_has_a_request() -> None:
    before = psutil.Process().children()
    async with running_pool() as pool:
        os.kill(fork_server_pid(), signal.SIGSTOP)
        child = pool.child.pid
        os.kill(child, signal.SIGKILL)
        await pool.wait_for_exit(child)
        await asyncio.sleep(0)  # let the slot ask for another child
        async with asyncio.timeout(fork_server.ANSWER_TIMEOUT_S / 2):
            await pool.pool.kill_all("the test is over")
    assert psutil.Process().children() == before


async def test_killed_fork_server_leaves_no_processes_behind() -> None:
    """Killed again and again while it forks, also between the two forks."""
    before = psutil.Process().children()
    async with running_pool(2) as pool:
        for round_ in range(10):
            os.kill(pool.free[0].pid, signal.SIGKILL)
            await asyncio.sleep(round_ * 0.0005)
            for server in processes_named(FORK_SERVER_NAME, of=os.getpid()):
                os.kill(server, signal.SIGKILL)
            await pool.events.until(lambda: len(pool.free) == 2)
        ready = set(pool.events.ready_pids)
    left = [process for process in psutil.Process().children() if process not in before]
    assert not [process for process in left if is_alive(process)]
    assert not wait_for_exits([psutil.Process(pid) for pid in ready if psutil.pid_exists(pid)], within_s=2)


async def test_children_do_not_share_random_numbers() -> None:
    async with running_pool(3) as pool:
        values = [await pool.value(pool.give("random_values", to=child)) for child in pool.free]
        assert len({value for drawn in values for value in drawn}) == 12


async def test_children_have_the_current_environment_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_TEST_REMOVED", "yes")
    async with running_pool(environment={"HORSIES_TEST_ADDED": "yes"}) as pool:
        monkeypatch.delenv("HORSIES_TEST_REMOVED")
        monkeypatch.setenv("HORSIES_TEST_SET", "yes")
        await kill_child_and_wait(pool)
        names = "HORSIES_TEST_REMOVED", "HORSIES_TEST_SET", "HORSIES_TEST_ADDED", "HORSIES_CHILD_PROCESS"
        assert [await pool.value(pool.give("variable", name)) for name in names] == [None, "yes", "yes", "1"]


SITE_WITH_A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


async def test_no_start_fails_because_threads_prevent_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE_WITH_A_THREAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(pool_module, "usable_cpus", lambda: 4)
    async with running_pool(4) as pool:
        assert len(pool.free) == 4
    assert caplog.messages == []


@contextmanager
def adopts_nothing() -> Generator[bool]:
    """Like a kernel that accepts the request for orphans without giving them."""
    yield True


async def test_children_start_as_interpreters_if_orphans_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "adopt_orphans", adopts_nothing)
    monkeypatch.setattr(pool_module, "usable_cpus", lambda: 4)
    async with running_pool(4) as pool:
        assert len(pool.free) == 4
        assert processes_named(FORK_SERVER_NAME, of=os.getpid()) == []


async def test_no_child_is_forked_from_a_process_with_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE_WITH_A_THREAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with running_pool() as pool:
        assert processes_named(FORK_SERVER_NAME, of=os.getpid()) == []
        assert processes_named(CHILD_NAME, of=os.getpid()) == [pool.child.pid]
        await kill_child_and_wait(pool)
        assert await pool.value(pool.give("pid")) == pool.child.pid


RARE_POLLS = {"resilience": {"notify_poll_interval_ms": 60_000}}
"""So that only the end of the replacement wakes the dispatcher."""


async def check_that_tasks_wait_for_a_fork_server(
    ledger: Ledger, worker: InProcessWorker, replacements: list[ForkServer], *waiting: str
) -> None:
    """Let the stopped replacement go on: before, these tasks wait although a child is idle; then they run."""
    await worker.until(lambda: replacements)

    async def is_published() -> bool:
        (row,) = await ledger.fetch("SELECT health ->> 'warnings' AS warnings FROM horsies_workers")
        return "claims nothing" in row["warnings"]

    await ledger.until(is_published)
    assert {row["status"] for row in (await ledger.rows(*waiting)).values()} == {"PENDING"}
    continued_at = await ledger.now()
    assert worker.events_of(events.ForkServerRestored) == []
    os.kill(replacements[0].pid, signal.SIGCONT)
    rows = await ledger.until_terminal(*waiting)
    assert {row["status"] for row in rows.values()} == {"COMPLETED"}
    assert min(row["started_at"] for row in rows.values()) > continued_at
    assert (len(worker.events_of(events.ForkServerLost)), len(worker.events_of(events.ForkServerRestored))) == (1, 1)


async def test_worker_claims_nothing_until_its_killed_fork_server_is_replaced(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, config=RARE_POLLS) as worker:
        running = await worker.send("wait_for", str(gate))
        await ledger.until_started(running)
        queued = [await worker.send("work") for _ in range(5)]
        replacements = record_new_fork_servers(monkeypatch, signal.SIGSTOP)
        os.kill(server := fork_server_pid(), signal.SIGKILL)
        lost = await worker.wait_for_event(events.ForkServerLost)
        assert (lost.pid, lost.why) == (server, "died")
        queued.append(await worker.send("work"))
        gate.touch()
        assert (await ledger.until_terminal(running))[running]["status"] == "COMPLETED"
        await check_that_tasks_wait_for_a_fork_server(ledger, worker, replacements, *queued)
        assert await ledger.violations([running, *queued]) == []


async def test_worker_claims_nothing_until_its_stopped_fork_server_is_replaced(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "ANSWER_TIMEOUT_S", 0.2)
    gate = tmp_path / "gate"
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=RARE_POLLS, processes=3) as worker,
    ):
        running = await worker.send("wait_for", str(gate))
        await ledger.until_started(running)
        (start,) = await ledger.starts()
        idle = next(child.pid for child in worker.children if child.pid != start.pid)
        replacements = record_new_fork_servers(monkeypatch, signal.SIGSTOP)
        os.kill(server := fork_server_pid(), signal.SIGSTOP)
        os.kill(idle, signal.SIGKILL)
        lost = await worker.wait_for_event(events.ForkServerLost)
        assert (lost.pid, lost.why) == (server, "killed: no answer in time")
        queued = [await worker.send("work") for _ in range(5)]
        gate.touch()
        assert (await ledger.until_terminal(running))[running]["status"] == "COMPLETED"
        await check_that_tasks_wait_for_a_fork_server(ledger, worker, replacements, *queued)
        await worker.until(lambda: len(worker.children) == 3)
        assert await ledger.violations([running, *queued]) == []


async def test_prefetched_task_is_released_without_a_fork_server(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    config = RARE_POLLS | {"prefetch_buffer": 1, "claim_lease_ms": 60_000, "max_claim_renew_age_ms": 120_000}
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=config, processes=1) as worker,
    ):
        running = await worker.send("wait_for", str(gate))
        await ledger.until_started(running)
        prefetched = await worker.send("work")

        async def is_prefetched() -> bool:
            return (await ledger.row(prefetched))["status"] == "CLAIMED"

        async def is_released() -> bool:
            return (await ledger.row(prefetched))["status"] == "PENDING"

        await ledger.until(is_prefetched)
        replacements = record_new_fork_servers(monkeypatch, signal.SIGSTOP)
        os.kill(fork_server_pid(), signal.SIGKILL)
        await ledger.until(is_released)
        await worker.until(lambda: replacements)
        os.kill(replacements[0].pid, signal.SIGCONT)
        gate.touch()
        await ledger.until_terminal(running, prefetched)
        assert await ledger.violations([running, prefetched]) == []
