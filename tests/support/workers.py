"""Workers under test: in this process, so that their events can be awaited, or as `horsies worker`."""

# ruff: noqa: ASYNC110  # other processes set no events

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from horsies import Horsies, Ok
from horsies.engine.heartbeat import Health
from horsies.engine.in_flight import Assignments
from horsies.engine.notifications import PROBE_AFTER_S
from horsies.engine.pool.child import Child
from horsies.engine.worker import Worker
from horsies.model import events
from horsies.model.settings import ProjectConfig, WorkerConfig, WorkerSettings
from tests.support import ledger_app as sample
from tests.support.cli import Running, command_server, start_in_new_interpreter
from tests.support.ledger import POLL_S

E = TypeVar("E", bound=events.Event)

FILE = Path(sample.__file__)
APP = f"{FILE}:app"
ROOT = FILE.parents[2]


class InProcessWorker:
    """A worker in this process. Its children are real, its events are kept and awaited."""

    def __init__(self, app: Horsies, worker: Worker) -> None:
        self.app = app
        self.worker = worker
        self.events: list[events.Event] = []
        self.pids: set[int] = set()
        """Of every child that lived at any event, also while it came up or left."""
        self._changed = asyncio.Event()
        worker.add_listener(self._hear)
        self.run = asyncio.create_task(worker.run())
        self.run.add_done_callback(lambda _: self._changed.set())

    @property
    def worker_id(self) -> str:
        return str(self.worker.identity.worker_id)

    @property
    def silent_s(self) -> float:
        """How long ago the last statement that succeeded was sent."""
        parts = self.worker._parts
        return parts.fence.silent_s if parts else 0.0

    @property
    def health(self) -> Health:
        parts = self.worker._parts
        assert parts is not None
        return parts.health

    @property
    def children(self) -> list[Child]:
        """Those that take work, by pid."""
        parts = self.worker._parts
        able = [child for child in parts.pool.children if child.accepts_work] if parts else []
        return sorted(able, key=lambda child: child.pid)

    @property
    def hands(self) -> Assignments:
        parts = self.worker._parts
        assert parts is not None
        return parts.assignments

    def holds(self, task_id: str) -> bool:
        """Whether it has this task in its hands, whatever the table says."""
        parts = self.worker._parts
        return parts is not None and any(held.key.task_id == task_id for held in parts.in_flight)

    async def kill_children(self) -> None:
        """All that take work now, as a fault would; returns when they are gone."""
        children = self.children
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        for child in children:
            await child.exited.wait()

    def events_of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, holds: Callable[[], object], *, within_s: float = 10.0) -> None:
        """Wait until it holds, looking after each event and often in between."""
        async with asyncio.timeout(within_s):
            while not holds():
                if self.run.done():
                    self.run.result()
                    raise AssertionError("the worker has ended")
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), POLL_S)

    async def wait_for_event(self, kind: type[E], *, within_s: float = 10.0) -> E:
        """The first event of this kind, awaited."""
        await self.until(lambda: self.events_of(kind), within_s=within_s)
        return self.events_of(kind)[0]

    async def stop(self, *, within_s: float = 20.0) -> None:
        if not self.run.done():
            self.worker.stop()
        async with asyncio.timeout(within_s):
            await self.run

    async def stop_now(self) -> None:
        """At once, whatever it is doing."""
        self.worker.stop()
        self.worker.stop()
        await asyncio.wait([self.run], timeout=20)
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)

    async def send(self, name: str, *args: object, **options: Any) -> str:
        return await send(self.app, name, *args, **options)

    def _hear(self, event: events.Event) -> None:
        self.events.append(event)
        if parts := self.worker._parts:
            self.pids |= {child.pid for child in parts.pool.children}
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
    """A worker for `ledger_app(url, **config)`; `settings` are of `[worker]`. C7 is looked at when it has ended.

    `register` is given the app before the worker starts, for hooks that run in this process; `locator` is where its
    children find theirs.
    """
    app = sample.ledger_app(url, **config or {})
    register(app)
    usual: dict[str, Any] = {"processes": 2, "grace_s": 5}
    worker = Worker(
        app.config,
        WorkerConfig.of(app.config, WorkerSettings(**usual | settings), ProjectConfig(locator=locator)),
        is_async=lambda name: name in app.tasks and app.tasks[name].definition.is_async,
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
    """`horsies worker` as a process of its own; its log is a file of JSON lines."""

    def __init__(self, popen: Running, log: Path) -> None:
        self.popen = popen
        self.log = log
        self.seen_children: set[int] = set()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def log_text(self) -> str:
        return self.log.read_text()

    def children(self) -> list[int]:
        """The pids of its children that are at work."""
        try:
            found = {
                child.pid
                for child in psutil.Process(self.pid).children()
                if "horsies.engine.child" in " ".join(child.cmdline())
            }
        except psutil.Error:
            found = set[int]()
        self.seen_children |= found
        return sorted(found)

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    async def until_said(self, text: str, *, within_s: float = 20.0) -> None:
        async with asyncio.timeout(within_s):
            while text not in self.log_text:
                assert self.popen.poll() is None, self.log_text
                await asyncio.sleep(POLL_S)

    async def until_gone(self, *, within_s: float = 20.0) -> int:
        """Its exit status."""
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
    """`horsies worker` on `ledger_app(url, **config)`, ready to claim; ended by its pid if it still lives."""
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
            await worker.until_said("worker started", within_s=60)
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
    """What makes `ledger_app.app` in another process the same app."""
    return {sample.URL: url, sample.CONFIG: json.dumps(config or {})}


def groups_alive(pids: set[int]) -> list[int]:
    """Which of these process groups still have a live member."""
    alive: list[int] = []
    for pid in pids:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            continue
        alive.append(pid)
    return alive


async def send(app: Horsies, name: str, *args: object, **options: Any) -> str:
    """The id of a task that was accepted."""
    task = app.tasks[name]
    sent = await (task.with_options(**options) if options else task).send_async(*args)
    assert isinstance(sent, Ok), sent
    return sent.value.task_id
