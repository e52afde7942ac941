"""`horsies demo`: the sample app at work on a database of its own, with a worker that is killed on the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import tomli_w

from horsies.config import LoadedSettings
from horsies.model.events import EventKind
from horsies.store.endpoint import open_for_migration
from horsies.store.migrate import migrate
from horsies_ops.ops import Ops, open_ops
from horsies_ops.reads.overview import Overview

# What the demo sends: a mix in which something is always slow, fails, is retried, expires or crashes.

PAUSE_S: Final = 0.25
FLOWS_EVERY_S: Final = 4.0
LONG_TASKS: Final = 3


async def send_traffic(until: asyncio.Event) -> None:
    """Send tasks a few at a time, and start workflows now and then, until told to stop."""
    # Imported here: the app reads the settings of the demo, which are not there before.
    from horsies import sample

    flows = (sample.gallery, sample.rate, sample.order, sample.newsletter)
    # Long enough to be running when a worker is killed: this is what will have to be recovered.
    for _ in range(LONG_TASKS):
        await sample.import_catalogue.send_async(pages=8)
    started = 0
    begun_at = asyncio.get_running_loop().time()
    while not until.is_set():
        for send in random.choices(_sends(), weights=_WEIGHTS, k=6):  # noqa: S311  # a mix, no secret
            await send()
        if asyncio.get_running_loop().time() - begun_at >= started * FLOWS_EVERY_S:
            await flows[started % len(flows)].start_async()
            started += 1
        await _wait(until, PAUSE_S)
    await sample.app.close_async()


_WEIGHTS: Final = (30, 20, 15, 5, 6, 2, 3, 3)


def _sends() -> list[Callable[[], Awaitable[Any]]]:
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


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


# The demo from beginning to end: two workers, traffic, the death of one of them, and what became of its work.

LOOK_EVERY_S: Final = 2.0
DEATH_AFTER_S: Final = 4.0
UP_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStatus:
    """How things stand, and how many tasks were recovered so far."""

    elapsed_s: float
    overview: Overview
    recovered: int
    recovered_ids: tuple[str, ...]


async def run_demo(
    stage: DemoSetup,
    settings: LoadedSettings,
    *,
    seconds: float,
    processes: int,
    tell: Callable[[str], None],
    show: Callable[[DemoStatus], None],
) -> DemoStatus:
    """Run the demo for so long and show how it goes; returns the last look."""
    async with open_for_migration(settings.app.broker) as database:
        await migrate(database)
    loop = asyncio.get_running_loop()
    async with open_ops(settings.app) as ops:
        with stage.worker(processes=processes), stage.worker(processes=2) as victim:
            await _until_up(ops, workers=2)
            async with _traffic():
                began = loop.time()
                killing = asyncio.create_task(_kill(victim, after_s=DEATH_AFTER_S, tell=tell))
                while (elapsed_s := loop.time() - began) < seconds:
                    show(await _look(ops, elapsed_s))
                    await asyncio.sleep(min(LOOK_EVERY_S, max(0.0, seconds - elapsed_s)))
                await killing
                return await _look(ops, loop.time() - began)


async def run_demo_with_tui(stage: DemoSetup, settings: LoadedSettings, *, processes: int) -> int:
    """The same under the screens, until they are left; returns how they ended."""
    async with open_for_migration(settings.app.broker) as database:
        await migrate(database)
    async with open_ops(settings.app) as ops:
        with stage.worker(processes=processes), stage.worker(processes=2) as victim:
            await _until_up(ops, workers=2)
            killing = asyncio.create_task(_kill(victim, after_s=DEATH_AFTER_S, tell=lambda _: None))
            async with _traffic():
                screens = subprocess.Popen(stage.command("tui"), env=stage.environment)  # noqa: ASYNC220  # forks once
                status = await asyncio.to_thread(screens.wait)
            killing.cancel()
            return status


async def _until_up(ops: Ops, *, workers: int) -> None:
    """Until so many workers take work; a machine that is slow to start them shall not spoil what comes."""
    async with asyncio.timeout(UP_WITHIN_S):
        while (await ops.overview()).workers.get("running", 0) < workers:  # noqa: ASYNC110  # other processes set no event of ours
            await asyncio.sleep(0.1)


async def _kill(victim: subprocess.Popen[bytes], *, after_s: float, tell: Callable[[str], None]) -> None:
    await asyncio.sleep(after_s)
    victim.kill()
    tell(f"kill -9 of the second worker, pid {victim.pid}; the first will miss its beats and recover its tasks")


@asynccontextmanager
async def _traffic() -> AsyncGenerator[None]:
    enough = asyncio.Event()
    sending = asyncio.create_task(send_traffic(enough))
    try:
        yield
    finally:
        enough.set()
        await sending


async def _look(ops: Ops, elapsed_s: float) -> DemoStatus:
    recovered = await ops.events(kinds=(EventKind.TASK_RECOVERED,), limit=1000)
    return DemoStatus(
        elapsed_s=elapsed_s,
        overview=await ops.overview(),
        recovered=len(recovered),
        recovered_ids=tuple(str(event.task_id) for event in recovered),
    )


# Where the demo happens: a folder with settings and an embedded server, and workers as processes of their own.

STOP_WITHIN_S: Final = 15.0
ENV_PREFIXES: Final = ("HORSIES_", "DATABASE_URL")

# As quick as the settings allow, so that a killed worker is missed while somebody is still looking.
RECOVERY: Final = {
    "check_interval_ms": 1000,
    "runner_heartbeat_interval_ms": 1000,
    "claimer_heartbeat_interval_ms": 1000,
    "running_stale_threshold_ms": 4000,
    "claimed_stale_threshold_ms": 3000,
    "worker_stale_threshold_ms": 4000,
}


@dataclass(frozen=True, slots=True)
class DemoSetup:
    """A folder of the demo's own; whatever settings its user has do not count."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "horsies.toml"

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIXES)}

    def settings(self) -> LoadedSettings:
        """The settings of the demo, in this process from now on."""
        from horsies.config import load_settings

        for name in [name for name in os.environ if name.startswith(ENV_PREFIXES)]:
            del os.environ[name]
        os.environ["HORSIES_CONFIG"] = str(self.config)
        return load_settings(self.config)

    @contextmanager
    def worker(self, *, processes: int) -> Generator[subprocess.Popen[bytes]]:
        """`horsies worker` on this stage; stopped gracefully at the end unless it is gone already."""
        command = self.command("worker", "--processes", str(processes), "--grace-s", "1")
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def command(self, *arguments: str) -> list[str]:
        """A command of this very installation."""
        return [sys.executable, "-m", "horsies_ops.cli", *arguments, "--config", str(self.config)]


@contextmanager
def demo_setup() -> Generator[DemoSetup]:
    """A stage with its server running; all of it is gone again afterwards."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="horsies-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # As root the server runs as another user, who must be able to enter.
        folder.chmod(0o755)
        made = DemoSetup(folder)
        written = {
            "app": {"locator": "horsies.sample:app"},
            "broker": {"database_url": f"embedded://{folder}/embedded"},
            "recovery": RECOVERY,
            "tui": {"env": "demo"},
        }
        made.config.write_text(tomli_w.dumps(written), encoding="utf-8")
        with contextlib.chdir(folder):
            yield made
