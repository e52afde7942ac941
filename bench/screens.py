"""`python -m bench.screens`: the cost of the TUI during a burst of changes, per key press, and when idle.

The task list runs in this process with a terminal that counts bytes, on a server with 100,000 tasks. The changes come
from another process, so the CPU time of this process is that of the TUI.
"""

# ruff: noqa: ASYNC110  # polls the state of the screens

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

from bench.machine import describe_machine, load
from bench.server import connect, create_tables, durable_server
from horsies.model.settings import AppConfig, PostgresConfig, TuiConfig
from horsies_ops.ops import open_ops
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.source import DataSource
from horsies_tui.app import HorsiesApp
from horsies_tui.keys import ScreenId
from horsies_tui.screens.tasks.screen import TasksScreen

SIZE = (120, 36)
LIST_QUERIES = ("list_tasks", "tasks_by_id")
KEY_SETTLE_S = 0.2
"""Time after a key press in which all its effects have finished."""
MATCHES_NOTHING = TaskFilter(names=("no.such.task",))
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
    """One measurement and its limit."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"≤ {self.limit:g}"
        return f"| {self.name} | {self.unit} | {self.value:,.2f} | {limit} |"


class CountingDriver(HeadlessDriver):
    """A terminal that counts the bytes written and records the CPU time of the first paint after a reset."""

    bytes_written = 0
    painted_at_cpu_s: float | None = None

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        CountingDriver.bytes_written += len(data.encode())
        if CountingDriver.painted_at_cpu_s is None and data.endswith("H"):
            # A frame ends with the escape sequence that restores the cursor position.
            CountingDriver.painted_at_cpu_s = time.process_time()


class CountingSource:
    """Counts the calls of each method of a data source."""

    def __init__(self, source: DataSource) -> None:
        self._source = source
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._source, name)


class Screens:
    """The TUI on a database; `calls` counts the queries after it has connected."""

    def __init__(self, url: str) -> None:
        self.calls = Counter[str]()
        self._settings = AppConfig(broker=PostgresConfig.model_validate({"database_url": url}))
        self.app = HorsiesApp(self._open, TuiConfig(), database_name="bench", start=ScreenId.TASKS)
        self.app.driver_class = CountingDriver

    @asynccontextmanager
    async def _open(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        async with open_ops(self._settings, read_only=read_only, via="tui", application_name="horsies-tui") as ops:
            source = CountingSource(ops)
            self.calls = source.calls
            yield cast("DataSource", source)

    @property
    def tasks(self) -> TasksScreen:
        return cast("TasksScreen", self.app.screen_stack[0])


async def fill(url: str, tasks: int) -> None:
    async with connect(url) as connection:
        await connection.execute(FILL, tasks)
        await connection.execute("ANALYZE horsies_tasks")


async def measure(url: str, *, seconds: float, presses: int, pause_s: float) -> list[Figure]:
    """Take all measurements inside the running app, which is everything except the first paint.

    `pause_s` is the time between them, in which the effects of the one before end.
    """
    screens, figures = Screens(url), list[Figure]()

    async def drive(_: Pilot[object]) -> None:
        await _until(lambda: bool(screens.tasks.list.rows))
        figures.extend(await _measure_storm(screens, url, seconds))
        for key in ("j", "pagedown"):
            await asyncio.sleep(pause_s)
            figures.extend(await _measure_key(screens, key, presses))
        screens.tasks.apply_filter(MATCHES_NOTHING)
        await _until(lambda: not screens.tasks.list.rows)
        await _wait_until_quiet(3 * pause_s)
        figures.extend(await _measure_idle(seconds))
        screens.app.exit()

    await screens.app.run_async(size=SIZE, auto_pilot=drive)
    return figures


async def _measure_storm(screens: Screens, url: str, seconds: float) -> list[Figure]:
    screens.calls.clear()
    storm = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.storm", url)
    await _until(lambda: sum(screens.calls[name] for name in LIST_QUERIES) > 1)  # the list follows the changes
    screens.calls.clear()
    started, cpu_s = time.monotonic(), time.process_time()
    lag_s = await _loop_lag_p99(seconds)
    elapsed_s, cpu_s = time.monotonic() - started, time.process_time() - cpu_s
    queries = sum(screens.calls[name] for name in LIST_QUERIES) / elapsed_s
    storm.terminate()
    await storm.wait()
    return [
        Figure(name="500 changes/s: queries of the list", value=queries, unit="1/s", limit=4),
        Figure(name="500 changes/s: CPU", value=100 * cpu_s / elapsed_s, unit="%", limit=25),
        Figure(name="500 changes/s: loop lag p99", value=1000 * lag_s, unit="ms", limit=100),
    ]


async def _loop_lag_p99(seconds: float) -> float:
    """Return the 99th percentile of the delay of timers on the event loop."""
    delays: list[float] = []
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        await asyncio.sleep(0.01)
        delays.append(time.monotonic() - now - 0.01)
    return statistics.quantiles(delays, n=100)[98]


async def _measure_key(screens: Screens, key: str, presses: int) -> list[Figure]:
    """Measure CPU time from a key press to the next paint, and to the end of all its queries and paints."""
    to_paint: list[float] = []
    to_end: list[float] = []
    for _ in range(presses):
        CountingDriver.painted_at_cpu_s, cpu_s = None, time.process_time()
        screens.app.simulate_key(key)
        await asyncio.sleep(KEY_SETTLE_S)
        to_end.append(time.process_time() - cpu_s)
        if CountingDriver.painted_at_cpu_s is not None:
            to_paint.append(CountingDriver.painted_at_cpu_s - cpu_s)
    return [
        Figure(name=f"{key}: to paint", value=1000 * statistics.median(to_paint), unit="ms", limit=20),
        Figure(name=f"{key}: to paint, p95", value=1000 * statistics.quantiles(to_paint, n=20)[18], unit="ms"),
        Figure(name=f"{key}: with all effects", value=1000 * statistics.median(to_end), unit="ms"),
    ]


async def _measure_idle(seconds: float) -> list[Figure]:
    bytes_before, cpu_s = CountingDriver.bytes_written, time.process_time()
    await asyncio.sleep(seconds)
    bytes_per_s = (CountingDriver.bytes_written - bytes_before) / seconds
    return [
        Figure(name="idle: sent to the terminal", value=bytes_per_s, unit="bytes/s"),
        Figure(name="idle: CPU", value=100 * (time.process_time() - cpu_s) / seconds, unit="%"),
    ]


async def _wait_until_quiet(seconds: float) -> None:
    """Wait until nothing has been drawn for `seconds`, so that earlier queries are answered."""
    bytes_written = -1
    while bytes_written != (bytes_written := CountingDriver.bytes_written):
        await asyncio.sleep(seconds)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def first_paint(url: str, *, starts: int) -> list[Figure]:
    """Measure the fastest start of the command: elapsed time and CPU time."""
    # The fastest counts, because other load can only slow it down.
    times = [_first_paint(url) for _ in range(starts)]
    return [
        Figure(name="first paint", value=min(elapsed_s for elapsed_s, _ in times), unit="s", limit=1),
        Figure(name="first paint: CPU time", value=min(cpu_s for _, cpu_s in times), unit="s"),
    ]


def _first_paint(url: str) -> tuple[float, float]:
    """Measure from the start of the command to the first output on its terminal."""
    terminal, program_end = pty.openpty()
    command = [sys.executable, "-m", "horsies_ops.cli", "tui", "--database-url", url]
    started = time.monotonic()
    program = subprocess.Popen(
        command, stdin=program_end, stdout=program_end, stderr=program_end, start_new_session=True
    )
    os.close(program_end)
    output = b""
    while b"horsies" not in output and select.select([terminal], [], [], 30)[0]:
        output += os.read(terminal, 65_536)
    elapsed_s, cpu = time.monotonic() - started, psutil.Process(program.pid).cpu_times()
    program.send_signal(signal.SIGKILL)
    program.wait()
    os.close(terminal)
    return elapsed_s, cpu.user + cpu.system


async def run(url: str, *, tasks: int, seconds: float, presses: int, pause_s: float, starts: int) -> None:
    load_before = load()
    await create_tables(url)
    await fill(url, tasks)
    paint = await asyncio.to_thread(first_paint, url, starts=starts)
    figures = [*await measure(url, seconds=seconds, presses=presses, pause_s=pause_s), *paint]
    machine = await describe_machine(url, load_before=load_before)
    print(f"{machine.date}, {tasks:,} tasks, {machine.processors} processors, Python {machine.python}, load", end=" ")
    print(f"{machine.load_before} before and {machine.load_after} after.\n")
    print("| measurement | unit | result | limit |\n|---|---|---|---|")
    print("\n".join(map(str, figures)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.screens", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a small run, to test the benchmark itself")
    options = parser.parse_args()
    with durable_server() as url:
        if options.small:
            asyncio.run(run(url, tasks=1_000, seconds=0.3, presses=2, pause_s=0.1, starts=1))
        else:
            asyncio.run(run(url, tasks=100_000, seconds=10, presses=100, pause_s=1, starts=3))


if __name__ == "__main__":
    main()
