"""The operating system side of a child: start the process, kill its group, detect its exit, read its output pipes."""

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

from horsies.engine.pool.protocol import ChildArgs, ChildSpec

if TYPE_CHECKING:
    import asyncio

_CHILD_MODULE = "horsies.engine.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A started child process with the worker's ends of its sockets and pipes.

    Start it from a thread that lives as long as the worker: the kernel kills the child when that thread ends.
    """

    pid: int
    channel: socket.socket
    watchdog: socket.socket
    """The child exits when this socket closes, and announces its exit status on it."""
    stats: psutil.Process
    popen: subprocess.Popen[bytes]

    @classmethod
    def start(cls, spec: ChildSpec) -> ChildProcess:
        """Start a process; raises OSError if there are no processes or file descriptors left."""
        with contextlib.ExitStack() as on_error, contextlib.ExitStack() as child_ends:
            channel, child_channel = socket.socketpair()
            on_error.callback(channel.close)
            child_ends.callback(child_channel.close)
            watchdog, child_watchdog = socket.socketpair()
            on_error.callback(watchdog.close)
            child_ends.callback(child_watchdog.close)
            popen = _popen(spec, channel_fd=child_channel.fileno(), watchdog_fd=child_watchdog.fileno())
            on_error.callback(_kill_and_reap, popen)
            for sock in (channel, watchdog):
                sock.setblocking(False)  # noqa: FBT003
            stats = psutil.Process(popen.pid)
            process = cls(pid=popen.pid, channel=channel, watchdog=watchdog, stats=stats, popen=popen)
            on_error.pop_all()
        return process

    @property
    def output_fds(self) -> tuple[int, int]:
        """The pipes of stdout and stderr."""
        assert self.popen.stdout is not None  # noqa: S101
        assert self.popen.stderr is not None  # noqa: S101
        return self.popen.stdout.fileno(), self.popen.stderr.fileno()

    def kill_group(self) -> None:
        """Send SIGKILL to the child's process group; safe until the child is reaped, which frees its pid."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def announced_status(self) -> int | None:
        """The exit status that the child announced, if any."""
        try:
            status = self.watchdog.recv(1)
        except OSError:
            return None
        return status[0] if status else None

    def cpu_s(self) -> float:
        """CPU time used so far."""
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
        """Close all descriptors of a child that has been reaped."""
        self.popen.returncode = 0  # reaped by os.wait4, which Popen does not know; otherwise it would wait again
        for stream in (self.popen.stdout, self.popen.stderr):
            assert stream is not None  # noqa: S101
            stream.close()
        self.channel.close()
        self.watchdog.close()


def call_on_exit(process: ChildProcess, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
    """Call `on_exit` on the loop when the process has exited, before it is reaped."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # no pidfd support, or no descriptors left
        call_on_exit_by_thread(process.pid, loop, on_exit)
        return

    def on_readable() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        on_exit()

    loop.add_reader(descriptor, on_readable)


def call_on_exit_by_thread(pid: int, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
    """Like `call_on_exit`, with one waiting thread per process instead of a pidfd."""

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        loop.call_soon_threadsafe(on_exit)

    threading.Thread(target=wait, name=f"horsies-wait-{pid}", daemon=True).start()


def _kill_and_reap(popen: subprocess.Popen[bytes]) -> None:
    with popen:
        popen.kill()


def _popen(spec: ChildSpec, *, channel_fd: int, watchdog_fd: int) -> subprocess.Popen[bytes]:
    args = ChildArgs(spec=spec, channel_fd=channel_fd, watchdog_fd=watchdog_fd, parent_pid=os.getpid())
    return subprocess.Popen(
        # -P keeps user modules in the working directory from shadowing the standard library.
        [sys.executable, "-P", "-m", _CHILD_MODULE, args.to_argument()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, **spec.environment, "HORSIES_CHILD_PROCESS": "1"},
        pass_fds=(channel_fd, watchdog_fd),
        start_new_session=True,
    )


# Output that does not go through Python's streams: C code, subprocesses of tasks, fatal tracebacks.

BYTES_PER_READ: Final = 2 * 1024
"""Read per loop iteration; up to a thousand lines, so that one noisy child does not block the event loop."""
PIPE_CAPACITY_BYTES: Final = 64 * 1024
MAX_FINAL_LINES: Final = 1_000
MAX_LINE_BYTES: Final = 16 * 1024


class PipeReader:
    """Calls `on_line` for each line in a pipe; never blocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, on_line: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._on_line = on_line
        self._partial_line = b""
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._on_readable)

    def drain(self) -> None:
        """Deliver the remaining output of an exited process, at most one pipe capacity.

        The limit is needed because a program started by a task in its own session outlives the child and may keep
        writing to the same pipe.
        """
        lines = self._read(PIPE_CAPACITY_BYTES)
        self._loop.remove_reader(self._descriptor)
        if self._partial_line:
            lines.append(self._partial_line)
        if len(lines) > MAX_FINAL_LINES:
            self._on_line(f"({len(lines) - MAX_FINAL_LINES} lines omitted)")
        self._deliver(lines[-MAX_FINAL_LINES:])

    def _on_readable(self) -> None:
        self._deliver(self._read(BYTES_PER_READ))

    def _read(self, max_bytes: int) -> list[bytes]:
        """Read the complete lines available now."""
        try:
            data = os.read(self._descriptor, max_bytes)
        except BlockingIOError:
            return []
        if not data:
            self._loop.remove_reader(self._descriptor)
            return []
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) > MAX_LINE_BYTES:
            lines.append(self._partial_line)
            self._partial_line = b""
        return lines

    def _deliver(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._on_line(line[:MAX_LINE_BYTES].decode(errors="replace"))
