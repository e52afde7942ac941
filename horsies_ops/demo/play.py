"""The demo from beginning to end: two workers, traffic, the death of one of them, and what became of its work."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.model.events import EventKind
from horsies.store.migrate import migrate
from horsies.store.open import open_for_migration
from horsies_ops.demo.traffic import send_traffic
from horsies_ops.ops import open_ops

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from horsies.config import LoadedSettings
    from horsies_ops.demo.stage import Stage
    from horsies_ops.ops import Ops
    from horsies_ops.reads.overview import Overview

LOOK_EVERY_S: Final = 2.0
DEATH_AFTER_S: Final = 4.0
UP_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How things stand, and how many tasks were recovered so far."""

    elapsed_s: float
    overview: Overview
    recovered: int
    recovered_ids: tuple[str, ...]


async def play(
    stage: Stage,
    settings: LoadedSettings,
    *,
    seconds: float,
    processes: int,
    tell: Callable[[str], None],
    show: Callable[[Seen], None],
) -> Seen:
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


async def watch(stage: Stage, settings: LoadedSettings, *, processes: int) -> int:
    """The same under the screens, until they are left; returns how they ended."""
    async with open_for_migration(settings.app.broker) as database:
        await migrate(database)
    async with open_ops(settings.app) as ops:
        with stage.worker(processes=processes), stage.worker(processes=2) as victim:
            await _until_up(ops, workers=2)
            killing = asyncio.create_task(_kill(victim, after_s=DEATH_AFTER_S, tell=lambda _: None))
            async with _traffic():
                screens = subprocess.Popen(stage.horsies("tui"), env=stage.environment)  # noqa: ASYNC220  # forks once
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


async def _look(ops: Ops, elapsed_s: float) -> Seen:
    recovered = await ops.events(kinds=(EventKind.TASK_RECOVERED,), limit=1000)
    return Seen(
        elapsed_s=elapsed_s,
        overview=await ops.overview(),
        recovered=len(recovered),
        recovered_ids=tuple(str(event.task_id) for event in recovered),
    )
