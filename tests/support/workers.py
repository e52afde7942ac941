"""Workers under test: in this process, so that their events can be awaited, or as `horsies worker` processes."""

# ruff: noqa: ASYNC110  # other processes have to be polled

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
import pytest

from horsies import Horsies, Ok
from horsies.engine import events
from horsies.engine.heartbeat import Health
from horsies.engine.in_flight import Assignments
from horsies.engine.notifications import PROBE_AFTER_S
from horsies.engine.pool.child import Child
from horsies.engine.worker import Worker
from horsies.model.settings import ProjectConfig, WorkerConfig, WorkerSettings
from tests.support import ledger_app as sample
from tests.support.cli import Running, command_server, start_in_new_interpreter
from tests.support.ledger import LIMIT_S, POLL_S

E = TypeVar("E", bound=events.Event)

CHILD_NAME = "horsies-child"
FORK_SERVER_NAME = "horsies-fork"
"""Names that the processes give themselves, as `ps` and `top` show them."""

FILE = Path(sample.__file__)
APP = f"{FILE}:app"
ROOT = FILE.parents[2]


FORK_SERVER_FAULTS: Final = {"": None, "fork server killed": signal.SIGKILL, "fork server stopped": signal.SIGSTOP}
"""What happens to the fork server of a worker before the fault of the test."""

with_fork_server_faults = pytest.mark.parametrize(
    "fork_server_fault", FORK_SERVER_FAULTS.values(), ids=FORK_SERVER_FAULTS
)


def processes_named(name: str, *, of: int) -> list[int]:
    """Pids of the live processes of this parent that gave themselves this name."""
    with suppress(psutil.Error):
        return sorted(child.pid for child in psutil.Process(of).children() if child.name() == name and is_alive(child))
    return []


def disturb_fork_server(worker_pid: int, fault: signal.Signals | None) -> None:
    if fault is not None:
        (server,) = processes_named(FORK_SERVER_NAME, of=worker_pid)
        os.kill(server, fault)


class InProcessWorker:
    """A worker in this process with real children; its events are recorded and can be awaited."""

    def __init__(self, app: Horsies, worker: Worker) -> None:
        self.app = app
        self.worker = worker
        self.events: list[events.Event] = []
        self.pids: set[int] = set()
        """Pids of all children seen at any event, including starting and stopping ones."""
        self._changed = asyncio.Event()
        worker.add_listener(self._on_event)
        self.run = asyncio.create_task(worker.run())
        self.run.add_done_callback(lambda _: self._changed.set())

    @property
    def worker_id(self) -> str:
        return str(self.worker.identity.worker_id)

    @property
    def silent_s(self) -> float:
        """Seconds since the last successful statement was sent."""
        parts = self.worker._assembly
        return time.monotonic() - parts.base.fence.last_success_at if parts else 0.0

    @property
    def health(self) -> Health:
        parts = self.worker._assembly
        assert parts is not None
        return parts.base.health

    @property
    def children(self) -> list[Child]:
        """Children that accept work, ordered by pid."""
        parts = self.worker._assembly
        children = [child for child in parts.tasks.pool.children if child.accepts_work] if parts else []
        return sorted(children, key=lambda child: child.pid)

    @property
    def assignments(self) -> Assignments:
        parts = self.worker._assembly
        assert parts is not None
        return parts.tasks.assignments

    def has_in_flight(self, task_id: str) -> bool:
        """Whether this task is in flight in the worker, regardless of its row."""
        parts = self.worker._assembly
        return parts is not None and any(task.key.task_id == task_id for task in parts.tasks.in_flight)

    async def kill_children(self) -> None:
        """SIGKILL all children that accept work, and wait for their exit."""
        children = self.children
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        for child in children:
            await child.exited.wait()

    async def kill_child_and_replacements(self, pid: int, *, replacements: int) -> None:
        """SIGKILL a child, then its replacements one after the other while they start."""
        parts, killed = self.worker._assembly, {pid}
        assert parts is not None
        os.kill(pid, signal.SIGKILL)

        def starting() -> list[int]:
            return [
                child.pid for child in parts.tasks.pool.children if not child.accepts_work and child.pid not in killed
            ]

        for _ in range(replacements):
            await self.until(starting)
            (started,) = starting()
            killed.add(started)
            os.kill(started, signal.SIGKILL)

    def events_of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition: Callable[[], object], *, within_s: float = LIMIT_S) -> None:
        """Wait until the condition is true; checked after each event and periodically."""
        async with asyncio.timeout(within_s):
            while not condition():
                if self.run.done():
                    self.run.result()
                    raise AssertionError("worker stopped")
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), POLL_S)

    async def wait_for_event(self, kind: type[E], *, within_s: float = LIMIT_S) -> E:
        """Wait for the first event of this kind."""
        await self.until(lambda: self.events_of(kind), within_s=within_s)
        return self.events_of(kind)[0]

    async def stop(self, *, within_s: float = 20.0) -> None:
        if not self.run.done():
            self.worker.stop()
        async with asyncio.timeout(within_s):
            await self.run

    async def stop_now(self) -> None:
        """Stop without waiting for running tasks."""
        self.worker.stop()
        self.worker.stop()
        await asyncio.wait([self.run], timeout=20)
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)

    async def send(self, name: str, *args: object, **options: Any) -> str:
        return await send(self.app, name, *args, **options)

    def _on_event(self, event: events.Event) -> None:
        self.events.append(event)
        if parts := self.worker._assembly:
            self.pids |= {child.pid for child in parts.tasks.pool.children}
        self._changed.set()


@asynccontextmanager
async def worker_in_process(
    url: str,
    *,
    config: dict[str, Any] | None = None,
    probe_after_s: float = PROBE_AFTER_S,
    register: Callable[[Horsies], object] = lambda _: None,
    locator: str = APP,
    **settings: Any,
) -> AsyncGenerator[InProcessWorker]:
    """Run a worker for `ledger_app(url, **config)`; `settings` are `[worker]` settings.

    `register` gets the app before the worker starts, to add hooks that run in this process; `locator` names the app of
    the children. At the end all children must be gone (C7).
    """
    app = sample.ledger_app(url, **config or {})
    register(app)
    defaults: dict[str, Any] = {"processes": 1, "grace_s": 5}
    worker = Worker(
        app.config,
        WorkerConfig.of(app.config, WorkerSettings(**defaults | settings), ProjectConfig(locator=locator)),
        tasks=app.tasks,
        definitions=app.definitions,
        hooks=app.recovery_hooks,
        child_environment=environment_of(url, config),
        probe_after_s=probe_after_s,
    )
    running_worker = InProcessWorker(app, worker)
    try:
        await running_worker.wait_for_event(events.WorkerStarted, within_s=90)
        await running_worker.until(lambda: running_worker.children)
        yield running_worker
    finally:
        await running_worker.stop_now()
        await app.close_async()
    assert groups_alive(running_worker.pids) == [], "C7"


class WorkerProcess:
    """A `horsies worker` process; its log is a file of JSON lines."""

    def __init__(self, popen: Running, log: Path) -> None:
        self.popen = popen
        self.log = log
        self.seen_children: set[int] = set()
        """With its fork server."""

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def log_text(self) -> str:
        return self.log.read_text()

    def children(self) -> list[int]:
        """Pids of its live children."""
        found = processes_named(CHILD_NAME, of=self.pid)
        self.seen_children |= {*found, *processes_named(FORK_SERVER_NAME, of=self.pid)}
        return found

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    async def wait_for_output(self, text: str, *, within_s: float = 20.0) -> None:
        async with asyncio.timeout(within_s):
            while text not in self.log_text:
                assert self.popen.poll() is None, self.log_text
                await asyncio.sleep(POLL_S)

    async def until_gone(self, *, within_s: float = 20.0) -> int:
        """Wait for its exit and return the exit status."""
        async with asyncio.timeout(within_s):
            while (status := self.popen.poll()) is None:
                await asyncio.sleep(POLL_S)
        return status

    async def until_children_are_gone(self, *, within_s: float = 2.0) -> None:
        async with asyncio.timeout(within_s):
            while groups_alive(self.seen_children):
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def worker_process(
    url: str,
    *options: str,
    config: dict[str, Any] | None = None,
    locator: str = APP,
    in_new_interpreter: bool = False,
    **environment: str,
) -> AsyncGenerator[WorkerProcess]:
    """Start `horsies worker` for `ledger_app(url, **config)` and wait until it claims; killed at the end."""
    start = start_in_new_interpreter if in_new_interpreter else command_server().start
    with tempfile.NamedTemporaryFile(prefix="horsies-worker-", suffix=".log") as log:
        popen = start(
            ["worker", locator, "--log-format", "json", *options],
            cwd=ROOT,
            environment={**os.environ, **environment_of(url, config), **environment},
            outputs=(log.fileno(), log.fileno()),
        )
        worker = WorkerProcess(popen, Path(log.name))
        try:
            await worker.wait_for_output("worker started", within_s=60)
            worker.children()
            yield worker
        finally:
            if popen.poll() is None:
                worker.children()
                popen.send_signal(signal.SIGCONT)
                popen.kill()
            await asyncio.to_thread(popen.wait)
            await worker.until_children_are_gone()


def environment_of(url: str, config: dict[str, Any] | None = None) -> dict[str, str]:
    """Environment variables that make `ledger_app.app` in another process the same app."""
    return {sample.URL: url, sample.CONFIG: json.dumps(config or {})}


def groups_alive(pids: set[int]) -> list[int]:
    """Process groups, of those given, that still have a live member."""
    alive: list[int] = []
    for pid in pids:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            continue
        alive.append(pid)
    # A group also exists while its last member is a zombie.
    return sorted(set(alive) & _groups_with_live_members()) if alive else []


def _groups_with_live_members() -> set[int]:
    groups: set[int] = set()
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if is_alive(process):
                groups.add(os.getpgid(process.pid))
    return groups


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie does not: the init process of a container may reap orphans late or never."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_exits(processes: Sequence[psutil.Process], *, within_s: float) -> list[psutil.Process]:
    """Wait until these processes have ended; returns those that have not."""
    deadline = time.monotonic() + within_s
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return alive


async def send(app: Horsies, name: str, *args: object, **options: Any) -> str:
    """Send a task and return its id."""
    task = app.tasks[name]
    sent = await (task.with_options(**options) if options else task).send_async(*args)
    assert isinstance(sent, Ok), sent
    return sent.value.task_id
