"""`horsies demo` and `horsies tui --demo`: the sample app on a temporary database, with two workers; one is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import tomli_w

from horsies.config import LoadedSettings
from horsies.embedded import EmbeddedServer
from horsies.errors import HorsiesError
from horsies.model.events import EventKind
from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.settings import TuiConfig
from horsies.model.task import TaskStatus
from horsies.store.endpoint import open_for_migration
from horsies.store.migrate import migrate
from horsies_ops.actions.plan import Selector
from horsies_ops.ops import Ops, open_ops
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.overview import Overview
from horsies_ops.reads.workers import WorkerRow
from horsies_ops.reads.workflows import WorkflowFilter

STATUS_INTERVAL_S: Final = 2.0
KILL_AFTER_S: Final = 3.0
REPLACE_AFTER_S: Final = 40.0
OPERATOR_INTERVAL_S: Final = 5.0
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 15.0
SEND_INTERVAL_S: Final = 0.25
WORKFLOW_INTERVAL_S: Final = 4.0
KILLED_TASKS: Final = 3
"""How many long tasks the second worker must be running before it is killed."""
MAX_LONG_TASKS: Final = 12
MAX_OCCUPY_CHECKS: Final = 24
"""How often to check whether it runs them; its processes may be busy with other tasks at first."""
DELAYED_TASKS: Final = 20
PAUSED_RUNS: Final = 2
KILLED_CAPTION: Final = "worker 2 killed {{age}} ago while it ran {held} tasks: watch Stale (4)"
ENV_PREFIXES: Final = ("HORSIES_", "DATABASE_URL")

# The shortest allowed values, so that the killed worker is detected while the user is still watching.
RECOVERY: Final = {
    "check_interval_ms": 1000,
    "runner_heartbeat_interval_ms": 1000,
    "claimer_heartbeat_interval_ms": 1000,
    "running_stale_threshold_ms": 4000,
    "claimed_stale_threshold_ms": 3000,
    "worker_stale_threshold_ms": 4000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStatus:
    """State of the system and the tasks recovered so far."""

    elapsed_s: float
    overview: Overview
    recovered: int


async def run_demo(
    setup: DemoSetup,
    settings: LoadedSettings,
    *,
    seconds: float,
    processes: int,
    on_message: Callable[[str], None],
    on_status: Callable[[DemoStatus], None],
) -> DemoStatus:
    """Run the demo for `seconds`, reporting its status regularly; returns the last status."""
    loop = asyncio.get_running_loop()

    def report_kill(pid: int, held: int) -> None:
        tasks = f"which ran {held} tasks; the first one will recover them"
        on_message(f"killed the second worker (kill -9, pid {pid}), {tasks}")

    async with _running_system(setup, settings, processes, report_kill) as ops:
        started = loop.time()
        while (elapsed_s := loop.time() - started) < seconds:
            on_status(await _read_status(ops, elapsed_s))
            await asyncio.sleep(min(STATUS_INTERVAL_S, max(0.0, seconds - elapsed_s)))
        return await _read_status(ops, loop.time() - started)


async def run_demo_with_tui(
    setup: DemoSetup,
    settings: LoadedSettings,
    *,
    processes: int,
    on_message: Callable[[str], None],
    arguments: Sequence[str] = (),
) -> tuple[int, DemoStatus]:
    """Run `horsies tui` with these arguments over the demo; returns its exit code and the last status."""
    loop = asyncio.get_running_loop()
    setup.show_caption(f"two workers run the sample app; worker 2 is killed in {KILL_AFTER_S:.0f} s")
    # The TUI starts with the traffic, so that the user sees the kill.
    async with _running_system(
        setup, settings, processes, lambda _, held: setup.show_caption(KILLED_CAPTION.format(held=held))
    ) as ops:
        started = loop.time()
        async with _in_background(_show_recoveries(setup, ops)):
            command = setup.command("tui", *arguments, "--caption-file", str(setup.caption_file))
            tui = await asyncio.create_subprocess_exec(*command, env=setup.environment)
            try:
                code = await tui.wait()
            finally:
                if tui.returncode is None:
                    tui.terminate()
                    await tui.wait()
        on_message("stopping the workers and the database …")
        return code, await _read_status(ops, loop.time() - started)


async def _show_recoveries(setup: DemoSetup, ops: Ops) -> None:
    """Show how many tasks were recovered whenever that changes; failed reads are repeated."""
    shown = 0
    while True:
        await asyncio.sleep(1.0)
        with contextlib.suppress(HorsiesError):
            recovered = len(await ops.events(kinds=(EventKind.TASK_RECOVERED,), limit=1000))
            if recovered > shown:
                shown, tasks = recovered, "1 task" if recovered == 1 else f"{recovered} tasks"
                setup.show_caption(f"worker 1 recovered {tasks}: see Dash (1) and Events (8); q ends the demo")


@asynccontextmanager
async def _running_system(
    setup: DemoSetup, settings: LoadedSettings, processes: int, on_kill: Callable[[int, int], None]
) -> AsyncGenerator[Ops]:
    """Run two workers with traffic and an operator; the second worker is killed and replaced again and again.

    `on_kill` receives its pid and the number of tasks it ran.
    """
    async with open_for_migration(settings.app.broker) as database:
        await migrate(database)
    async with open_ops(settings.app, actor="demo") as ops:
        with setup.worker(processes=processes):
            async with _in_background(_kill_workers(setup, ops, on_kill)):
                await _wait_for_workers(ops, count=2)
                async with _in_background(_send_traffic(), _act_as_operator(ops)):
                    yield ops
                # Imported here: the app reads its settings on import, and they must be the demo's.
                from horsies import sample

                await sample.app.close_async()


@asynccontextmanager
async def _in_background(*parts: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run these until the block exits."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_for_workers(ops: Ops, *, count: int) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while (await ops.overview()).workers.get("running", 0) < count:  # noqa: ASYNC110  # state of other processes
            await asyncio.sleep(0.1)


async def _kill_workers(setup: DemoSetup, ops: Ops, on_kill: Callable[[int, int], None]) -> None:
    """Start a second worker, kill it while it runs tasks, and replace it when the first one has recovered them."""
    while True:
        with setup.worker(processes=KILLED_TASKS + 1) as victim:
            await _wait_for_workers(ops, count=2)
            await _occupy_worker(ops, victim.pid)
            await asyncio.sleep(KILL_AFTER_S)
            held = (await _worker(ops, victim.pid)).tasks_running
            # Not terminate(): a worker that shuts down releases its tasks, and nothing would need recovery.
            victim.kill()
            on_kill(victim.pid, held)
            await asyncio.sleep(REPLACE_AFTER_S)


async def _occupy_worker(ops: Ops, pid: int) -> None:
    """Send long tasks until this worker runs several: these are the tasks that recovery has to retry."""
    from horsies import sample

    long_tasks = TaskFilter(names=(sample.import_catalogue.task_name,), statuses=(TaskStatus.RUNNING,))
    for check in range(MAX_OCCUPY_CHECKS):
        page = await ops.list_tasks(replace(long_tasks, worker_id=str((await _worker(ops, pid)).worker_id)))
        if len(page.tasks) >= KILLED_TASKS:
            return
        if check < MAX_LONG_TASKS:
            await sample.import_catalogue.send_async(pages=10)  # longer than all checks and `KILL_AFTER_S`
        await asyncio.sleep(0.2)  # until a worker has claimed it


async def _worker(ops: Ops, pid: int) -> WorkerRow:
    return next(worker for worker in await ops.list_active_workers() if worker.pid == pid)


async def _act_as_operator(ops: Ops) -> None:
    """Cancel a delayed task and all but the newest paused runs from time to time; failed actions are repeated."""
    reason = ActionOptions(limit=1, reason="not needed any more")
    while True:
        await asyncio.sleep(OPERATOR_INTERVAL_S)
        with contextlib.suppress(HorsiesError):
            delayed = Selector.matching(TaskFilter(names=("sample.make_report",), due_later=True))
            planned = await ops.plan(Action.CANCEL, delayed, reason)
            if planned.targets:
                await ops.apply(planned)
            paused = await ops.list_workflows(WorkflowFilter(statuses=("PAUSED",)))
            for run in paused.workflows[PAUSED_RUNS:]:
                await ops.cancel_workflow(run.id, reason="invalid address")


async def _read_status(ops: Ops, elapsed_s: float) -> DemoStatus:
    recovered = await ops.events(kinds=(EventKind.TASK_RECOVERED,), limit=1000)
    return DemoStatus(
        elapsed_s=elapsed_s,
        overview=await ops.overview(),
        recovered=len(recovered),
    )


# Traffic


async def _send_traffic() -> None:
    """Send tasks in small bursts and start a workflow from time to time."""
    from horsies import sample

    workflows = (sample.gallery, sample.rate, sample.order, sample.newsletter, sample.campaign)
    for _ in range(DELAYED_TASKS):
        await sample.make_report.with_options(delay=3600).send_async()
    workflows_started = 0
    started = asyncio.get_running_loop().time()
    while True:
        for send in random.choices(_sends(), weights=_WEIGHTS, k=6):  # noqa: S311  # not used for security
            await send()
        if asyncio.get_running_loop().time() - started >= workflows_started * WORKFLOW_INTERVAL_S:
            await workflows[workflows_started % len(workflows)].start_async()
            workflows_started += 1
        await asyncio.sleep(SEND_INTERVAL_S)


def _sends() -> list[Callable[[], Awaitable[Any]]]:
    """Return the mix of sends: fast and slow tasks, failures, retries, a crash and an expiry."""
    from horsies import sample

    soon = datetime.now(UTC) + timedelta(seconds=1)
    return [
        lambda: sample.send_email.send_async("ada@example.org", "Hello"),
        lambda: sample.resize.send_async(sample.Size(width=4000, height=3000)),
        lambda: sample.fetch_rate.send_async("EUR", latency_s=0.4),
        lambda: sample.send_email.send_async("nobody", "Hello"),
        lambda: sample.charge_card.send_async(Decimal("9.99"), succeeds_on_attempt=2),
        sample.crash.send_async,
        lambda: sample.make_report.send_async(seconds=2.0),
        lambda: sample.resize.with_options(good_until=soon, delay=2).send_async(sample.Size(width=1, height=1)),
    ]


_WEIGHTS: Final = (30, 20, 15, 5, 6, 2, 3, 3)
"""Of `_sends()`, in the same order."""


# Temporary database and worker processes


@contextmanager
def demo_setup(tui: TuiConfig) -> Generator[DemoSetup]:
    """Yield a temporary folder configured for an embedded server; it is deleted afterwards."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="horsies-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(EmbeddedServer(folder / "embedded").stop, force=True)
        # If we are root, the server runs as another user, who must be able to enter the folder.
        folder.chmod(0o755)
        setup = DemoSetup(folder)
        config = {
            "app": {"locator": "horsies.sample:app"},
            "broker": {"database_url": f"embedded://{folder}/embedded"},
            "recovery": RECOVERY,
            "tui": tui.model_dump(exclude_defaults=True) | {"env": "demo"},
        }
        setup.config.write_text(tomli_w.dumps(config), encoding="utf-8")
        with contextlib.chdir(folder):
            yield setup


@dataclass(frozen=True, slots=True)
class DemoSetup:
    """The demo's own folder and configuration; the user's horsies settings are ignored."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "horsies.toml"

    @property
    def caption_file(self) -> Path:
        return self.folder / "caption.txt"

    def show_caption(self, text: str) -> None:
        """Show this line below the tabs of the TUI; `{age}` is the time since then."""
        new = self.caption_file.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.caption_file)

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    @property
    def environment(self) -> dict[str, str]:
        """The environment without variables that would override the demo's configuration."""
        return {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIXES)}

    def settings(self) -> LoadedSettings:
        """Load the demo's settings and make them those of this process."""
        from horsies.config import load_settings

        for name in [name for name in os.environ if name.startswith(ENV_PREFIXES)]:
            del os.environ[name]
        os.environ["HORSIES_CONFIG"] = str(self.config)
        return load_settings(self.config)

    @contextmanager
    def worker(self, *, processes: int) -> Generator[subprocess.Popen[bytes]]:
        """Run `horsies worker`; it is stopped gracefully when the block exits."""
        command = self.command("worker", "--processes", str(processes), "--grace-s", "1")
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()  # no effect on the worker that was killed
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def command(self, *arguments: str) -> list[str]:
        """Return a `horsies` command line that uses this Python installation and the demo's configuration."""
        return [sys.executable, "-m", "horsies_ops.cli", *arguments, "--config", str(self.config)]
