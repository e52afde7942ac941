"""`python -m bench.peers --python ENV/bin/python`: drain no-op tasks with horsies and with other task queues.

In each round pgqueuer (two processes, batches of 100), procrastinate (two processes, 10 jobs each) and horsies (two
children) work on the same durable server, celery (two processes) on a private Redis that keeps nothing on disk. The
peers are those of requirements/peers.txt, installed in the environment of `--python`; `make bench-peers` makes one.
What is missing is skipped, and the output says so.

The clock runs from the first task until all have run and the queue is empty: starting processes does not count.
"""

# ruff: noqa: ASYNC110, ASYNC240  # polls other processes; blocking calls disturb nothing here

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import draining
from bench.machine import load
from bench.server import clear, connect, create_tables, durable_server, require_durable

PROGRAM = Path(__file__).with_name("peer_programs.py")
START_TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A task queue to compare with; `unfinished` counts the jobs left in its table, None for one outside PostgreSQL."""

    name: str
    package: str
    processes: int
    tasks: int
    unfinished: str | None


PEERS = (
    Peer(
        name="pgqueuer 2 x 100",
        package="pgqueuer",
        processes=2,
        tasks=20_000,
        unfinished="SELECT count(*) FROM pgqueuer",
    ),
    Peer(
        name="procrastinate 2 x 10",
        package="procrastinate",
        processes=2,
        tasks=2_000,
        unfinished="SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'",
    ),
    Peer(name="celery 2 + Redis", package="celery", processes=1, tasks=2_000, unfinished=None),
)


@dataclass(frozen=True)
class Drain:
    rate: float
    cpu: str


class Processes:
    """Processes that work on a queue, and the CPU time that they and their servers have used."""

    def __init__(self, pids: Sequence[int], server_pid: int, *, own_backend_pid: int | None = None) -> None:
        self._workers = [psutil.Process(pid) for pid in pids]
        self._server = psutil.Process(server_pid)
        self._own_backend_pid = own_backend_pid

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds of the workers and of the server, without the session that measures."""
        workers = [tree for worker in self._workers for tree in (worker, *worker.children(recursive=True))]
        server = [self._server, *self._server.children()]
        return _cpu_s(workers), _cpu_s([process for process in server if process.pid != self._own_backend_pid])


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(process.cpu_times().user + process.cpu_times().system for process in processes)


async def drain(peer: Peer, python: str, url: str, tasks: int, *, server_pid: int | None = None) -> Drain:
    """Fill the queue of a peer, start its workers and measure from the first run to the last outcome."""
    with ExitStack() as stack:
        runs_file = Path(stack.enter_context(tempfile.NamedTemporaryFile()).name)
        log = stack.enter_context(tempfile.NamedTemporaryFile())
        stack.callback(_print_on_error, peer, Path(log.name))

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            environment = {**os.environ, "BENCH_RUNS_FILE": str(runs_file)}
            command = [python, str(PROGRAM), peer.package, *arguments]
            return stack.enter_context(_terminated(subprocess.Popen(command, env=environment, stdout=log, stderr=log)))

        if start("fill", url, str(tasks)).wait():
            raise RuntimeError(f"cannot fill the queue of {peer.name}")
        started = [start("work", url, "0") for _ in range(peer.processes)]
        pids = [process.pid for process in started]
        if peer.unfinished is None:
            assert server_pid is not None
            return await _measure(runs_file, tasks, Processes(pids, server_pid))
        async with connect(url) as connection:
            own = await connection.fetchval("SELECT pg_backend_pid()")
            postmaster = psutil.Process(own).ppid()
            processes = Processes(pids, postmaster, own_backend_pid=own)
            return await _measure(runs_file, tasks, processes, lambda: connection.fetchval(peer.unfinished))


def _print_on_error(peer: Peer, log: Path) -> None:
    if sys.exc_info()[0] is not None:
        print(f"output of {peer.name}:\n{log.read_text(errors='replace')}")


async def _measure(
    runs_file: Path, tasks: int, processes: Processes, count_unfinished: Callable[[], Awaitable[int]] | None = None
) -> Drain:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not runs_file.stat().st_size:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"no task ran within {START_TIMEOUT_S} s")
        await asyncio.sleep(0.001)
    started, before = time.perf_counter(), processes.cpu_s()
    first = runs_file.stat().st_size // draining.BYTES_PER_RUN
    while runs_file.stat().st_size < tasks * draining.BYTES_PER_RUN or (
        count_unfinished is not None and await count_unfinished()
    ):
        await asyncio.sleep(0.01)
    count, elapsed_s, after = tasks - first, time.perf_counter() - started, processes.cpu_s()
    workers, server = (1e6 * (end - begin) / count for begin, end in zip(before, after, strict=True))
    return Drain(
        count / elapsed_s, f"CPU per task {workers + server:.0f} us (workers {workers:.0f}, server {server:.0f})"
    )


@contextmanager
def _terminated(process: subprocess.Popen[bytes]) -> Generator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def redis_server(program: str) -> Generator[tuple[str, int]]:
    """Start a private Redis on a socket file; yields its URL for celery and its pid."""
    with tempfile.TemporaryDirectory(prefix="horsies-bench-") as folder:
        socket = Path(folder) / "redis.sock"
        command = [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        with _terminated(subprocess.Popen(command, stdout=subprocess.DEVNULL)) as process:
            while not socket.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"redis-server exited with {process.returncode}")
                time.sleep(0.05)
            yield f"redis+socket://{socket}", process.pid


def missing_part(peer: Peer, python: str | None) -> str | None:
    """Why a peer cannot be measured here; None if it can."""
    if python is None:
        return "no --python with the peers; hint: make bench-peers"
    found = subprocess.run([python, "-c", f"import {peer.package}"], capture_output=True, check=False)
    if found.returncode:
        return f"{peer.package} is not installed in the environment of {python}"
    if peer.package == "celery" and shutil.which("redis-server") is None:
        return "no redis-server in PATH; hint: apt-get install redis-server"
    return None


async def measure(url: str, peers: Sequence[Peer], python: str, *, rounds: int, scale: float) -> None:
    await create_tables(url)
    await require_durable(url)
    load_before = load()
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        redis = shutil.which("redis-server") if any(peer.unfinished is None for peer in peers) else None
        redis_url, redis_pid = stack.enter_context(redis_server(redis)) if redis else ("", None)
        for number in range(rounds):
            ours = await horsies_drain(url, int(20_000 * scale))
            drains = {"horsies 2 children": ours}
            for peer in peers:
                address = url if peer.unfinished is not None else redis_url
                drains[peer.name] = await drain(peer, python, address, int(peer.tasks * scale), server_pid=redis_pid)
            print(f"round {number + 1}")
            for name, one in drains.items():
                rates.setdefault(name, []).append(one.rate)
                print(f"  {name}: {one.rate:,.0f} tasks/s, horsies {ours.rate / one.rate:.2f} x, {one.cpu}", flush=True)
    ours_by_round = rates.pop("horsies 2 children")
    for name, values in rates.items():
        ratios = [ours / peer for ours, peer in zip(ours_by_round, values, strict=True)]
        print(f"horsies drains {statistics.median(ratios):.2f} x as fast as {name} (median of {rounds})")
    print(f"load {load_before} to {load()}")


async def horsies_drain(url: str, tasks: int) -> Drain:
    """A worker with two children is warmed up, then drains the queue like the peers."""
    await clear(url)
    with tempfile.NamedTemporaryFile() as file:
        async with draining.worker(url, Path(file.name)) as tree:
            await draining.drain(url, Path(file.name), 500, tree)
            return Drain(*await draining.drain(url, Path(file.name), tasks, tree))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument(
        "--python", help="interpreter of the environment with the peers [default: none, all are skipped]"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a single small round, to test the benchmark itself")
    options = parser.parse_args()
    reasons = {peer: missing_part(peer, options.python) for peer in PEERS}
    for peer, reason in reasons.items():
        if reason is not None:
            print(f"skipped {peer.name}: {reason}")
    peers = [peer for peer, reason in reasons.items() if reason is None]
    if not peers:
        sys.exit("error: no peer to compare with")
    with durable_server() as url:
        rounds, scale = (1, 0.05) if options.small else (options.rounds, 1.0)
        asyncio.run(measure(url, peers, options.python, rounds=rounds, scale=scale))


if __name__ == "__main__":
    main()
