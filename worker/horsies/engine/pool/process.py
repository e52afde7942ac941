"""One process of a child: born with its lines to the worker, ended with its whole group, its death known at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil
from msgspec import Struct, json
from msgspec.structs import replace

if TYPE_CHECKING:
    import asyncio


# How a child is made: one value, the same for every child of a pool.

HEARTBEAT_INTERVAL_S: Final = 1.0


class ChildSpec(Struct, frozen=True, kw_only=True):
    """What every child of a pool is told at its start, and what its owner expects of it."""

    app_locator: str | None = None
    """Where the app is; None asks the settings."""
    modules: tuple[str, ...] | None = None
    """Task modules in place of those that the app names."""
    environment: dict[str, str] = {}
    """Variables beside those of this process."""
    async_concurrency: int = 10
    start_limit_s: float = 20.0
    hook_limit_s: float = 10.0
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S
    silent_limit_s: float = 285.0
    """A child that neither beats nor uses its CPU for so long is killed."""
    unanswered_limit_s: float = 300.0
    """A child whose beats are not answered for so long ends itself."""
    max_tasks_per_child: int = 0
    max_memory_per_child_mb: int | None = None
    quit_limit_s: float = 5.0
    """How long a child that was asked to leave may take."""


class ChildArgs(Struct, frozen=True, kw_only=True):
    """What one child finds on its command line."""

    spec: ChildSpec
    channel_fd: int
    watchdog_fd: int
    parent_pid: int

    def to_argument(self) -> str:
        """As text; without the environment, which travels as such and is nothing for a list of processes to show."""
        return json.encode(replace(self, spec=replace(self.spec, environment={}))).decode()

    @classmethod
    def from_argument(cls, argument: str) -> ChildArgs:
        return json.decode(argument, type=cls)


_CHILD_MODULE = "horsies.engine.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A started child, seen from its parent, and the ends of its lines that are ours.

    Start it from a thread that stays: for the kernel that thread is the parent whose end is the child's end.
    """

    pid: int
    channel: socket.socket
    watchdog: socket.socket
    """Closes when we end, which is then its end; and on it the child says why it leaves, if it knows."""
    stats: psutil.Process
    popen: subprocess.Popen[bytes]

    @classmethod
    def start(cls, spec: ChildSpec) -> ChildProcess:
        """Raises OSError where the system has no room for another process, or we none for its descriptors."""
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            line, channel = socket.socketpair()
            undo.callback(line.close)
            theirs.callback(channel.close)
            life, their_life = socket.socketpair()
            undo.callback(life.close)
            theirs.callback(their_life.close)
            popen = _popen(spec, channel_fd=channel.fileno(), life_fd=their_life.fileno())
            undo.callback(_kill_unsupervised, popen)
            for end in (line, life):
                end.setblocking(False)  # noqa: FBT003
            process = cls(pid=popen.pid, channel=line, watchdog=life, stats=psutil.Process(popen.pid), popen=popen)
            undo.pop_all()
        return process

    @property
    def output_fds(self) -> tuple[int, int]:
        """Where it writes past Python, and where its errors go."""
        assert self.popen.stdout is not None  # noqa: S101
        assert self.popen.stderr is not None  # noqa: S101
        return self.popen.stdout.fileno(), self.popen.stderr.fileno()

    def kill_group(self) -> None:
        """SIGKILL to the child and all it has started; until it is reaped, its number is nobody else's."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def announced_status(self) -> int | None:
        """The exit status that it said it would leave with, if it said so."""
        try:
            word = self.watchdog.recv(1)
        except OSError:
            return None
        return word[0] if word else None

    def cpu_s(self) -> float:
        """The CPU time it has used so far."""
        try:
            times = self.stats.cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system

    def rss_bytes(self) -> int:
        try:
            return self.stats.memory_info().rss
        except psutil.Error:
            return 0

    def close(self) -> None:
        """Let go of every line to a child that has been reaped."""
        # It was reaped behind the back of this object, which would look for it otherwise.
        self.popen.returncode = 0
        for stream in (self.popen.stdout, self.popen.stderr):
            assert stream is not None  # noqa: S101
            stream.close()
        self.channel.close()
        self.watchdog.close()


def call_on_exit(process: ChildProcess, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
    """Call `ended` on the loop when the process has ended; it is not reaped yet."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # a kernel without them, or none left for us
        call_on_exit_by_thread(process.pid, loop, on_exit)
        return

    def at_end() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        on_exit()

    loop.add_reader(descriptor, at_end)


def call_on_exit_by_thread(pid: int, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
    """The same where the kernel has no descriptors for processes: a thread waits for each."""

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        loop.call_soon_threadsafe(on_exit)

    threading.Thread(target=wait, name=f"horsies-wait-{pid}", daemon=True).start()


def _kill_unsupervised(popen: subprocess.Popen[bytes]) -> None:
    """End a process that nobody will supervise."""
    with popen:
        popen.kill()


def _popen(spec: ChildSpec, *, channel_fd: int, life_fd: int) -> subprocess.Popen[bytes]:
    birth = ChildArgs(spec=spec, channel_fd=channel_fd, watchdog_fd=life_fd, parent_pid=os.getpid())
    return subprocess.Popen(
        # -P: no module of the user's stands in for one of Python's before the app itself is imported.
        [sys.executable, "-P", "-m", _CHILD_MODULE, birth.to_argument()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, **spec.environment, "HORSIES_CHILD_PROCESS": "1"},
        pass_fds=(channel_fd, life_fd),
        start_new_session=True,
    )


# What a child writes past Python, on its descriptors 1 and 2: C code, programs that tasks start, a fatal traceback.

BYTES_PER_READ: Final = 2 * 1024
"""So much a turn of the loop, which may be a thousand lines: others have to have their turns too."""
PIPE_CAPACITY_BYTES: Final = 64 * 1024
"""As much as a pipe holds."""
MAX_FINAL_LINES: Final = 1_000
MAX_LINE_BYTES: Final = 16 * 1024


class PipeReader:
    """Reads a pipe without waiting and hands on its lines."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, on_line: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._say = on_line
        self._unfinished = b""
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._on_readable)

    def drain(self) -> None:
        """Hand on what is left of a process that has ended: one pipe full at most, for another may still write there.

        A program that a task has started in a session of its own outlives its child and holds the pipe open.
        """
        lines = self._read(PIPE_CAPACITY_BYTES)
        self._loop.remove_reader(self._descriptor)
        if self._unfinished:
            lines.append(self._unfinished)
        if len(lines) > MAX_FINAL_LINES:
            self._say(f"({len(lines) - MAX_FINAL_LINES} lines are left out here)")
        self._deliver(lines[-MAX_FINAL_LINES:])

    def _on_readable(self) -> None:
        self._deliver(self._read(BYTES_PER_READ))

    def _read(self, most_bytes: int) -> list[bytes]:
        """The lines that are there."""
        try:
            data = os.read(self._descriptor, most_bytes)
        except BlockingIOError:
            return []
        if not data:
            self._loop.remove_reader(self._descriptor)
            return []
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > MAX_LINE_BYTES:
            lines.append(self._unfinished)
            self._unfinished = b""
        return lines

    def _deliver(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._say(line[:MAX_LINE_BYTES].decode(errors="replace"))
