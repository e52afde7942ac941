"""`python -m bench.screens`: what the screens cost in a storm, under a key, and when nothing happens.

The list of tasks runs in this process, drawn for a terminal that counts its bytes, over a server with a hundred
thousand tasks. The storm is another process, so the processor time of this one is that of the screens.
"""

# ruff: noqa: ASYNC110  # the screens set no events for us

from __future__ import annotations

import argparse
import asyncio
import os
import pty
import select
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import psutil
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

from bench.machine import load, look
from bench.server import connected, durable_server, make_tables
from horsies.model.settings import AppConfig, PostgresConfig, TuiConfig
from horsies_ops.ops import open_ops
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.app import HorsiesApp
from horsies_tui.data.source import DataSource
from horsies_tui.keys import Place
from horsies_tui.screens.tasks.screen import TasksScreen

SIZE = (120, 36)
STARTS = 3
"""What else the machine does makes a start slower, never faster."""
LISTS = ("list_tasks", "tasks_by_id")
WORKED_OFF_S = 0.2
"""Until then everything that a key sets off has happened; nothing else does meanwhile."""
NOTHING = TaskFilter(names=("no.such.task",))
FILL = """
    INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueued_at, enqueue_sha, status, terminal_at)
    SELECT (lpad(to_hex((extract(epoch FROM sent) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0')
            || '8' || lpad(to_hex(n), 15, '0'))::uuid,
           'mail.send', 'mail', sent, sent, '', 'COMPLETED', sent
      FROM (SELECT n, now() - interval '3 days' + n * interval '100 ms' AS sent
              FROM generate_series(1, $1::int) AS n) AS past
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured, and what it must not exceed."""

    name: str
    value: float
    unit: str
    most: float | None = None

    def __str__(self) -> str:
        held = "" if self.most is None else f"≤ {self.most:g}"
        return f"| {self.name} | {self.unit} | {self.value:,.2f} | {held} |"


class Counted(HeadlessDriver):
    """A terminal that takes everything, counts it, and notes the processor time at which it was last painted anew."""

    taken = 0
    painted: float | None = None

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        Counted.taken += len(data.encode())
        if Counted.painted is None and data.endswith("H"):
            # A frame ends by putting the cursor back to its place.
            Counted.painted = time.process_time()


class Asked:
    """A source, and how often it was asked for what."""

    def __init__(self, source: DataSource) -> None:
        self._source = source
        self.times: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.times[name] += 1
        return getattr(self._source, name)


class Screens:
    """The app over a database; `asked` is there once it is connected."""

    def __init__(self, url: str) -> None:
        self.asked = Counter[str]()
        self._settings = AppConfig(broker=PostgresConfig.model_validate({"database_url": url}))
        self.app = HorsiesApp(self._open, TuiConfig(), database_name="bench", start=Place.TASKS)
        self.app.driver_class = Counted

    @asynccontextmanager
    async def _open(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        async with open_ops(self._settings, read_only=read_only, via="tui", application_name="horsies-tui") as ops:
            asked = Asked(cast("DataSource", ops))
            self.asked = asked.times
            yield cast("DataSource", asked)

    @property
    def tasks(self) -> TasksScreen:
        return cast("TasksScreen", self.app.screen_stack[0])


async def fill(url: str, tasks: int) -> None:
    async with connected(url) as connection:
        await connection.execute(FILL, tasks)
        await connection.execute("ANALYZE horsies_tasks")


async def measure(url: str, *, seconds: float, presses: int) -> list[Figure]:
    """Every figure of the running app; the first paint is measured from outside."""
    screens, figures = Screens(url), list[Figure]()

    async def drive(_: Pilot[object]) -> None:
        await _until(lambda: bool(screens.tasks.list.rows))
        figures.extend(await _in_a_storm(screens, url, seconds))
        figures.extend(await _under_a_key(screens, "j", presses))
        figures.extend(await _under_a_key(screens, "pagedown", presses))
        figures.extend(await _when_nothing_happens(screens, seconds))
        screens.app.exit()

    await screens.app.run_async(size=SIZE, auto_pilot=drive)
    return figures


async def _in_a_storm(screens: Screens, url: str, seconds: float) -> list[Figure]:
    storm = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.storm", url, str(seconds + 4))
    await asyncio.sleep(2)  # until it blows
    screens.asked.clear()
    began, spent = time.monotonic(), time.process_time()
    lags = await _lags(seconds)
    passed, spent = time.monotonic() - began, time.process_time() - spent
    lists = sum(screens.asked[name] for name in LISTS) / passed
    await storm.wait()
    return [
        Figure(name="storm of 500/s: questions for the list", value=lists, unit="a second", most=4),
        Figure(name="storm of 500/s: share of a core", value=100 * spent / passed, unit="%", most=25),
        Figure(name="storm of 500/s: loop lag p99", value=1000 * lags, unit="ms", most=100),
    ]


async def _lags(seconds: float) -> float:
    """How late the loop comes to what is due, as late as one time in a hundred."""
    late: list[float] = []
    ends = time.monotonic() + seconds
    while (now := time.monotonic()) < ends:
        await asyncio.sleep(0.01)
        late.append(time.monotonic() - now - 0.01)
    return statistics.quantiles(late, n=100)[98]


async def _under_a_key(screens: Screens, key: str, presses: int) -> list[Figure]:
    """Processor time from a key to the list painted, and to the end of all that it asks for and paints thereupon."""
    await asyncio.sleep(1)
    to_paint: list[float] = []
    to_end: list[float] = []
    for _ in range(presses):
        Counted.painted, spent = None, time.process_time()
        screens.app.simulate_key(key)
        await asyncio.sleep(WORKED_OFF_S)
        to_end.append(time.process_time() - spent)
        if Counted.painted is not None:
            to_paint.append(Counted.painted - spent)
    return [
        Figure(name=f"{key}: to paint", value=1000 * statistics.median(to_paint), unit="ms", most=20),
        Figure(name=f"{key}: to paint, p95", value=1000 * statistics.quantiles(to_paint, n=20)[18], unit="ms"),
        Figure(name=f"{key}: with all that follows", value=1000 * statistics.median(to_end), unit="ms"),
    ]


async def _when_nothing_happens(screens: Screens, seconds: float) -> list[Figure]:
    screens.tasks.apply_filter(NOTHING)
    await _until(lambda: not screens.tasks.list.rows)
    await _quiet()
    before, spent = Counted.taken, time.process_time()
    await asyncio.sleep(seconds)
    return [
        Figure(name="nothing changes: sent to the terminal", value=(Counted.taken - before) / seconds, unit="bytes/s"),
        Figure(name="nothing changes: share of a core", value=100 * (time.process_time() - spent) / seconds, unit="%"),
    ]


async def _quiet(seconds: float = 3.0) -> None:
    """Until nothing has been drawn for so long: what was asked for before has been answered."""
    taken = -1
    while taken != (taken := Counted.taken):
        await asyncio.sleep(seconds)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


def first_paint(url: str) -> list[Figure]:
    """The start of the command at its quickest: how long it took, and how much of a processor."""
    starts = [_first_paint(url) for _ in range(STARTS)]
    return [
        Figure(name="first paint", value=min(passed for passed, _ in starts), unit="s", most=1),
        Figure(name="first paint: processor time", value=min(spent for _, spent in starts), unit="s"),
    ]


def _first_paint(url: str) -> tuple[float, float]:
    """From the start of the command to the first thing drawn on its terminal."""
    end, other_end = pty.openpty()
    command = [sys.executable, "-m", "horsies_ops.cli", "tui", "--database-url", url]
    began = time.monotonic()
    program = subprocess.Popen(command, stdin=other_end, stdout=other_end, stderr=other_end, start_new_session=True)
    os.close(other_end)
    drawn = b""
    while b"horsies" not in drawn and select.select([end], [], [], 30)[0]:
        drawn += os.read(end, 65_536)
    passed, times = time.monotonic() - began, psutil.Process(program.pid).cpu_times()
    program.send_signal(signal.SIGKILL)
    program.wait()
    os.close(end)
    return passed, times.user + times.system


async def run(url: str, *, tasks: int, seconds: float, presses: int) -> None:
    before = load()
    await make_tables(url)
    await fill(url, tasks)
    paint = await asyncio.to_thread(first_paint, url)
    figures = [*await measure(url, seconds=seconds, presses=presses), *paint]
    machine = await look(url, load_before=before)
    print(f"{machine.date}, {tasks:,} tasks, {machine.processors} processors, Python {machine.python}, load", end=" ")
    print(f"{machine.load_before} before and {machine.load_after} after.\n")
    print("| what | unit | measured | at most |\n|---|---|---|---|")
    print("\n".join(map(str, figures)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.screens", description=__doc__)
    parser.add_argument("--small", action="store_true", help="little of everything, to see that it works")
    options = parser.parse_args()
    with durable_server() as url:
        if options.small:
            asyncio.run(run(url, tasks=1_000, seconds=1, presses=5))
        else:
            asyncio.run(run(url, tasks=100_000, seconds=10, presses=100))


if __name__ == "__main__":
    main()
